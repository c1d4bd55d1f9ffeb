"""The record of a run as Markdown."""

from __future__ import annotations

from typing import Any

PAIRS = {"fast, checkpointed": "trl, checkpointed", "fast": "trl", "fast, cached": "trl"}
"""An arm of ours -> the arm of TRL's with the same layers checkpointed."""
DRIVER_MICROSECONDS = 3.0
"""Assumed, not measured: the driver's own call a launch, which the milliseconds leave out for both."""


def table(record: dict[str, Any]) -> str:
    """Launches and milliseconds of every arm, their shares of TRL's, and what stands around a step."""
    machine, around = record["machine"], record["around"]
    stack = ", ".join(f"{name} {machine[name]}" for name in machine if name != "cpu")
    lines = [
        f"{machine['cpu']}; {stack}; one thread.",
        f"Launches are those of {record['tokens']} tokens; milliseconds least (median) of {record['rounds']} turns.",
        "Shares are of TRL's with the same checkpointing;",
        f"with driver: {DRIVER_MICROSECONDS:g} us a launch added to both, an assumption.",
        "",
        "| model | layers | arm | launches | share | waits | host ms | share | share with driver |",
        "| --- | ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, each in record["models"].items():
        lines += [f"| {name} | {each['layers']} | {row} |" for row in rows(each["kernels"], each["milliseconds"])]
    lines += [
        "",
        f"Around the micro-steps of an optimiser step ({around['model']}'s depth):",
        "",
        "| trainer | launches | waits | host ms |",
        "| --- | ---: | ---: | ---: |",
        *(f"| {name} | {around[name]['launches']} | {around[name]['waits']} | {around[name]['milliseconds']:.1f} |"
          for name in ("trl", "fast")),
        "",
    ]  # fmt: skip
    return "\n".join(lines)


def rows(kernels: dict[str, Any], milliseconds: dict[str, Any]) -> list[str]:
    """One an arm."""
    found = []
    for arm, counted in kernels.items():
        launches, time = counted["launches"], milliseconds[arm]
        cells = [arm, str(launches), "", str(counted["waits"]), f"{time['min']:.1f} ({time['median']:.1f})", "", ""]
        if arm in PAIRS:
            other = kernels[PAIRS[arm]]["launches"], milliseconds[PAIRS[arm]]["min"]
            cells[2] = f"{launches / other[0]:.3f}"
            cells[5] = f"{time['min'] / other[1]:.3f}"
            cells[6] = f"{driven(launches, time['min']) / driven(*other):.3f}"
        found.append(" | ".join(cells))
    return found


def driven(launches: int, milliseconds: float) -> float:
    """Milliseconds with the driver's own calls."""
    return milliseconds + launches * DRIVER_MICROSECONDS / 1e3
