"""P2: SIGKILL, injected by strace, at every system call on files that one save makes in its thread.

A forked run stops itself before its third save (which also removes the oldest checkpoint); strace is attached to the
thread that writes it, and counts from there. Killed as it enters a call, the process leaves what all calls before have
made, and training is somewhere in the steps beside.
"""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import threading
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
    process = bench.start(out, prepare=stopping(bench, out))
    attach(process, trace, out=out)
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
        process = bench.start(out, prepare=stopping(bench, out))
        attach(process, trace := out.parent / "trace", out=out, point=point)
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


def stopping(bench: Bench, out: Path, *, save: int = SAVE) -> Callable[[], None]:
    """What a forked run does first: stop itself before this save, and mark where that begins and ends."""
    saves = 0

    def before() -> None:
        nonlocal saves
        saves += 1
        if saves == save:
            thread_file(out).write_text(str(threading.get_native_id()))
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)  # so that this thread does not run on
            os.path.lexists(BEGINS)

    def after() -> None:
        if saves == save:
            os.path.lexists(ENDS)

    return lambda: bench.subject.around_save(before, after)


def thread_file(out: Path) -> Path:
    """Where a run says which of its threads writes the save."""
    return out.parent / "thread"


def attach(process: Process, trace: Path, *, out: Path, point: str | None = None) -> None:
    """Wait until the run has stopped itself, attach strace to the thread that saves, and let it go on."""
    inject: list[str] = []
    if point:
        name, number = point.split("#")
        inject = ["-e", f"inject={name}:signal=SIGKILL:when={number}"]
    strace(process, trace, "-e", f"trace={CALLS}", *inject, thread=thread_file(out))


def strace(process: Process, trace: Path, *options: str, thread: Path | None = None) -> None:
    """Wait until the run has stopped itself, attach strace to the thread that it names, or to its main one; go on."""
    assert process.wait_until(lambda: status(process, "State").startswith("T")), process.text()[-3000:]
    attached = int(thread.read_text()) if thread else process.id
    command = ["strace", "-p", str(attached), "-o", str(trace), *options]
    subprocess.Popen(command, stderr=subprocess.DEVNULL)  # ends with the process
    is_attached = process.wait_until(lambda: status(process, "TracerPid", thread=attached) != "0")
    assert is_attached, "strace did not attach"
    os.kill(process.id, signal.SIGCONT)


def status(process: Process, field: str, *, thread: int | None = None) -> str:
    """A field of the status of a process, or of one of its threads."""
    text = Path(f"/proc/{process.id}/task/{thread or process.id}/status").read_text(encoding="utf-8")
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
