"""A program (committing.py) under strace: the file calls of a commit, in order, and a kill at any one of them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest
from faults.committing import BEGIN, END

PROGRAM = Path(__file__).with_name("committing.py")
CALL = re.compile(r"^(?:\d+ +)?(?P<name>\w+)\((?P<rest>.*)$")


@dataclass(frozen=True, kw_only=True)
class Call:
    """One system call: its name, its arguments and result as strace prints them, and its number among its name's."""

    name: str
    rest: str
    number: int

    @property
    def paths(self) -> tuple[str, ...]:
        """What it names, and what its descriptors stand for; a name below a descriptor joined to it."""
        named = re.findall(r'"(/[^"]*)"|\d+<(/[^>]*)>', self.rest)
        return tuple(text or opened for text, opened in named)


def strace() -> str:
    """Its path; skips the test where it is not, or may not trace."""
    found = shutil.which("strace")
    if not found:
        pytest.skip("strace is not here")
    probe = subprocess.run([found, "-f", "true"], capture_output=True, text=True)
    if probe.returncode:
        pytest.skip(f"strace may not trace here: {probe.stderr.strip().splitlines()[-1]}")
    return found


def committing(folder: Path, steps: tuple[int, ...], *, keep: int = 1, variant: str | None = None) -> list[str]:
    """The arguments of committing.py."""
    return [str(PROGRAM), str(folder), str(keep), *map(str, steps), *(["--variant", variant] if variant else [])]


def run(*options: str, program: list[str]) -> int:
    """A program, under strace where there are options; returns its exit code, -9 where it was killed."""
    command = [*options, sys.executable, *program]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONHASHSEED": "0"})
    assert done.returncode in (0, -9, 137), done.stderr
    return -9 if done.returncode else 0


def traced(folder: Path, steps: tuple[int, ...], *, log: Path, keep: int = 1, variant: str | None = None) -> list[Call]:
    """The file calls of committing.py, as `calls_of`."""
    return calls_of(committing(folder, steps, keep=keep, variant=variant), log=log)


def calls_of(program: list[str], *, log: Path) -> list[Call]:
    """The file calls between BEGIN and END, in order; the bytes that are written are not shown."""
    options = (strace(), "-f", "-y", "-s", "200", "-e", "write=none", "-e", "trace=%file,%desc", "-o", str(log))
    assert run(*options, program=program) == 0
    counts: Counter[str] = Counter()
    calls: list[Call] = []
    is_within = False
    for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
        if not (match := CALL.match(line)):
            continue
        counts[match["name"]] += 1
        is_within = (is_within or f'"{BEGIN}"' in line) and f'"{END}"' not in line
        if is_within and f'"{BEGIN}"' not in line:
            calls.append(Call(name=match["name"], rest=match["rest"], number=counts[match["name"]]))
    assert calls, log
    return calls


def kill_at(call: Call, *, folder: Path, steps: tuple[int, ...], variant: str | None = None) -> bool:
    """Run committing.py again and SIGKILL it at this call; says whether it was killed."""
    return killed_at(call, program=committing(folder, steps, variant=variant))


def killed_at(call: Call, *, program: list[str]) -> bool:
    """Run a program again and SIGKILL it at this call, before the kernel does it; says whether it was killed."""
    inject = f"inject={call.name}:signal=SIGKILL:when={call.number}"
    options = (strace(), "-f", "-e", f"trace={call.name}", "-e", inject, "-o", os.devnull)
    return run(*options, program=program) == -9
