"""P2: SIGKILL, injected by strace, at every system call on files that one save makes in its thread.

A forked run stops itself before its third save (which also removes the oldest checkpoint); strace is attached, and
counts from there. Killed as it enters a call, the process leaves what all calls before have made.
"""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from faults.campaign.bench import Bench
from faults.campaign.endings import at_the_end, highest, line, resumed_too_low
from faults.campaign.processes import Process
from faults.campaign.records import Line
from faults.campaign.subjects import SAVE_EVERY, newest_whole, visible

PROMISE = "P2"
SAVE = 3
BEGINS, ENDS = "/the-save-begins", "/the-save-ends"
CALLS = "%file,%desc"
NO_FILE = {"mmap"}  # mostly memory, and how often is not the same each time
CHANGING = {"fsync", "mkdir", "openat", "rename", "renameat", "rmdir", "unlinkat", "write", "writev"}
ATTEMPTS = 3


def trials(bench: Bench) -> list[str]:
    """Every call of the save as `name#number`; one of each kind first, beginning with those that change the disk."""
    bench.reference()
    out = bench.fresh(f"P2-{bench.subject.name}-trace")
    trace = out.parent / "trace"
    process = bench.start(out, prepare=stopping(bench))
    attach(process, trace)
    ended = process.finish()
    assert ended.exit_code == 0, (ended, process.text()[-3000:])
    found = points(trace.read_text(encoding="utf-8", errors="replace"))
    return spread(found)


def spread(found: list[str]) -> list[str]:
    """The points in an order of which any beginning holds all kinds of calls."""
    random.Random(0).shuffle(found)
    kinds: Counter[str] = Counter()
    rounds: dict[str, int] = {}
    for point in found:
        rounds[point] = kinds[name := point.split("#")[0]]
        kinds[name] += 1
    return sorted(found, key=lambda point: (rounds[point], point.split("#")[0] not in CHANGING))


def trial(point: str, bench: Bench) -> Line:
    """Kill one run at one call of its save, then give the same command again."""
    subject, reference = bench.subject, bench.reference()
    for _ in range(ATTEMPTS):
        out = bench.fresh(f"P2-{subject.name}-{point}")
        process = bench.start(out, prepare=stopping(bench))
        attach(process, trace := out.parent / "trace", point=point)
        if process.finish().exit_code == -signal.SIGKILL:
            break
    else:
        return line(PROMISE, bench, point, seed=point, start="forked", flaws=["missed: not reached"], process=process)
    seen, made = visible(subject, out), highest(out)
    flaws = [f"partial: checkpoint-{step}: {flaw}" for step, flaw in seen.items() if flaw]
    if (committed := newest_whole(seen)) < (SAVE - 1) * SAVE_EVERY:
        flaws.append(f"lost: the newest whole checkpoint is of step {committed}")
    again = bench.start(out)
    again.finish()
    flaws += resumed_too_low(again, committed=committed, made=made)
    flaws += at_the_end(again, bench, out, reference)
    return line(PROMISE, bench, point, seed=point, start="forked", flaws=flaws, process=again) | {
        "done": {"killed_at": killed_at(trace), "committed": committed, "visible": sorted(seen)}
    }


def stopping(bench: Bench) -> Callable[[], None]:
    """What a forked run does first: stop itself before its third save, and mark where that begins and ends."""
    saves = 0

    def before() -> None:
        nonlocal saves
        saves += 1
        if saves == SAVE:
            os.kill(os.getpid(), signal.SIGSTOP)
            os.path.lexists(BEGINS)

    def after() -> None:
        if saves == SAVE:
            os.path.lexists(ENDS)

    return lambda: bench.subject.around_save(before, after)


def attach(process: Process, trace: Path, *, point: str | None = None) -> None:
    """Wait until the run has stopped itself, attach strace, and let it go on."""
    assert process.wait_until(lambda: status(process, "State").startswith("T")), process.text()[-3000:]
    inject = []
    if point:
        name, number = point.split("#")
        inject = ["-e", f"inject={name}:signal=SIGKILL:when={number}"]
    command = ["strace", "-p", str(process.id), "-o", str(trace), "-e", f"trace={CALLS}", *inject]
    subprocess.Popen(command, stderr=subprocess.DEVNULL)  # ends with the process
    assert process.wait_until(lambda: status(process, "TracerPid") != "0"), "strace did not attach"
    os.kill(process.id, signal.SIGCONT)


def status(process: Process, field: str) -> str:
    """A field of /proc/PID/status."""
    text = Path(f"/proc/{process.id}/status").read_text(encoding="utf-8")
    return re.search(rf"^{field}:\s*(.*)$", text, flags=re.MULTILINE)[1]  # type: ignore[index]


def points(trace: str) -> list[str]:
    """The calls between the marks, each as strace counts it: `name#number since the attach`."""
    counts: Counter[str] = Counter()
    found: list[str] = []
    is_inside = False
    for name, rest in re.findall(r"^(\w+)\((.*)$", trace, flags=re.MULTILINE):
        counts[name] += 1
        if ENDS in rest:
            break
        if is_inside and name not in NO_FILE:
            found.append(f"{name}#{counts[name]}")
        is_inside = is_inside or BEGINS in rest
    return found


def killed_at(trace: Path) -> str:
    """The call that was entered last, with what it was called with."""
    calls = re.findall(r"^(\w+\(.*?) += \?$", trace.read_text(encoding="utf-8", errors="replace"), re.MULTILINE)
    return re.sub(r"/\S*/(?=[^/]+/[^/]+\")", "", calls[-1])[:160] if calls else "?"
