"""From metric lines and samples to alerts in words, each with a remedy. Pure; every threshold is a constant here.

An alert needs enough to go by: one slow step, a pause for an evaluation or a noisy loss is none. To add one: a function
of the same form in `ON_SAMPLES` or `ON_LINES`.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise
from typing import Any

from loradock.text.amounts import percent

UTILIZATION_SHARE = 0.85
"""Median over the recent samples in training below which the GPU is said to be waiting."""
WAITING_SHARE = 0.10
"""Of the training time waiting for data."""
FULL_SHARE = 0.95
"""Of the GPU's memory: the next larger batch may not fit."""
PADDING_SHARE = 0.10
UNPADDED = "--set engine=fast, which computes none"
PACK = f"--set train.packing=true, or {UNPADDED}"
LEAST_SAMPLES = 15
"""Samples (half a minute at the default) that a statement on the GPU is made from."""
RECENT = 300
"""Samples or metric lines that count as recent: ten minutes at the default."""
LEAST_LINES = 10
LEAST_TRAINED_SECONDS = 5.0
"""Of training behind a statement on data and padding: shorter runs are over before anything is changed."""
LEAK_SAMPLES = 120
"""In the second half: four minutes at the default; caches and allocators have settled by then."""
LEAK_SHARE = 0.05
"""Growth over the second half, of what is held."""
LEAK_BYTES = 64 << 20
RISING_PAIRS = 0.9
"""Share of pairs of samples in which the later one holds more. A single step up makes at most half."""
SLOPE_POINTS = 60
"""Points of the slope; more make it slower, not better."""
LOSS_LINES = 30
LOSS_WINDOW = 10
"""Metric lines whose median is compared, at least; a third of what there is of a short run."""
LOSS_SHARE = 0.10
LOSS_NOISE = 6.0
"""Standard errors of a median."""
STRAGGLING_SHARE = 0.05
"""That a process is slower than the others, for its own part of a step."""
STRAGGLING_NOISE = 3.0
"""Standard errors of a median by which it is more than that."""
THROTTLED_SHARE = 0.2
"""Of the recent samples."""
THROTTLES = ("HW Power Brake Slowdown", "HW Thermal Slowdown", "SW Thermal Slowdown", "HW Slowdown")
"""What is no choice of anybody; a power cap under full load is how GPUs are run."""

UNUSED_SHARE = 0.10
"""Of a mixture's experts, without a token between two metric lines."""
TOKENS_PER_EXPERT = 32
"""Between two metric lines, by which an expert of an even load has tokens for certain."""

Lines = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Alert:
    """Something to look at. `name` is unique, so that it is told once; `remedy` can be typed where there is such."""

    name: str
    what: str
    remedy: str


Watch = Callable[[Lines], Alert | None]


def found(lines: Lines, samples: Lines, *, against_padding: str = PACK) -> list[Alert]:
    """Every alert that metric lines (`engine.base.StepResult`) and samples (`monitor.jsonl`) give; the oldest first."""
    given = [*((watch, samples) for watch in ON_SAMPLES), *((watch, lines) for watch in ON_LINES)]
    alerts = [alert for watch, those in given if (alert := watch(those))]
    return [replace(alert, remedy=against_padding) if alert.name == "padding" else alert for alert in alerts]


def idle_card(samples: Lines) -> Alert | None:
    """The GPU waits, for whatever it is."""
    used = values(samples[-RECENT:], "utilization")
    if len(used) < LEAST_SAMPLES or statistics.median(used) >= UTILIZATION_SHARE:
        return None
    return Alert(
        name="gpu-idle",
        what=f"the GPU is busy {percent(statistics.median(used))} of the time, below {percent(UTILIZATION_SHARE)}",
        remedy="loradock profile says what it waits for",
    )


def waiting_for_data(lines: Lines) -> Alert | None:
    """Steps wait for their rows."""
    recent = lines[-RECENT:]
    seconds = sum(line["seconds"] for line in recent)
    if len(recent) < LEAST_LINES or seconds < LEAST_TRAINED_SECONDS:
        return None
    share = sum(line["phases"].get("data", 0.0) for line in recent) / seconds
    if share <= WAITING_SHARE:
        return None
    return Alert(
        name="data-bound",
        what=f"steps wait {percent(share)} of their time for data",
        remedy="--set train.workers=4, or a faster disk for data.cache",
    )


