"""What the rounds say: rows a second of each arm, ratios of paired rounds, and whether the arms answer alike."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

from bench.evaluate.arms import BEAMS, LM_EVAL, OURS, OURS_BEAMS
from loradock.env_check.paired_ratio import ratio

BOUND = 2e-4
"""Largest difference of a log-probability of an answer of some six tokens between arms.

On six rows of boolq, ours lie within 2e-5 of float64; lm-eval's, from torch's float32 log_softmax over 49,152 tokens,
5e-5 to 7e-5 above it.
"""
PAIRS = ((OURS, LM_EVAL), (OURS_BEAMS, BEAMS))
Line = dict[str, Any]


def of_arm(lines: Sequence[Line], arm: str) -> list[Line]:
    """The rounds of an arm, after the one that warms up."""
    return [line for line in lines if line["arm"] == arm and line["round"] > 0]


def best_peer(lines: Sequence[Line], kind: str) -> str | None:
    """The fastest batch size of a peer; None where it was not run."""
    names = sorted({line["arm"] for line in lines if line["arm"].startswith(f"{kind}-")})
    return min(names, key=lambda arm: seconds(of_arm(lines, arm)), default=None)


def seconds(lines: Sequence[Line]) -> float:
    """CPU seconds of all rounds."""
    return sum(line["cpu_seconds"] for line in lines)


def apart(lines: Sequence[Line]) -> float:
    """The largest difference of a log-probability between arms that choose."""
    own = {line["round"]: line["answers"] for line in lines if line["arm"] == OURS}
    others = [line for line in lines if line["arm"].startswith(LM_EVAL)]
    return max(
        (
            abs(a - b)
            for line in others
            for first, second in zip(own[line["round"]], line["answers"], strict=True)
            for a, b in zip(first, second, strict=True)
        ),
        default=0.0,
    )


def alike(lines: Sequence[Line]) -> dict[str, float]:
    """The share of rows on which a peer chooses or says what we do, by peer."""
    found: dict[str, list[bool]] = {}
    for own_name, kind in PAIRS:
        own = {line["round"]: line["answers"] for line in lines if line["arm"] == own_name}
        for line in lines:
            if line["arm"].startswith(f"{kind}-"):
                pairs = zip(own[line["round"]], line["answers"], strict=True)
                found.setdefault(line["arm"], []).extend(chosen(a) == chosen(b) for a, b in pairs)
    return {name: statistics.fmean(each) for name, each in found.items()}


def chosen(answer: Any) -> Any:
    """The place of the highest log-probability; a text as it is."""
    return answer.index(max(answer)) if isinstance(answer, list) else answer


def table(machine: dict[str, Any], lines: Sequence[Line]) -> str:
    """The run as Markdown."""
    packages = ", ".join(f"{name} {machine['stack'][name]}" for name in ("torch", "transformers"))
    loads = [line["load"] for line in lines]
    made = [
        f"{machine['device']}, {packages}, lm-eval {machine['lm_eval']}, {machine['commit']}, {machine['date']}; one",
        f"thread an arm, float32, load average {min(loads):.1f} to {max(loads):.1f}; {machine['model']}.",
        "",
        "| arm | rows | rows a CPU second | rows a second | answers as ours |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    shares = alike(lines)
    for arm in dict.fromkeys(line["arm"] for line in lines):
        own = of_arm(lines, arm)
        rows = sum(len(line["answers"]) for line in own)
        wall = sum(line["wall_seconds"] for line in own)
        same = f"{shares[arm]:.1%}" if arm in shares else ""
        made.append(f"| {arm} | {rows} | {rows / seconds(own):.2f} | {rows / wall:.2f} | {same} |")
    made.append("")
    for own_name, kind in PAIRS:
        if not (peer := best_peer(lines, kind)) or not of_arm(lines, own_name):
            continue
        pairs = zip(of_arm(lines, own_name), of_arm(lines, peer), strict=True)
        over = ratio([math.log(theirs["cpu_seconds"] / ours["cpu_seconds"]) for ours, theirs in pairs])
        interval = f" ({over.low:.2f} .. {over.high:.2f})" if over.low is not None else ""
        made.append(
            f"{own_name} over {peer}: {over.value:.2f}{interval} times the rows, by CPU seconds of paired rounds."
        )
    made.append(
        f"Largest difference of a log-probability between ours and lm-eval: {apart(lines):.1e} (bound {BOUND:g})."
    )
    return "\n".join([*made, ""])
