"""`loradock` commands as processes of their own, forked from one that has everything imported: a start costs seconds.

The parent of them all runs this module and is asked by lines of JSON; it starts no thread, so that forking is sound.
A command may begin with `code` that arranges its fault; a test says there what is made how.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from faults.campaign.processes import ENVIRONMENT, Process, adopt, die_with_parent, preload
from faults.campaign.subjects import Loradock

from loradock.training.run_dir.record import code_sha256

ROOT = Path(__file__).parents[2]
NO_MORE_SECONDS = 600.0
POLL_SECONDS = 0.02
GONE_SECONDS = 10.0


class Forking:
    """The parent, from here."""

    def __init__(self, *more_paths: str, **more: str) -> None:
        """`more_paths` are imported from before the tests' own, whose environment `more` adds to."""
        paths = os.pathsep.join((*more_paths, *(str(ROOT / name) for name in ("src", "tests"))))
        environment = os.environ | ENVIRONMENT | {"PYTHONPATH": paths} | more
        self.process = subprocess.Popen(
            [sys.executable, "-m", "faults.forking"],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, **request: Any) -> Any:
        """One request, one answer."""
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def start(self, place: Path, *arguments: str, code: str = "", **environment: str) -> Command:
        """`loradock ARGUMENTS` in `place`, its leader of a session; the cache is shared by all commands there."""
        environment = {"LORADOCK_CACHE": str(place / "cache")} | environment
        log = place / f"log-{len(list(place.glob('log-*')))}"
        log.touch()
        found = self.ask(start=arguments, place=str(place), log=str(log), code=code, environment=environment)
        return Command(self, process=found, log=log)

    def run(self, place: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """A command to its end, with stdout and stderr apart."""
        stdout = place / "stdout"
        apart = f"import os; os.dup2(os.open({str(stdout)!r}, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644), 1)"
        command = self.start(place, *arguments, code=apart, **environment)
        code = command.finish()
        return subprocess.CompletedProcess(arguments, code, stdout.read_text(encoding="utf-8"), command.text())

    def end(self) -> None:
        """End the parent, and what it started."""
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.close()
        self.process.wait(timeout=60)
        self.process.stdout.close()


class Command:
    """One command that runs."""

    def __init__(self, forking: Forking, *, process: int, log: Path) -> None:
        self.forking, self.process, self.log = forking, process, log
        self.began = time.monotonic()

    def ended(self) -> int | None:
        """Its exit code (negative: the signal that killed it), None while it runs."""
        return self.forking.ask(ended=self.process)

    def finish(self, *, seconds: float = NO_MORE_SECONDS) -> int:
        """Wait for its end; one that does not end is killed, and fails the test."""
        if self.wait_until(lambda: self.ended() is not None, seconds=seconds):
            code = self.ended()
            assert code is not None
            return code
        self.send(signal.SIGKILL)
        raise AssertionError(f"no end within {seconds} s:\n{self.text()[-3000:]}")

    def wait_until(self, seen: Callable[[], object], *, seconds: float = NO_MORE_SECONDS) -> bool:
        """Wait until `seen()` is true; False where the command ended first, or the time did."""
        until = time.monotonic() + seconds
        while not seen():
            if self.ended() is not None or time.monotonic() > until:
                return bool(seen())
            time.sleep(POLL_SECONDS)
        return True

    def send(self, number: signal.Signals) -> None:
        """Send a signal to its process group, as an init process or a terminal does."""
        os.killpg(self.process, number)

    def text(self) -> str:
        """What it wrote so far, on stdout and stderr."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    def left_behind(self) -> list[int]:
        """What is left of its session once it has ended: what was killed is there until its memory is given back."""
        until = time.monotonic() + GONE_SECONDS
        while (found := self.left()) and time.monotonic() < until:
            time.sleep(POLL_SECONDS)
        return found

    def left(self) -> list[int]:
        """Processes of its session that are still there: workers have process groups of their own, but no session."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != self.process:
                try:
                    state, _, _, session = entry.joinpath("stat").read_text().rpartition(")")[2].split()[:4]
                except (FileNotFoundError, ProcessLookupError):
                    continue
                if int(session) == self.process and state != "Z":
                    found.append(int(entry.name))
        return found


def command(arguments: Sequence[str], code: str) -> None:
    """In the forked child: arrange the fault, then be `loradock ARGUMENTS`."""
    from loradock import cli

    die_with_parent()
    exec(code, {})
    sys.argv = ["loradock", *arguments]
    cli.main()


def serve() -> None:
    """Answer requests until there are no more; then end every command that runs."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    preload(Loradock.package, libraries=Loradock.libraries)
    code_sha256()
    adopt()
    running: dict[int, Process] = {}
    for line in sys.stdin:
        request = json.loads(line)
        if "start" in request:
            main = partial(command, request["start"], request["code"])
            places = {"cwd": Path(request["place"]), "log": Path(request["log"])}
            process = Process(main, **places, environment=request["environment"])
            running[process.id] = process
            answer: int | None = process.id
        else:
            ended = running[request["ended"]].wait(0)
            answer = ended.exit_code if ended else None
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
    for process in running.values():
        process.send(signal.SIGKILL)


if __name__ == "__main__":
    serve()
