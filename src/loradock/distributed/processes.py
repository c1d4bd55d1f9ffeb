"""Starts the processes of a run on this machine, passes signals on to them, and says which one ended it.

Each leads a process group of its own, so that a signal to the launcher's group, or a Ctrl-C, reaches it once and by way
of the launcher; the kernel kills it where the launcher dies. How one ended is written where the others of this machine
look (`distributed.rendezvous.last_words`), and they tell the rest: a killed process cannot say so itself.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from loradock.distributed.place import LAST_WORDS, Place
from loradock.process.signals import PR_SET_PDEATHSIG, SIGNALS

BY_SIGNAL = 128
"""What a shell adds to the number of the signal that killed a process."""
IN_ORDER = (75, 76)
POLL_SECONDS = 0.1
FAILED_SECONDS = 15.0
"""For the others to end by themselves after one has failed: they name it, and write the record."""
KILL_SECONDS = 10.0
"""After they were asked to, where no grace was given."""


@dataclass
class Rank:
    """One process. `code` is its exit code as a shell counts it, None while it runs; `log` holds what is not shown.

    `is_told`: another process ended it. `is_given_up`: it did not end by itself, and was killed.
    """

    number: int
    process: subprocess.Popen[bytes]
    log: Path | None
    code: int | None = None
    is_told: bool = False
    is_given_up: bool = False

    def poll(self) -> bool:
        """True where it has ended since it was last asked."""
        if self.code is not None or self.process.poll() is None:
            return False
        code = self.process.returncode
        self.code = code if code >= 0 else BY_SIGNAL - code
        return True

    def send(self, number: int) -> None:
        """Send a signal to its process group."""
        if self.code is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)

    def blame(self) -> tuple[bool, bool, bool]:
        """What speaks against it being the one that ended the run; the first of those with the least did."""
        return self.is_given_up, self.is_told, self.code in IN_ORDER

    def ending(self) -> str:
        """How it ended, in words."""
        code = self.code or 0
        if code > BY_SIGNAL:
            with contextlib.suppress(ValueError):
                return f"was killed by {signal.Signals(code - BY_SIGNAL).name}"
        return f"ended with exit code {code}"


@dataclass
class Launched:
    """The processes of this machine, and those that failed in the order in which they did."""

    ranks: list[Rank]
    words: Path
    failed: list[Rank] = field(default_factory=list)

    @property
    def culprit(self) -> Rank | None:
        """The first that failed by itself; None where all went well."""
        return min(self.failed, key=Rank.blame, default=None)

    def are_running(self) -> bool:
        """Look who has ended, and write it down."""
        for rank in self.ranks:
            if rank.poll() and rank.code:
                self.failed.append(rank)
                rank.is_told = (self.words / f"{rank.number}.peer").exists()
                word = {"code": rank.code, "what": rank.ending()}
                staged = self.words / f".{rank.number}"
                staged.write_text(json.dumps(word), encoding="utf-8")
                staged.replace(self.words / f"{rank.number}.json")
        return any(rank.code is None for rank in self.ranks)

    def send(self, number: int) -> None:
        """Send a signal to all that run."""
        for rank in self.ranks:
            rank.send(number)

    def give_up(self) -> None:
        """Kill what still runs."""
        for rank in self.ranks:
            rank.is_given_up = rank.is_given_up or rank.code is None
        self.send(signal.SIGKILL)


def launch(
    command: Sequence[str], *, place: Place, environment: Mapping[str, str], folder: Path, grace_seconds: float | None
) -> Launched:
    """Run `command` once for each rank of this machine, until all have ended.

    The first shows what it writes, the others write to `folder`/rank-N.log. `signals.SIGNALS` are passed on;
    then the processes have `grace_seconds` before they are killed (None: as long as they need). Where one fails, the
    others have FAILED_SECONDS to end by themselves, are asked to, and are killed then.
    """
    with passed_on() as signals, tempfile.TemporaryDirectory(prefix="loradock-words-") as scratch:
        environment = {**environment, LAST_WORDS: scratch}
        ranks = [
            start(command, place=place, rank=rank, environment=environment, folder=folder) for rank in place.ranks()
        ]
        launched = Launched(ranks=ranks, words=Path(scratch))
        try:
            watch(launched, signals, grace_seconds=grace_seconds)
        finally:
            launched.give_up()
    return launched


@contextlib.contextmanager
def passed_on() -> Iterator[set[signal.Signals]]:
    """Inside, the signals wait to be asked for; the started processes let them in once they can hear them."""
    numbers = {number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield numbers
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def watch(launched: Launched, signals: set[signal.Signals], *, grace_seconds: float | None) -> None:
    """Until all have ended."""
    asked_at = kill_at = float("inf")
    while launched.are_running():
        moment = time.monotonic()
        is_broken = any(rank.code not in IN_ORDER for rank in launched.failed)
        if is_broken and asked_at == kill_at == float("inf"):
            asked_at = moment + FAILED_SECONDS
        if moment >= asked_at:
            launched.send(signal.SIGTERM)
            asked_at, kill_at = float("inf"), moment + (KILL_SECONDS if grace_seconds is None else grace_seconds)
        if moment >= kill_at:
            launched.give_up()
        if came := signal.sigtimedwait(signals, POLL_SECONDS):
            launched.send(came.si_signo)
            kill_at = min(kill_at, moment + (float("inf") if grace_seconds is None else grace_seconds))


def start(command: Sequence[str], *, place: Place, rank: int, environment: Mapping[str, str], folder: Path) -> Rank:
    """One process, in a group of its own."""
    is_shown = rank == place.ranks()[0]
    log = None if is_shown else folder / f"rank-{rank}.log"
    libc, launcher = ctypes.CDLL(None), os.getpid()

    def bind() -> None:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != launcher:
            os._exit(BY_SIGNAL + signal.SIGKILL)

    with contextlib.ExitStack() as opened:
        output = opened.enter_context(log.open("wb")) if log else None
        process = subprocess.Popen(
            command,
            env={**environment, **place.environment(rank)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            process_group=0,
            preexec_fn=bind,  # noqa: PLW1509  the launcher has one thread
        )
    return Rank(number=rank, process=process, log=log)


def told(launched: Launched) -> str | None:
    """Which process ended the run, for people; None where all went well, or were stopped in order."""
    culprit = launched.culprit
    if culprit is None or culprit.code in IN_ORDER:
        return None
    victims = [process for process in launched.failed if process is not culprit]
    parts = [
        f"rank {process.number}{', for that reason' if process.is_told else f': {process.code}'}" for process in victims
    ]
    suffix = f"; then {', '.join(parts)}" if parts else ""
    hint = "; out of memory? (dmesg)" if culprit.code == BY_SIGNAL + signal.SIGKILL else ""
    return f"rank {culprit.number} on {socket.gethostname()} {culprit.ending()}{suffix}{hint}"
