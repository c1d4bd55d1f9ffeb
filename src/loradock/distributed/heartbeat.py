"""The processes of a run watch one another: each says once a second that it is alive, and ends where another is gone.

A collective that waits for a process which is gone or late does not end by itself. So two threads stand beside the
main one: `tell` exchanges reports through the store that rank 0 keeps, and may hang there; `judge` only looks at what
was heard, by its own count of time (clocks of hosts are never compared), and ends this process with an error that names
the other. What is lost is what came after the last commit.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from loradock.distributed import failure
from loradock.distributed.failure import Heard, Report
from loradock.distributed.rendezvous import Meeting, last_words, mark_as_told
from loradock.distributed.watchdog import LATE_SECONDS, Watchdog
from loradock.errors import LoradockError
from loradock.process import streams, termination_log

TELL_SECONDS = 1.0
JUDGE_SECONDS = 0.25
RANKS_A_SECOND = 64
"""Ranks in a run above which reports come less often: each reads those of all."""
SILENT_STORE_SECONDS = 2.5
"""Without an exchange after which the store is silent, and not the process whose report did not come."""
LINGER_SECONDS = 10.0
"""That the keeper of the store waits at its end until the others have heard of it."""
NAMING_SECONDS = 8.0
"""That a process whose collective failed takes to learn which other one is gone."""


class Peers:
    """What this process knows of the others. `step` is the last optimiser step that it made."""

    def __init__(self, meeting: Meeting, *, rank: int, limit_seconds: float) -> None:
        """`limit_seconds` of silence end this process; 0: none do."""
        self.rank, self.hosts, self.limit_seconds, self.step = rank, meeting.hosts, limit_seconds, 0
        self.watchdog: Watchdog | None = None
        self.store, self._seal = meeting.reports, meeting.seal
        self._refused: set[int] = set()
        self._mine = Report(rank=rank, host=self.hosts[rank])
        self._end_of_mine: dict[str, Any] = {}
        self._reports = [Report(rank=host_name, host=host) for host_name, host in enumerate(self.hosts)]
        self._heard = [Heard(report=report) for report in self._reports]
        self._exchanges, self._is_cut_off = 0, False
        self._is_waiting, self._has_come, self._waiting_seconds = False, False, 0.0
        self._is_leaving, self._is_over = threading.Event(), threading.Event()
        self._is_due, self._is_told = threading.Event(), threading.Event()
        self._threads = [
            threading.Thread(target=work, name=name, daemon=True)
            for name, work in (("peers-tell", self._tell), ("peers-judge", self._judge))
        ]

    def start(self) -> None:
        """Begin to tell and to judge; the others are expected to do so, too."""
        self._publish()
        for thread in self._threads:
            thread.start()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Inside, this process is where it waits for all the others."""
        self._is_waiting = self._has_come = True
        try:
            yield
        finally:
            self._is_waiting = False

    def heard_of(self, rank: int) -> Report:
        """The last report of that rank."""
        return self._reports[rank]

    def blamed(self) -> LoradockError | None:
        """After a collective failed: which process is gone, as the error to end with; None where all seem well."""
        until = time.monotonic() + NAMING_SECONDS
        while time.monotonic() < until:
            if judgement := self._judgement(is_cut_off=True):
                return judgement
            time.sleep(JUDGE_SECONDS)
        return None

    def leave(self, error: LoradockError | None, *, is_told: bool = False) -> None:
        """Say how this process ends (None: well), and judge no longer. The keeper of the store waits to be heard.

        `is_told`: the error only says what another process did to this one.
        """
        self.say(error, is_told=is_told)
        self._is_over.set()
        self._is_due.set()
        for thread in self._threads:
            thread.join(TELL_SECONDS)

    def say(self, error: LoradockError | None, *, is_told: bool = False) -> None:
        """The last word of this process; the first one counts."""
        if self._is_leaving.is_set():
            return
        self._end_of_mine = {"code": error.exit_code if error else 0, "what": error.what if error else ""}
        self._end_of_mine["is_told"] = is_told
        if is_told:
            mark_as_told(self.rank)
        self._is_leaving.set()
        self._is_due.set()
        self._is_told.wait(TELL_SECONDS)
        until = time.monotonic() + LINGER_SECONDS
        while self.rank == 0 and time.monotonic() < until and self._has_listeners():
            time.sleep(JUDGE_SECONDS)

    def _has_listeners(self) -> bool:
        unheard_seconds = [peer.unheard_seconds for peer in self._heard]
        return any(
            report.code is None and report.rank != self.rank and unheard < failure.SUSPECT_SECONDS
            for report, unheard in zip(self._reports, unheard_seconds, strict=True)
        )

    def _tell(self) -> None:
        """The thread that exchanges reports; it may hang in the store."""
        pause_seconds = TELL_SECONDS * max(1.0, len(self.hosts) / RANKS_A_SECOND)
        try:
            while not self._is_over.is_set():
                is_last_word = self._is_leaving.is_set()
                self._publish()
                sealed = self.store.multi_get([str(report.rank) for report in self._reports])
                self._reports = [self._read(rank, report) for rank, report in enumerate(sealed)]
                self._exchanges += 1
                if is_last_word:
                    self._is_told.set()
                self._is_due.wait(pause_seconds)
                self._is_due.clear()
        except RuntimeError:  # the store's errors: it is closed, or cannot be reached
            self._is_cut_off = True
            self._is_told.set()

    def _publish(self) -> None:
        watchdog, mine = self.watchdog, self._mine
        self._mine = replace(
            mine,
            count=mine.count + 1,
            phase=watchdog.phase if watchdog else mine.phase,
            step=self.step,
            quiet_seconds=watchdog.silent_seconds if watchdog else 0.0,
            waiting_seconds=self._waiting_seconds,
            **self._end_of_mine,
        )
        self._put(self._mine)
        for rank, word in last_words().items():  # of those who can say nothing themselves any more
            report = self._reports[rank]
            if report.code is None and word["code"]:
                dead = replace(report, count=report.count + 1, code=word["code"], what=word["what"])
                self._put(dead)

    def _put(self, report: Report) -> None:
        name = str(report.rank)
        self.store.set(name, self._seal.close(name, report.as_bytes()))

    def _read(self, rank: int, sealed: bytes) -> Report:
        """The report of a rank; the one before, where this one is not its own, or older."""
        previous, name = self._reports[rank], str(rank)
        content = self._seal.open(name, sealed)
        report = Report.of(content) if content is not None else None
        if report is None or report.rank != rank:
            self._refuse(rank)
            return previous
        return report if report.count >= previous.count else previous

    def _refuse(self, rank: int) -> None:
        """Say once that somebody speaks in the name of that rank."""
        if rank not in self._refused:
            self._refused.add(rank)
            why = "is malformed, or not signed with the secret of this run: not counted"
            what = f"warning: a report in the name of rank {rank} {why}\n"
            streams.write_stderr(what.encode())

    def _judge(self) -> None:
        """The thread that ends this process."""
        moment, exchanges, unheard_seconds = time.monotonic(), 0, 0.0
        while not self._is_over.wait(JUDGE_SECONDS):
            current = time.monotonic()
            # As the watchdog counts: a process that was stopped meanwhile does not take the others for silent.
            passed_seconds = current - moment if current - moment < LATE_SECONDS else JUDGE_SECONDS
            unheard_seconds = 0.0 if self._exchanges != exchanges else unheard_seconds + passed_seconds
            moment, exchanges = current, self._exchanges
            self._waiting_seconds = self._waited(passed_seconds)
            self._count(passed_seconds, is_store_silent=unheard_seconds > SILENT_STORE_SECONDS)
            if not self._is_leaving.is_set() and (error := self._judgement(is_cut_off=False)):
                self._end(error)

    def _waited(self, passed_seconds: float) -> float:
        """Seconds since this process came to where it waits now; the wait before, if it ended unseen, is another."""
        before_seconds = 0.0 if self._has_come else self._waiting_seconds
        self._has_come = False
        return before_seconds + passed_seconds if self._is_waiting else 0.0

    def _count(self, passed_seconds: float, *, is_store_silent: bool) -> None:
        """Time in which nothing came; while the store is silent, that is blamed on its keeper alone."""
        for rank, report in enumerate(self._reports):
            previous = self._heard[rank]
            is_new = report.count != previous.report.count
            is_counted = rank == 0 or not is_store_silent
            self._heard[rank] = Heard(
                report=report,
                unheard_seconds=0.0 if is_new else previous.unheard_seconds + passed_seconds * is_counted,
                ended_seconds=previous.ended_seconds + passed_seconds if report.code is not None else 0.0,
            )

    def _judgement(self, *, is_cut_off: bool) -> LoradockError | None:
        # A store that closed tells as much as a collective that failed: its keeper is gone.
        is_cut_off = is_cut_off or self._is_cut_off
        heard, limit_seconds = list(self._heard), self.limit_seconds
        return failure.judged(heard, me=self.rank, limit_seconds=limit_seconds, is_cut_off=is_cut_off)

    def _end(self, error: LoradockError) -> None:
        """End this process from beside a main thread that waits, or hangs."""
        self.say(error, is_told=True)
        if self.watchdog:
            self.watchdog.end(error, has_stacks=not self._is_waiting)
        streams.write_stderr(f"{error}\n".encode())
        termination_log.write(error.exit_code, error)
        os._exit(error.exit_code)