def card_nearly_full(samples: Lines) -> Alert | None:
    """Little memory is left on the GPU."""
    shares = [
        sample["card_used_bytes"] / sample["card_total_bytes"]
        for sample in samples[-LEAST_SAMPLES:]
        if sample.get("card_total_bytes") and "card_used_bytes" in sample
    ]
    if len(shares) < LEAST_SAMPLES or statistics.median(shares) <= FULL_SHARE:
        return None
    return Alert(
        name="gpu-full",
        what=f"{percent(statistics.median(shares))} of the GPU's memory is in use",
        remedy="a smaller train.micro_batch, or --set train.checkpointing=true, before a longer row does not fit",
    )


def host_memory_rising(samples: Lines) -> Alert | None:
    """This process holds more and more."""
    return rising(samples, "rss_bytes", name="memory-rising", holder="this process")


def card_memory_rising(samples: Lines) -> Alert | None:
    """The GPU holds more and more."""
    return rising(samples, "card_used_bytes", name="gpu-memory-rising", holder="the GPU")


def rising(samples: Lines, key: str, *, name: str, holder: str) -> Alert | None:
    """A leak: memory that rises steadily over the second half of the run, by the median slope of all pairs (Theil-Sen).

    A step up, however high, is none: half of the pairs do not see it. Nor is noise around a level.
    """
    held = values(samples, key)[len(samples) // 2 :]
    if len(held) < LEAK_SAMPLES:
        return None
    points = [(index, held[index]) for index in range(0, len(held), max(1, len(held) // SLOPE_POINTS))]
    slopes = [(late[1] - early[1]) / (late[0] - early[0]) for early, late in combinations(points, 2)]
    growth = statistics.median(slopes) * len(held)
    is_steady = sum(slope > 0 for slope in slopes) >= RISING_PAIRS * len(slopes)
    if not is_steady or growth < max(LEAK_BYTES, LEAK_SHARE * statistics.median(held)):
        return None
    return Alert(
        name=name,
        what=f"the memory that {holder} holds rises steadily: {growth / 2**20:,.0f} MiB over {len(held)} samples, to "
        f"{held[-1] / 2**30:.1f} GiB",
        remedy="a checkpoint is kept: the same command continues from it if memory ends; fewer train.workers hold less",
    )


def loss_diverging(lines: Lines) -> Alert | None:
    """The loss rises, beyond its noise and for long: both halves of the last window lie above the best one before."""
    losses = values(lines, "loss")
    if len(losses) < LOSS_LINES:
        return None
    window = max(LOSS_WINDOW, len(losses) // 10)
    medians = [statistics.median(losses[end - window : end]) for end in range(window, len(losses) - window + 1)]
    best = min(medians)
    last = losses[-window:]
    half = window // 2
    risen = min(statistics.median(last[:half]), statistics.median(last[half:]))
    # Of neighbours, so that a falling curve is no noise; 1.25 sd / sqrt(n) is the error of a median of n.
    differences = [abs(late - early) for early, late in pairwise(losses)]
    deviation = 1.48 * statistics.median(differences) / 2**0.5
    if risen <= best + max(LOSS_SHARE * abs(best), LOSS_NOISE * 1.25 * deviation / half**0.5):
        return None
    return Alert(
        name="loss-diverging",
        what=f"the loss rises: {best:.3f} was reached, and the last {window} metric lines are at {risen:.3f} and above",
        remedy=f"a lower --lr, a longer train.warmup, or train.max_grad_norm; step {lines[-1]['step']} is where it is",
    )


def throttled(samples: Lines) -> Alert | None:
    """Heat or the power supply hold the GPU's clocks down."""
    recent = [sample["slowdowns"] for sample in samples[-RECENT:] if "slowdowns" in sample]
    hit = [names for names in recent if set(names) & set(THROTTLES)]
    if len(recent) < LEAST_SAMPLES or len(hit) < THROTTLED_SHARE * len(recent):
        return None
    reason = next(each for each in THROTTLES if each in hit[-1])
    hottest = max(values(samples[-RECENT:], "temperature_celsius"), default=None)
    heat = f", up to {hottest:.0f} degrees" if hottest else ""
    return Alert(
        name="throttled",
        what=f"the GPU is held back ({reason}) in {percent(len(hit) / len(recent))} of the samples{heat}",
        remedy="nvidia-smi -q -d PERFORMANCE says since when; fix cooling or power supply, or use another GPU",
    )


def padding(lines: Lines) -> Alert | None:
    """Much of what is computed is padding."""
    recent = lines[-RECENT:]
    slots = sum(line["tokens"] / (1 - line["padding_share"]) for line in recent if line["padding_share"] < 1)
    if len(recent) < LEAST_LINES or not slots or sum(line["seconds"] for line in recent) < LEAST_TRAINED_SECONDS:
        return None
    share = 1 - sum(line["tokens"] for line in recent) / slots
    if share <= PADDING_SHARE:
        return None
    return Alert(
        name="padding",
        what=f"{percent(share)} of what is computed is padding",
        remedy=PACK,
    )


def straggling(lines: Lines) -> Alert | None:
    """One process of several is slower than the others, which wait for it in every step."""
    recent = [line["rank_seconds"] for line in lines[-RECENT:] if line.get("rank_seconds")]
    if len(recent) < LEAST_LINES:
        return None
    name, share = max(((each, slower(recent, each)) for each in recent[-1]), key=lambda each: each[1])
    if share <= STRAGGLING_SHARE:
        return None
    rank, _, host = name.partition("@")
    is_one_host = all(each.endswith(f"@{host}") for each in recent[-1])
    return Alert(
        name="straggler",
        what=f"rank {rank} on {host} takes {percent(share)} longer than the others for its part of a step; they wait",
        remedy="top, nvidia-smi -q -d PERFORMANCE and /sys/fs/cgroup/cpu.max tell of other work, heat and a CPU quota"
        if is_one_host
        else f"loradock env-check --level bench on {host}, --compare with another host; or leave {host} out",
    )


def slower(recent: Sequence[Mapping[str, float]], name: str) -> float:
    """By which share a process is slower than the median of the others, less what may be noise."""
    shares = []
    for seconds in recent:
        others = [value for each, value in seconds.items() if each != name]
        shares.append(seconds.get(name, 0.0) / max(1e-9, statistics.median(others)) - 1 if others else 0.0)
    middle = statistics.median(shares)
    deviation = 1.48 * statistics.median(abs(share - middle) for share in shares)
    return middle - STRAGGLING_NOISE * 1.25 * deviation / len(shares) ** 0.5


def starving(lines: Lines) -> Alert | None:
    """Experts of a mixture get no token, though there are enough for all."""
    recent = [line for line in lines[-RECENT:] if line.get("tokens_per_expert", 0.0) >= TOKENS_PER_EXPERT]
    shares = values(recent, "unused_expert_share")
    if len(shares) < LEAST_LINES or statistics.median(shares) <= UNUSED_SHARE:
        return None
    mean = statistics.median(values(recent, "tokens_per_expert"))
    return Alert(
        name="experts-starve",
        what=f"{percent(statistics.median(shares))} of the experts get no token between two metric lines, where their "
        f"mean is {mean:,.0f}: what an adapter on them would learn from is not in these rows",
        remedy="rows of more kinds (the router is frozen), or --set lora.targets=[all-linear]: no adapters on experts",
    )


def values(lines: Lines, key: str) -> list[float]:
    """What the lines say under this key, where they do."""
    return [line[key] for line in lines if line.get(key) is not None]


ON_SAMPLES: tuple[Watch, ...] = (idle_card, card_nearly_full, host_memory_rising, card_memory_rising, throttled)
ON_LINES: tuple[Watch, ...] = (waiting_for_data, loss_diverging, padding, straggling, starving)
