"""P1: SIGKILL of the process group at a random time in and between saves, the same command again, up to three kills."""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path
from typing import Any

from faults.campaign.bench import Bench, Reference
from faults.campaign.endings import at_the_end, highest, line, resumed_too_low
from faults.campaign.processes import Process
from faults.campaign.records import Line
from faults.campaign.subjects import debris, newest_whole, visible

PROMISE = "P1"
TARGET = 200
MOST_KILLS = 3
COLD_EVERY = 10
WORKERS_EVERY = 5


def trials(bench: Bench) -> list[int]:
    """The numbers of all trials; makes the reference run."""
    bench.reference()
    return list(range(1, TARGET + 1))


def trial(number: int, bench: Bench) -> Line:
    """One run that is killed one to three times; what it lost, and what it ended with."""
    name = bench.subject.name
    seed = f"P1/{name}/{number}"
    draw = random.Random(seed)
    start = "cold" if number % COLD_EVERY == 0 else "forked"
    extra = ("train.workers=2",) if number % WORKERS_EVERY == 1 else ()
    reference = bench.reference(start=start)
    wanted = draw.randint(1, MOST_KILLS)
    kills: list[dict[str, Any]] = []
    out = bench.fresh(f"P1-{name}-{number}")
    process, flaws = killed_again_and_again(bench, out, draw, wanted, extra=extra, start=start, kills=kills)
    flaws += at_the_end(process, bench, out, reference)
    return line(PROMISE, bench, number, seed=seed, start=start, flaws=flaws, process=process) | {
        "done": {"kills": kills, "settings": extra}
    }


def killed_again_and_again(
    bench: Bench,
    out: Path,
    draw: random.Random,
    wanted: int,
    *,
    extra: tuple[str, ...],
    start: str,
    kills: list[dict[str, Any]],
) -> tuple[Process, list[str]]:
    """Start and kill until the wanted number, then let it end; the last process and what was wrong. Fills `kills`."""
    flaws: list[str] = []
    while True:
        committed, made = newest_whole(visible(bench.subject, out)), highest(out)
        process = bench.start(out, *extra, start=start)
        aim = aimed(draw, bench.reference(start=start), only_saves=bench.subject.name == "stock")
        is_last = len(kills) == wanted
        was_killed = not is_last and strike(process, aim, bench, out)
        process.finish()
        if not was_killed and not kills:  # it ended before its first kill: once more, from the start
            bench.fresh(out.parent.name)
            continue
        flaws += resumed_too_low(process, committed=committed, made=made)
        if not was_killed:
            return process, flaws
        seen = visible(bench.subject, out)
        flaws += [f"partial: checkpoint-{step}: {flaw}" for step, flaw in seen.items() if flaw]
        kills.append({**aim, "step": highest(out), "committed": newest_whole(seen), "debris": len(debris(out))})


def aimed(draw: random.Random, reference: Reference, *, only_saves: bool) -> dict[str, Any]:
    """When to kill: at a time of the whole run, or (half of them) so long after a save began."""
    if only_saves or draw.random() < 0.5:
        delay = draw.uniform(0, 1.2 * reference.save_seconds)
        return {"aim": "save", "save": draw.randint(1, 3), "delay_seconds": round(delay, 5)}
    return {"aim": "time", "delay_seconds": round(draw.uniform(0, reference.seconds), 4)}


def strike(process: Process, aim: dict[str, Any], bench: Bench, out: Path) -> bool:
    """Kill the group as aimed; False where the run had ended before."""
    for _ in range(aim.get("save", 0)):
        process.wait_until(lambda: not bench.subject.is_saving(out))
        process.wait_until(lambda: bench.subject.is_saving(out))
    time.sleep(aim["delay_seconds"])
    process.send(signal.SIGKILL)
    return process.finish().exit_code == -signal.SIGKILL
