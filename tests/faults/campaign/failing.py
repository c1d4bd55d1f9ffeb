"""P19: a system call that fails, injected by strace, at points of a whole run, most of them on the run's own files.

An undisturbed run is traced once; a point is one of its calls, with an error that such a call may have. A forked run
stops itself before it begins, strace is attached, and makes that call fail once. A call on a file whose name is the
same in each run is counted among the calls on that file, any other among all calls of its name in the main thread. For
`behind` the run stops itself before its first commit, and the calls are those of the thread that commits.
"""

from __future__ import annotations

import os
import random
import re
import signal
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from faults.campaign.bench import Bench, Reference
from faults.campaign.calls import stopping, strace, thread_file
from faults.campaign.endings import at_the_end, line
from faults.campaign.processes import Process
from faults.campaign.records import Line
from faults.campaign.subjects import newest_whole, visible

PROMISE = "P19"
POINTS = 100
COLD = 8
"""Of them in processes that start cold, on the files of libraries for the most part."""
CONTINUED = 30
"""Of them in runs that continue one that was killed at KILLED_AT."""
KILLED_AT = 8
BEHIND = 16
"""Of them in the thread that writes and commits checkpoints."""
SEED = 24
ATTEMPTS = 3
QUICK = (
    "forked write:ENOSPC@OUT/metrics.jsonl#3",
    "forked mmap:ENOMEM@OUT/.adapter.staged/adapter_model.safetensors#2",
)
"""A few that need no trace, for CI."""
DOCUMENTED = {0, 64, 65, 66, 69, 71, *range(73, 85)}
"""The exit codes of errors.py, without 70 (a bug) and 2 (click's own)."""
READ, WRITTEN = ("EIO", "ESTALE", "EINTR"), ("EIO", "ENOSPC", "EDQUOT", "ESTALE")
ERRORS = {
    "openat": ("EIO", "EMFILE", "ESTALE", "EINTR"),
    "read": READ,
    "pread64": READ,
    "write": (*WRITTEN, "EINTR"),
    "pwrite64": (*WRITTEN, "EINTR"),
    "fsync": WRITTEN,
    "rename": WRITTEN,
    "renameat": WRITTEN,
    "close": (*WRITTEN, "EINTR"),
    "unlink": ("EIO", "ESTALE"),
    "unlinkat": ("EIO", "ESTALE"),
    "mmap": ("ENOMEM", "EIO"),
}
MADE = ("ENOSPC", "EDQUOT")
"""What an open has besides, where it makes a file."""
WEIGHTS = {"open": 20, "read": 18, "write": 18, "fsync": 14, "rename": 10, "close": 10, "unlink": 6, "mmap": 4}
FAMILIES = {
    "openat": "open",
    "pread64": "read",
    "pwrite64": "write",
    "renameat": "rename",
    "unlinkat": "unlink",
}
OURS = 0.85
"""The share of points on the run's own files: its output, its cache, its model and its rows."""
CHANGING_NAME = re.compile(r"\.(?:stage|staged|trash|tmp)-?\w+")
"""A folder or file whose name is another in each run."""
CALL = re.compile(r"^(?:(?P<thread>\d+) +)?(?P<name>\w+)\((?P<rest>.*)$")
NAMED = re.compile(r'"(/[^"]*)"|\d+<(/[^>]*)>')


@dataclass(frozen=True, kw_only=True)
class Point:
    """The `number`-th call of this name that fails: on `file` (OUT, INPUTS, CACHE and PID stand for theirs), or of all.

    `kind` says what it was on in the traced run, without what is another in each run.
    """

    name: str
    file: str | None
    kind: str
    number: int
    thread: str = "main"
    is_making: bool = False

    @property
    def is_ours(self) -> bool:
        """Whether the call is on a file of the run."""
        return self.kind.split("/")[0] in ("OUT", "INPUTS", "CACHE")


def trials(bench: Bench) -> list[str]:
    """Points as `START name:error@file#number` or, without a name that stays, `START name:error@#number`, shuffled."""
    bench.reference()
    found = drawn_cold(traced(bench, start="cold")[2])
    counts = {"forked": POINTS - COLD - CONTINUED - BEHIND, "continued": CONTINUED, "behind": BEHIND}
    for start, count in counts.items():
        process, out, trace = traced(bench, *(() if start == "behind" else ("-f",)), start=start)
        seen = list(points(trace, out=out, pid=process.id, inputs=bench.inputs.model.parent))
        found += drawn(seen, start=start, count=count)
    random.Random(SEED).shuffle(found)
    return found


