"""What the lines of a run say: speeds, ratios of paired steps, whether all arms computed the same, and the table."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from typing import Any

from bench.contrastive.arms import CACHED_MNRL, MNRL, PRODUCTS, SORTED
from loradock.env_check.paired_ratio import ratio

BOUND = 1e-5
"""Largest relative difference of losses and of gradient norms between arms at a step."""
SORTED_CACHED = f"{SORTED}{CACHED_MNRL}"
TARGETS: tuple[tuple[str, str, float | None], ...] = (
    ("ours-cached", CACHED_MNRL, 1.5),
    ("ours-direct", MNRL, 1.4),
    ("ours-auto", CACHED_MNRL, 1.9),
    ("ours-cached", SORTED_CACHED, None),
)
PASSES, CACHED_PASSES = 2, 3
"""Forward and backward, which have the same products under LoRA; a cached step runs forward once more."""
WARM_UP = 0
"""The number of the round that counts for nothing but its loss and its norm."""

Line = dict[str, Any]


def disagreement(lines: Iterable[Line]) -> dict[str, float]:
    """The largest relative difference between arms at a step, of `loss` and of `norm`."""
    rounds: dict[int, list[Line]] = {}
    for line in lines:
        if line["arm"] != PRODUCTS:
            rounds.setdefault(line["round"], []).append(line)
    return {
        name: max((max(own) - min(own)) / max(own) for own in ([each[name] for each in of] for of in rounds.values()))
        for name in ("loss", "norm")
    }


def seconds_of(lines: Iterable[Line], kind: str = "cpu_seconds") -> dict[str, list[float]]:
    """Seconds of the steps after the warm-up by arm, in the order of rounds."""
    found: dict[str, list[float]] = {}
    for line in sorted(lines, key=lambda line: line["round"]):
        own = found.setdefault(line["arm"], [])
        if line["round"] != WARM_UP:
            own.append(line[kind])
    return found


def best_peer(seconds: dict[str, list[float]], name: str) -> str:
    """The fastest arm of a peer: of its mini-batches the best one."""
    of = [arm for arm in seconds if arm == name or (name != MNRL and arm.startswith(f"{name}-"))]
    return min(of, key=lambda arm: statistics.median(seconds[arm]))


def ratios(seconds: dict[str, list[float]]) -> list[dict[str, Any]]:
    """Each of TARGETS: how many times faster, by the CPU seconds of steps of the same round, with a 95 % interval."""
    found = []
    for arm, peer, target in TARGETS:
        best = best_peer(seconds, peer)
        over = ratio([math.log(b / a) for a, b in zip(seconds[arm], seconds[best], strict=True)])
        found.append({"arm": arm, "peer": best, "ratio": over.value, "low": over.low, "high": over.high, "at": target})
    return found


def floor_of(arm: str, seconds: dict[str, list[float]]) -> float:
    """The CPU seconds of the products that the passes of an arm cannot do without."""
    passes = CACHED_PASSES if "cached" in arm else PASSES
    return statistics.median(seconds[PRODUCTS]) * passes / PASSES


def table(machine: dict[str, Any], subject: dict[str, Any], lines: list[Line]) -> str:
    """A run as Markdown."""
    seconds, apart = seconds_of(lines), disagreement(lines)
    loads = [line["load"] for line in lines]
    stack = ", ".join(f"{name} {machine['stack'][name]}" for name in ("torch", "transformers", "peft"))
    measured = (
        f"{machine['device']}, {stack}, sentence-transformers {machine['sentence_transformers']}, {machine['commit']}, "
        f"{machine['date']}; one thread an arm, load average {min(loads):.1f} to {max(loads):.1f}."
    )
    trained = (
        f"{subject['layers']} layers x {subject['hidden']}, float32, LoRA r{subject['rank']} on all linear layers; "
        f"{subject['documents']} documents of {subject['shortest']} to {subject['longest']} tokens, "
        f"{subject['tokens']} together; {len(seconds[PRODUCTS])} steps of each arm after one to warm up."
    )
    made = [
        *(measured, "", trained, ""),
        "| arm | real tokens a CPU second | CPU seconds of a step (least .. most) | of its floor |",
        "| --- | ---: | ---: | ---: |",
    ]
    for arm, own in seconds.items():
        middle = statistics.median(own)
        speed = f"{subject['tokens'] / middle:,.0f}" if arm != PRODUCTS else ""
        span, share = f"{middle:.2f} ({min(own):.2f} .. {max(own):.2f})", floor_of(arm, seconds) / middle
        made.append(f"| {arm} | {speed} | {span} | {share:.0%} |")
    made += ["", "| | faster (95 %) | target |", "| --- | ---: | ---: |"]
    for each in ratios(seconds):
        interval = f" ({each['low']:.2f} .. {each['high']:.2f})" if each["low"] is not None else ""
        made.append(f"| {each['arm']} over {each['peer']} | {each['ratio']:.2f}{interval} | {each['at'] or ''} |")
    made += ["", f"Largest relative difference between arms at a step: loss {apart['loss']:.1e}, "]
    made[-1] += f"gradient norm {apart['norm']:.1e} (bound {BOUND:g})."
    return "\n".join([*made, ""])
