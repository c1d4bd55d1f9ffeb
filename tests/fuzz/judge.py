"""One mutant under one command: in a forked process, with its exit code, seconds, memory and last words."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

from faults.campaign.processes import Ended, Process, die_with_parent
from fuzz.kinds.base import Kind
from proven import OPTION, unchecked

DOCUMENTED = frozenset({0, 64, 65, 66, 69, 71, 73, 74, 75, 76, 77, 78, 79, 80, 81, 82, 83, 84})
"""The exit codes of errors.py, but 70: a bug of ours is never an input's fault."""
MOST_CPU_SECONDS = 2.0
MOST_BYTES = 1 << 30
KILLED_AFTER_SECONDS = 60.0
ADDRESS_SPACE_BYTES = 16 << 30
"""Beyond it an allocation fails: a net under a test machine, not the limit that is judged."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What came of one mutant; `seed` makes it again. CPU seconds and bytes are over those of the good input."""

    kind: str
    seed: int
    code: int
    cpu_seconds: float
    bytes: int
    words: str
    found: tuple[str, ...] = ()

    @property
    def flaws(self) -> list[str]:
        """What is wrong with it; none where it holds."""
        found = list(self.found)
        if self.code not in DOCUMENTED:
            found.append(f"ended with {self.code}")
        if "Traceback (most recent call last)" in self.words:
            found.append("shows a traceback")
        if self.cpu_seconds > MOST_CPU_SECONDS:
            found.append(f"took {self.cpu_seconds:.1f} CPU seconds")
        if self.bytes > MOST_BYTES:
            found.append(f"took {self.bytes / (1 << 30):.1f} GiB")
        return found

    def line(self) -> dict[str, Any]:
        """As kept by a campaign."""
        return asdict(self) | {"flaws": self.flaws}


@dataclass(frozen=True, kw_only=True)
class Cost:
    """CPU seconds and peak bytes of a process and of those that it waited for."""

    cpu_seconds: float
    bytes: int


class Trial:
    """A kind with its good input made in `folder`; the process that makes it has to be a `preload`ed one."""

    def __init__(self, kind: Kind, folder: Path) -> None:
        self.kind, self.folder = kind, folder
        if OPTION in kind.command:
            unchecked("many mutants on one machine")
        self.good = folder / "good"
        self.good.mkdir(parents=True)
        process = Process(lambda: kind.make(self.good), cwd=folder, log=folder / "made", environment={})
        assert process.finish().exit_code == 0, process.text()
        usual = folder / "usual"
        shutil.copytree(self.good, usual, symlinks=True)  # a command may write into its input: a run is continued
        code, self.usual, words = self.run(usual)
        assert code == 0, f"the good input of {kind.name} ends with {code}:\n{words}"
        self.source = self.good if any(self.good.glob(kind.file)) else usual

    def judge(self, seed: int) -> Verdict:
        """Make the mutant of a seed and run the command on it."""
        place = self.folder / f"mutant-{seed}"
        shutil.copytree(self.source, place, symlinks=True)
        file = min(place.glob(self.kind.file))
        spoilt = self.kind.mutate(file.read_bytes(), Random(f"{self.kind.name} {seed}"))
        file.unlink()
        file.write_bytes(spoilt)
        if self.kind.sign:
            self.kind.sign(place)
        code, cost, words = self.run(place)
        found = self.kind.check(self.source, place) if self.kind.check else []
        shutil.rmtree(place)
        return Verdict(
            kind=self.kind.name,
            seed=seed,
            code=code,
            cpu_seconds=round(max(0.0, cost.cpu_seconds - self.usual.cpu_seconds - self.kind.spare_cpu_seconds), 2),
            bytes=max(0, cost.bytes - self.usual.bytes),
            words=words[-2000:],
            found=tuple(found),
        )

    def run(self, place: Path) -> tuple[int, Cost, str]:
        """The command in a folder: exit code, what it took, what it wrote."""
        log = self.folder / "log"
        log.unlink(missing_ok=True)
        process = Process(
            lambda: command(self.kind.command), cwd=place, log=log, environment={"LORADOCK_CACHE": str(place / "cache")}
        )
        ended, cost = waited(process)
        return ended.exit_code, cost, process.text()


def command(arguments: tuple[str, ...]) -> None:
    """In the forked child: be `loradock ARGUMENTS`."""
    from loradock import cli

    die_with_parent()
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE_BYTES, ADDRESS_SPACE_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.argv = ["loradock", *arguments]
    cli.main()


def waited(process: Process) -> tuple[Ended, Cost]:
    """Wait for a process, and ask what it took; one that does not end is killed."""
    until = time.monotonic() + KILLED_AFTER_SECONDS
    while True:
        done, status, used = os.wait4(process.id, os.WNOHANG)
        if done:
            ended = Ended(exit_code=os.waitstatus_to_exitcode(status), seconds=time.monotonic() - process.began)
            os.close(process.handle)
            return ended, Cost(cpu_seconds=used.ru_utime + used.ru_stime, bytes=used.ru_maxrss << 10)
        if time.monotonic() > until:
            process.send(signal.SIGKILL)
        time.sleep(0.002)
