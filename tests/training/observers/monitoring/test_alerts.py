"""Each alert is raised by its own trouble, with its figure and a remedy, and by no healthy run, however noisy."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable
from typing import Any

import pytest

from loradock.catalog import engines
from loradock.training.observers.monitoring.alerts import Alert, found, straggling
from loradock.training.telling import remedy_for_padding

GIB = 1 << 30
Line = dict[str, Any]


def lines(count: int = 200, *, seed: int = 0, **parts: Callable[[int, random.Random], float]) -> list[Line]:
    """Metric lines of a healthy run: a falling, noisy loss and steps of 2 s; `parts` replace values line by line."""
    draw = random.Random(seed)
    made: list[Line] = []
    for index in range(count):
        line: Line = {
            "step": 10 * (index + 1),
            "loss": 0.8 + 1.2 * math.exp(-index / 30) + draw.gauss(0, 0.08),
            "tokens": 4000,
            "padding_share": 0.02,
            "seconds": 2.0,
            "phases": {"data": draw.uniform(0.0, 0.15), "passes": 1.8},
        }
        for name, part in parts.items():
            if name == "data":
                line["phases"] = {**line["phases"], "data": part(index, draw)}
            else:
                line[name] = part(index, draw)
        made.append(line)
    return made


def samples(count: int = 600, *, seed: int = 0, **parts: Callable[[int, random.Random], Any]) -> list[Line]:
    """Samples of a healthy run: a busy card, memory that settles, noise on all of it, evaluations in between."""
    draw = random.Random(seed)
    made: list[Line] = []
    for index in range(count):
        is_pausing = index % 50 < 3
        sample: Line = {
            "utilization": 0.1 if is_pausing else draw.uniform(0.93, 1.0),
            "card_used_bytes": int(70 * GIB + min(index, 40) * 0.2 * GIB + draw.gauss(0, 0.2) * GIB),
            "card_total_bytes": 94 * GIB,
            "temperature_celsius": 70 + draw.gauss(0, 3),
            "slowdowns": ["HW Slowdown"] if index % 97 == 0 else ["SW Power Cap"],
            "rss_bytes": int(6 * GIB * (1 - math.exp(-(index + 5) / 20)) + draw.gauss(0, 0.05) * GIB),
        }
        made.append(sample | {name: part(index, draw) for name, part in parts.items()})
    return made


def one(alerts: list[Alert], name: str) -> Alert:
    assert [each.name for each in alerts] == [name]
    assert alerts[0].remedy
    return alerts[0]


@pytest.mark.parametrize("seed", range(30))
def test_a_healthy_run_raises_none_at_any_time(seed: int) -> None:
    trained, sampled = lines(seed=seed), samples(seed=seed)
    for share in (0.02, 0.1, 0.3, 0.6, 1.0):
        seen = found(trained[: int(len(trained) * share)], sampled[: int(len(sampled) * share)])
        assert seen == [], (share, seen)


def test_a_run_without_a_card_raises_none() -> None:
    assert found(lines(), [{"rss_bytes": 4 * GIB, "cpu_share": 0.5}] * 400) == []
    assert found([], []) == []


def test_an_idle_card_is_told_by_the_median() -> None:
    alert = one(found([], samples(utilization=lambda _, draw: draw.uniform(0.1, 0.3))), "gpu-idle")
    assert "below 85 %" in alert.what


def test_waiting_for_data_is_told_with_its_share() -> None:
    alert = one(found(lines(data=lambda *_: 0.5), []), "data-bound")
    assert "25 %" in alert.what


def test_a_nearly_full_card_is_told() -> None:
    alert = one(found([], samples(card_used_bytes=lambda *_: int(92 * GIB))), "gpu-full")
    assert "98 %" in alert.what


@pytest.mark.parametrize(("key", "name"), [("rss_bytes", "memory-rising"), ("card_used_bytes", "gpu-memory-rising")])
def test_a_leak_is_told_through_noise(key: str, name: str) -> None:
    def leaking(index: int, draw: random.Random) -> int:
        return int(4 * GIB + index * 3 * 2**20 + draw.gauss(0, 20) * 2**20)

    parts: dict[str, Any] = {key: leaking}
    alert = one(found([], samples(**parts)), name)
    assert "rises steadily" in alert.what


@pytest.mark.parametrize("at", [320, 450, 580])
def test_one_step_up_and_a_sawtooth_are_no_leak(at: int) -> None:
    def step(index: int, draw: random.Random) -> int:
        return int((4 + 3 * (index >= at)) * GIB + draw.gauss(0, 20) * 2**20)

    def sawtooth(index: int, draw: random.Random) -> int:
        return int(4 * GIB + (index % 40) * 20 * 2**20)

    assert found([], samples(rss_bytes=step)) == []
    assert found([], samples(rss_bytes=sawtooth)) == []


@pytest.mark.parametrize("seed", range(5))
def test_a_loss_that_rises_for_long_is_told(seed: int) -> None:
    def rising(index: int, draw: random.Random) -> float:
        return 1.0 + max(0, index - 120) * 0.02 + draw.gauss(0, 0.05)

    alert = one(found(lines(seed=seed, loss=rising), []), "loss-diverging")
    assert "step 2000" in alert.remedy


@pytest.mark.parametrize("seed", range(20))
def test_a_noisy_a_spiking_and_a_just_risen_loss_are_no_divergence(seed: int) -> None:
    def noisy(index: int, draw: random.Random) -> float:
        return 1.5 + draw.gauss(0, 0.5)

    def spiking(index: int, draw: random.Random) -> float:
        return 1.0 + draw.gauss(0, 0.02) + (9.0 if index in (150, 195, 196) else 0.0)

    def just_risen(index: int, draw: random.Random) -> float:
        return 1.0 + draw.gauss(0, 0.02) + (0.6 if index >= 192 else 0.0)

    assert found(lines(seed=seed, loss=just_risen), []) == []
    assert found(lines(seed=seed, loss=noisy), []) == []
    assert found(lines(seed=seed, loss=spiking), []) == []
    assert found(lines(35, seed=seed, loss=noisy), []) == []


def test_a_card_that_is_held_back_is_told_with_its_reason() -> None:
    hot = samples(slowdowns=lambda index, _: ["SW Thermal Slowdown"] if index % 2 else [])
    assert "SW Thermal Slowdown" in one(found([], hot), "throttled").what


def test_experts_without_tokens_are_told_where_there_are_tokens_enough() -> None:
    loads: dict[str, Any] = {"unused_expert_share": lambda _, draw: draw.uniform(0.2, 0.3)}
    alert = one(found(lines(tokens_per_expert=lambda *_: 250, **loads), []), "experts-starve")
    assert alert.what.startswith("25 % of the experts get no token")
    assert found(lines(tokens_per_expert=lambda *_: 8, **loads), []) == []
    even = lines(tokens_per_expert=lambda *_: 250, unused_expert_share=lambda *_: 0.05)
    assert found(even, []) == []


def test_padding_is_told_by_tokens_not_by_lines() -> None:
    alert = one(found(lines(padding_share=lambda *_: 0.5), []), "padding")
    assert alert.what.startswith("50 %")
    few = lines(padding_share=lambda index, _: 0.5 if index % 20 == 0 else 0.0, tokens=lambda *_: 4000)
    assert found(few, []) == []


@pytest.mark.parametrize(
    ("engine", "is_packed", "named"),
    [("peft", False, {"packing", "engine"}), ("peft", True, {"engine"}), ("fast", True, {"micro_batch"})],
)
def test_the_remedy_for_padding_is_nothing_that_is_on_already(engine: str, is_packed: bool, named: set[str]) -> None:
    remedy = remedy_for_padding(engines.of(engine), is_packed=is_packed)
    alert = one(found(lines(padding_share=lambda *_: 0.5), [], against_padding=remedy), "padding")
    assert set(re.findall("packing|engine|micro_batch", alert.remedy)) == named


def test_a_run_of_a_moment_says_nothing_about_data_and_padding() -> None:
    short = lines(seconds=lambda *_: 0.001, data=lambda *_: 0.0005,
                  padding_share=lambda *_: 0.5)  # fmt: skip
    assert found(short, []) == []


def step_of(*hosts: str, **seconds: float) -> Line:
    by_rank = zip(seconds.items(), hosts or "b" * len(seconds), strict=True)
    return {"step": 1, "rank_seconds": {f"{name[1:]}@{host}": value for (name, value), host in by_rank}}


def test_a_straggler_is_slower_than_the_others_by_more_than_noise_over_many_lines() -> None:
    slow = [step_of(r0=1.0, r1=1.0, r2=1.08) for _ in range(20)]
    alert = straggling(slow)
    assert alert
    assert "rank 2 on b takes 8 % longer" in alert.what
    assert straggling(slow[:9]) is None, "too few lines"
    assert straggling([step_of(r0=1.0, r1=1.04)] * 20) is None, "within the share"
    noisy = [step_of(r0=1.0, r1=0.7 + 0.8 * (number % 2)) for number in range(20)]
    assert straggling(noisy) is None
    assert straggling([{"step": 1, "rank_seconds": None}] * 20) is None, "one process alone"


def test_a_straggler_beside_others_of_its_host_is_not_to_be_left_out_with_the_host() -> None:
    several = straggling([step_of("a", "b", r0=1.0, r1=2.0)] * 20)
    alone = straggling([step_of("b", "b", r0=1.0, r1=2.0)] * 20)
    assert several
    assert alone
    assert several.remedy.endswith("or leave b out")
    assert (
        alone.remedy
        == "top, nvidia-smi -q -d PERFORMANCE and /sys/fs/cgroup/cpu.max tell of other work, heat and a CPU quota"
    )