def traced(bench: Bench, *options: str, start: str) -> tuple[Process, Path, str]:
    """An undisturbed run, its directory, and what strace wrote."""
    out = bench.fresh(f"{PROMISE}-{bench.subject.name}-trace-{start}")
    process, thread = begun(bench, out, start=start)
    names = f"trace={','.join(ERRORS)}"
    strace(process, trace := out.parent / "trace", "-y", "-s", "0", "-e", names, *options, thread=thread)
    ended = process.finish()
    assert ended.exit_code == 0, (ended, process.text()[-3000:])
    return process, out, trace.read_text(encoding="utf-8", errors="replace")


def begun(bench: Bench, out: Path, *, start: str) -> tuple[Process, Path | None]:
    """A run that has stopped itself before it begins; `continued` is forked where another was killed at KILLED_AT.

    `behind` stops itself before its first commit, and names the thread of that in a file.
    """
    if start == "behind":
        return bench.start(out, prepare=stopping(bench, out, save=1)), thread_file(out)
    if start == "continued":
        killed = bench.start(out)
        assert killed.wait_until(lambda: newest_whole(visible(bench.subject, out)) >= KILLED_AT), killed.text()[-3000:]
        killed.send(signal.SIGKILL)
        killed.finish()
    return bench.start(out, start="cold" if start == "cold" else "forked", prepare=stopped), None


def stopped() -> None:
    """What a forked run does first: wait for strace."""
    os.kill(os.getpid(), signal.SIGSTOP)


def points(trace: str, *, out: Path, pid: int, inputs: Path) -> Iterator[Point]:
    """Every call of the main thread, or of the one that is traced alone; of other threads those of the monitor."""
    on_file: Counter[tuple[str, str]] = Counter()
    of_name: Counter[str] = Counter()
    places = {str(out): "OUT", str(out.parent / "cache"): "CACHE", str(inputs): "INPUTS"}
    for match in filter(None, map(CALL.match, trace.splitlines())):
        name, rest, is_main = match["name"], match["rest"], match["thread"] in (None, str(pid))
        named = [a or b for a, b in NAMED.findall(rest)]
        named = [path for path in named if path != str(out.parent)] or [""]  # AT_FDCWD
        if name == "mmap" and named == [""]:  # memory, and no file
            of_name[name] += is_main
            continue
        path, target = (placed(each, places).replace(f".{pid}", ".PID") for each in (named[0], named[-1]))
        is_own = path.startswith(("OUT", "CACHE", "INPUTS"))
        if is_main:
            of_name[name] += 1
        elif not path.startswith("OUT/monitor"):
            continue
        stays = is_own and not CHANGING_NAME.search(path.replace("OUT/.adapter.staged", "")) and "probe" not in path
        if stays:
            on_file[name, path] += 1
        yield Point(
            name=name,
            file=path if stays else None,
            kind=re.sub(r"\d+", "N", CHANGING_NAME.sub(".X", target if name.startswith("rename") else path)),
            number=on_file[name, path] if stays else of_name[name],
            thread="main" if is_main else "other",
            is_making="O_CREAT" in rest,
        )


def placed(path: str, places: dict[str, str]) -> str:
    """The path with the word for the folder that it lies in."""
    within = (each for each in places if path == each or path.startswith(f"{each}/"))
    return next((places[folder] + path.removeprefix(folder) for folder in within), path)


def drawn(found: list[Point], *, start: str, count: int, seed: int = SEED) -> list[str]:
    """A family of calls by its weight, what it is on, one of those, and an error: all by a generator with this seed."""
    chance = random.Random(seed)
    chosen: dict[str, None] = {}
    while len(chosen) < count:
        (family,) = chance.choices(list(WEIGHTS), weights=list(WEIGHTS.values()))
        is_ours = chance.random() < OURS
        able = [each for each in found if FAMILIES.get(each.name, each.name) == family and each.is_ours == is_ours]
        kinds = sorted({each.kind for each in able})
        if not kinds:
            continue
        kind = chance.choice(kinds)
        point = chance.choice([each for each in able if each.kind == kind])
        error = chance.choice([*ERRORS[point.name], *(MADE if point.is_making else ())])
        chosen[f"{start} {point.name}:{error}@{point.file or ''}#{point.number}"] = None
    return list(chosen)


