"""P6: SIGTERM or SIGINT to the whole process group, with two persistent data workers, in every phase of a run.

A phase is recognised by what the run wrote so far, by its handlers in /proc, or by the stage of a save on the disk.
"""

from __future__ import annotations

import random
import re
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from faults.campaign.bench import Bench, Reference
from faults.campaign.endings import at_the_end, line, resumed_too_low
from faults.campaign.processes import Process, orphans
from faults.campaign.records import Line
from faults.campaign.subjects import SAVE_EVERY, newest_whole, steps_in, visible

PROMISE = "P6"
TARGET = 54
EVALUATE_EVERY = 6
SETTINGS = ("train.workers=2", "data.validation=24", f"evaluation.every={EVALUATE_EVERY}")
RESUMED_EVERY = 2
GRACE_SECONDS = 2.0
ORPHAN_SECONDS = 1.0


@dataclass(frozen=True, kw_only=True)
class Scene:
    """What a phase is recognised by: the run under trial, its directory, and a draw of its own."""

    process: Process
    bench: Bench
    out: Path
    nth: int


def handles_signals(scene: Scene) -> bool:
    """It has a handler of its own for SIGTERM."""
    text = Path(f"/proc/{scene.process.id}/status").read_text(encoding="utf-8")
    found = re.search(r"^SigCgt:\s*(\w+)$", text, flags=re.MULTILINE)
    return found is not None and bool(int(found[1], 16) >> (signal.SIGTERM - 1) & 1)


def wrote(text: str) -> Callable[[Scene], bool]:
    """It wrote this."""
    return lambda scene: text in scene.process.text()


def made_steps(scene: Scene) -> bool:
    """It made so many steps since it started."""
    return len(steps_in(scene.process.text())) >= scene.nth


def evaluates(scene: Scene) -> bool:
    """It made the first or second step after which it evaluates."""
    made = [step for step in steps_in(scene.process.text()) if step % EVALUATE_EVERY == 0]
    return len(made) >= 1 + scene.nth % 2


def saves(scene: Scene) -> bool:
    """It writes a checkpoint."""
    return scene.bench.subject.is_saving(scene.out)


@dataclass(frozen=True, kw_only=True)
class Phase:
    """A part of a run: how it is seen to begin, and how long after that the signal is sent at most."""

    seen: Callable[[Scene], bool]
    longest_seconds: float
    start: str = "forked"


PHASES = {
    "step": Phase(seen=made_steps, longest_seconds=0.08),
    "save": Phase(seen=saves, longest_seconds=0.03),
    "load": Phase(seen=wrote("base model ..."), longest_seconds=0.08),
    "tokenise": Phase(seen=wrote("data ..."), longest_seconds=0.05),
    "first step": Phase(seen=wrote("training ..."), longest_seconds=0.15),
    "eval": Phase(seen=evaluates, longest_seconds=0.05),
    "final": Phase(seen=wrote("export ..."), longest_seconds=0.5),
    "idle": Phase(seen=handles_signals, longest_seconds=0.03),
    "import": Phase(seen=handles_signals, longest_seconds=8.0, start="cold"),
}


def trials(bench: Bench) -> list[int]:
    """The numbers of all trials; makes the reference run."""
    bench.reference(*SETTINGS)
    return list(range(TARGET))


def trial(number: int, bench: Bench) -> Line:
    """One run that is asked to end; how it ended, when, and whether the same command then finishes it."""
    seed = f"P6/{number}"
    draw = random.Random(seed)
    name = list(PHASES)[number % len(PHASES)]
    phase, sent = PHASES[name], draw.choice((signal.SIGTERM, signal.SIGINT))
    is_resumed = draw.random() < 1 / RESUMED_EVERY
    nth, delay = draw.randint(1, 10), draw.uniform(0, phase.longest_seconds)
    reference = bench.reference(*SETTINGS)
    out = bench.fresh(f"P6-{number}")
    if is_resumed:
        kill_after_two_saves(bench, out)
    before = newest_whole(visible(bench.subject, out))
    process = bench.start(out, *SETTINGS, start=phase.start)
    scene = Scene(process=process, bench=bench, out=out, nth=nth)
    was_seen = process.wait_until(lambda: phase.seen(scene))
    time.sleep(delay)
    made = len(steps_in(process.text()))
    process.send(sent)
    asked = time.monotonic()
    process.finish()
    took = time.monotonic() - asked
    left = orphans(seconds=ORPHAN_SECONDS)
    after = visible(bench.subject, out)
    flaws = [] if was_seen else [f"missed: it ended before {name}"]
    flaws += judged(process, reference, before=before, after=after, made=made, took=took)
    flaws += [f"left over: {left}"] if left else []
    again = bench.start(out, *SETTINGS)
    again.finish()
    flaws += resumed_too_low(again, committed=newest_whole(after), made=newest_whole(after))
    flaws += at_the_end(again, bench, out, reference)
    done = {"phase": name, "signal": sent.name, "delay_seconds": round(delay, 4), "resumed_from": before}
    seen = {"steps": made, "ended": process.finish().exit_code, "took_seconds": round(took, 3)}
    whole = line(PROMISE, bench, number, seed=seed, start=phase.start, flaws=flaws, process=again)
    return whole | {"done": done | seen | {"committed": newest_whole(after)}}


def kill_after_two_saves(bench: Bench, out: Path) -> None:
    """Make a run that is to be resumed: killed when two checkpoints are there."""
    process = bench.start(out, *SETTINGS)
    process.wait_until(lambda: newest_whole(visible(bench.subject, out)) >= 2 * SAVE_EVERY)
    process.send(signal.SIGKILL)
    process.finish()


def judged(
    process: Process, reference: Reference, *, before: int, after: dict[int, str | None], made: int, took: float
) -> list[str]:
    """What is wrong with how a run ended that was asked to, `took` seconds ago, after it `made` so many steps."""
    flaws = [f"partial: checkpoint-{step}: {flaw}" for step, flaw in after.items() if flaw]
    limit = reference.step_seconds + 2 * reference.save_seconds + GRACE_SECONDS  # the save in flight, and the last one
    if took > limit:
        flaws.append(f"late: {took:.2f} s, allowed {limit:.2f}")
    code, steps, committed = process.finish().exit_code, steps_in(process.text()), newest_whole(after)
    if code == 75 and not (committed > before and steps and committed == steps[-1]):
        flaws.append(f"wrong code: 75, but checkpoint-{committed} at the end, {before} before, steps {steps[-1:]}")
    if code == 76 and (made or committed != before):
        flaws.append(f"wrong code: 76, but {made} steps were made, checkpoint-{committed}, {before} before")
    if code not in (0, 75, 76):
        flaws.append(f"wrong code: {code}: {process.text()[-300:]}")
    if code == 0 and "finished" not in process.text():
        flaws.append("false success: exit 0")
    return flaws
