"""How a run that was disturbed has to end, whatever the disturbance was: P7 is judged here, in every trial."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from faults.campaign.bench import Bench, Reference
from faults.campaign.processes import Process, orphans
from faults.campaign.records import Line
from faults.campaign.subjects import SAVE_EVERY, STEPS, adapter_bytes, debris, steps_in


def highest(out: Path) -> int:
    """The highest step that any start of this run reported."""
    return max((step for log in out.parent.glob("log-*") for step in steps_in(log.read_text("utf-8"))), default=0)


def resumed_too_low(process: Process, *, committed: int, made: int) -> list[str]:
    """Whether a start began below the newest whole checkpoint, or further back than two save intervals.

    While the commit of a save runs, the steps up to the next save may be made, which waits for it.
    """
    steps = steps_in(process.text())
    if not steps:
        return []
    begun = steps[0] - 1
    if begun < committed:
        return [f"lost: began after step {begun}, checkpoint-{committed} was whole"]
    return [f"lost: began after step {begun}, {made} were made"] if made - begun > 2 * SAVE_EVERY else []


def at_the_end(process: Process, bench: Bench, out: Path, reference: Reference) -> list[str]:
    """What is wrong with a run that ended undisturbed at last: exit 0 takes the last step, the adapter and its bits."""
    ended = process.finish()
    if ended.exit_code:
        return [f"refused: exit {ended.exit_code}: {process.text().strip()[-300:]}"]
    adapter = adapter_bytes(out)
    losses = bench.subject.losses(out)
    if adapter is None or [step for step, _ in losses] != list(range(1, STEPS + 1)):
        return [f"false success: adapter {adapter is not None}, steps {[step for step, _ in losses]}"]
    flaws = [f"debris: {left}" for left in debris(out)]
    if left := orphans():
        flaws.append(f"left over: {left}")
    if losses != reference.losses:
        flaws.append(f"differs: losses from step {first_difference(losses, reference.losses)}")
    if adapter != reference.adapter:
        flaws.append("differs: adapter")
    return flaws


def first_difference(one: list[tuple[int, float]], other: list[tuple[int, float]]) -> int:
    """The first step whose losses are not the same."""
    return next(a[0] for a, b in zip(one, other, strict=True) if a != b)


def line(
    promise: str, bench: Bench, trial: Any, *, seed: str, start: str, flaws: list[str], process: Process
) -> dict[str, Any]:
    """What a trial found, as the line to be appended; `result` is the last flaw in a word, or ok."""
    ended = process.finish()
    figures: Line = {"exit_code": ended.exit_code, "seconds": round(ended.seconds, 2), "flaws": flaws}
    result = flaws[-1].split(":")[0] if flaws else "ok"
    head = {"promise": promise, "subject": bench.subject.name, "engine": bench.subject.engine, "trial": trial}
    return {**head, "seed": seed, "start": start, "of": bench.total, "result": result, "figures": figures}