def drawn_cold(trace: str, *, seed: int = SEED, count: int = COLD) -> list[str]:
    """Calls of a cold start, on any file: from the command's module until training begins; `mmap` of files alone.

    Before, Python itself ends with 1; and memory that is refused to a library of C may end it by a signal.
    """
    chance = random.Random(seed)
    begin, end = trace.index("/loradock/commands/train"), trace.index("/metrics.jsonl")
    found: list[str] = []
    while len(found) < count:
        name = chance.choice(["openat", "read", "mmap", "close"])
        marks = [match.start() for match in re.finditer(rf"^{name}\(", trace, flags=re.MULTILINE)]
        numbers = [number for number, mark in enumerate(marks, 1) if begin < mark < end and "<" in line_at(trace, mark)]
        found.append(f"cold {name}:{chance.choice(ERRORS[name][:2])}@#{chance.choice(numbers)}")
    return found


def line_at(text: str, mark: int) -> str:
    """The line that begins there."""
    return text[mark : text.index("\n", mark)]


def trial(point: str, bench: Bench) -> Line:
    """Make one call of a run fail, then give the same command again."""
    reference = bench.reference()
    start, what = point.split(" ")
    for attempt in range(ATTEMPTS):  # how often some files are written is a matter of time
        out = bench.fresh(f"{PROMISE}-{bench.subject.name}-{re.sub('[^0-9A-Za-z]+', '_', point)}")
        process, thread = begun(bench, out, start=start)
        inject(process, trace := out.parent / "trace", earlier(what, attempt), bench=bench, out=out, thread=thread)
        ended = process.finish()
        if hit := hit_at(trace):
            break
    else:
        return line(PROMISE, bench, point, seed=str(SEED), start=start, flaws=["missed: not reached"], process=process)
    flaws = undocumented(process) or ([] if ended.exit_code else at_the_end(process, bench, out, reference))
    again = bench.start(out)
    again.finish()
    flaws += after_all(again, bench, out, reference)
    return line(PROMISE, bench, point, seed=str(SEED), start=start, flaws=flaws, process=again) | {
        "done": {"failed_at": hit, "exit_code": ended.exit_code, "said": said(process)}
    }


def earlier(what: str, attempt: int) -> str:
    """The same call, but a half, then a third as late."""
    call, _, number = what.rpartition("#")
    return f"{call}#{-(-int(number) // (attempt + 1))}"


def undocumented(process: Process) -> list[str]:
    """What is wrong with how the run ended whose call failed."""
    code, text = process.finish().exit_code, process.text()
    if code not in DOCUMENTED or "Traceback" in text or "unexpected" in text:
        return [f"undocumented: exit {code}: {text.strip()[-600:]}"]
    return []


def after_all(again: Process, bench: Bench, out: Path, reference: Reference) -> list[str]:
    """What is wrong with the run once its command was given again: its end, its bits, and what is left lying."""
    flaws = at_the_end(again, bench, out, reference)
    if again.finish().exit_code == 0:
        flaws += [f"debris: {left}" for left in left_lying(out)]
    return flaws


def left_lying(out: Path) -> list[str]:
    """What was staged or put aside in the run's directory and in its cache, and is still there."""
    lying = [path for folder in (out, out.parent / "cache") for path in folder.rglob(".*") if path.name != ".lock"]
    return sorted(str(path.relative_to(out.parent)) for path in lying)


def said(process: Process) -> str:
    """The error that the run ended with, in its words."""
    found = re.findall(r"^error: .*$", process.text(), flags=re.MULTILINE)
    return re.sub(r"/\S*/(?=[^/ ]+)", "", found[-1])[:200] if found else ""


def inject(process: Process, trace: Path, point: str, *, bench: Bench, out: Path, thread: Path | None) -> None:
    """Attach strace so that the point's call fails, and let the run go on."""
    name, error, file, number = re.fullmatch(r"(\w+):(\w+)@(.*)#(\d+)", point).groups()  # type: ignore[union-attr]
    options = ["-y", "-s", "0", "-e", f"trace={name}", "-e", f"inject={name}:error={error}:when={number}"]
    if file:
        for word, place in (("OUT", out), ("CACHE", out.parent / "cache"), ("INPUTS", bench.inputs.model.parent)):
            file = re.sub(rf"^{word}(?=/|$)", str(place), file)
        options += ["-P", file.replace(".PID", f".{process.id}")]
        options += ["-f"] if "monitor" in file else []
    strace(process, trace, *options, thread=thread)


def hit_at(trace: Path) -> str | None:
    """The call that failed, as strace shows it; None where none did."""
    found = re.findall(
        r"^(?:\d+ +)?(.*) \(INJECTED\)$", trace.read_text(encoding="utf-8", errors="replace"), re.MULTILINE
    )
    return re.sub(r"/\S*?/(?=[^/]+/[^/]+[\">])", "", found[0])[:200] if found else None
