"""Rank 0's side: it takes the ranks in, asks them, and knows who died, hangs or is silent."""

from __future__ import annotations

import contextlib
import select
import socket
import time
from collections.abc import Mapping
from typing import Any

from loradock.env_check.base import error, ok
from loradock.env_check.cluster.base import Asked, Lost, Me, Outcome, Peer, Stage
from loradock.env_check.cluster.introduction import introduction, peer_of
from loradock.env_check.cluster.member import done
from loradock.env_check.cluster.rendezvous import POLL_SECONDS, Lobby
from loradock.env_check.cluster.wire import Beating, Channel, Gone

GRACE_SECONDS = 2.0


class Lead:
    """All ranks, led by this one."""

    def __init__(self, me: Me, lobby: Lobby, *, timeout_seconds: float, limit_percent: float, rounds: int) -> None:
        self.me, self.lobby = me, lobby
        self.timeout_seconds, self.limit_percent, self.rounds = timeout_seconds, limit_percent, rounds
        self.slowest_mb_per_second: float | None = None
        self.channels: dict[int, Channel] = {}
        self.peers: dict[int, Peer] = {}
        self.stage: Stage | None = None
        self._number = 0
        self._beating = Beating(self.channels.values)

    def gather(self) -> Outcome:
        """Wait until every rank has come or the time is up. Raises Lost for those that did not."""
        began = time.monotonic()
        faults: dict[int, str] = {}
        introductions: dict[int, dict[str, Any]] = {}
        missing = set(range(1, self.me.world_size))
        while missing and time.monotonic() < began + self.timeout_seconds:
            if came := self.lobby.take(POLL_SECONDS):
                channel, hello = came
                if (rank := hello["rank"]) in introductions:
                    raise Lost(
                        {rank: f"rank {rank} came twice, from {introductions[rank]['host']} and from {hello['host']}"}
                    )
                channel.silent_seconds = min(channel.silent_seconds, self.timeout_seconds)
                self.channels[rank], introductions[rank] = channel, hello
                missing.discard(rank)
            faults |= {rank: fault for rank in missing - set(faults) if (fault := self.lobby.fault_of(rank))}
            if missing and missing == set(faults):
                break
        self._introduce(introductions)
        if missing:
            raise Lost({rank: faults.get(rank, self._absence(rank)) for rank in missing})
        for channel in self.channels.values():
            channel.send({"welcome": self.peers[0].label})
        hosts = len({peer.place for peer in self.peers.values()})
        what = f"{self.me.world_size} ranks came, from {hosts} {'host' if hosts == 1 else 'hosts'}"
        return Outcome(findings=(ok(what, seconds=round(time.monotonic() - began, 3)),))

    def _introduce(self, introductions: Mapping[int, dict[str, Any]]) -> None:
        """Make peers of what the ranks told; this one's address is that by which one from elsewhere came."""
        peers = {rank: peer_of(introduction_of_rank) for rank, introduction_of_rank in introductions.items()}
        place = introduction(self.me, None)["place"]
        foreign = [rank for rank, peer in peers.items() if peer.place != place]
        by = self.channels[(foreign or sorted(peers))[0]].connection if peers else None
        self.peers = {0: peer_of(introduction(self.me, by)), **dict(sorted(peers.items()))}

    def _absence(self, rank: int) -> str:
        """That a rank did not come, and of which node it is."""
        processes = self.me.facts.processes_here
        node = f", of node {rank // processes}" if processes < self.me.world_size else ""
        return f"rank {rank}{node} did not come within {self.timeout_seconds:g} s"

    def ask(self, asks: Mapping[int, Asked], *, limit_seconds: float) -> dict[int, dict[str, Any]]:
        """The answers of the ranks that are asked, by rank; raises Lost where one dies, hangs or is silent."""
        assert self.stage
        self._number += 1
        until = time.monotonic() + limit_seconds
        ranks = sorted(set(asks) - {0})
        lost: dict[int, str] = {}
        for rank in ranks:
            with contextlib.suppress(Gone):  # found out below
                self.channels[rank].send({"stage": self.stage.name, "number": self._number, "asked": dict(asks[rank])})
        answers = {0: done(self.stage, self.me, asks[0])} if 0 in asks else {}
        moment = time.monotonic()
        for rank in ranks:
            self.channels[rank].heard = moment
        waiting = set(ranks)
        while waiting:
            for rank in sorted(waiting):
                if answer := self._answer_of(rank, lost, until=max(until, moment + GRACE_SECONDS)):
                    answers[rank] = answer
            waiting -= set(answers) | set(lost)
            if waiting:
                select.select([self.channels[rank].connection for rank in waiting], [], [], POLL_SECONDS)
        if lost:
            raise Lost(lost)
        return answers

    def _answer_of(self, rank: int, lost: dict[int, str], *, until: float) -> dict[str, Any] | None:
        """The answer of a rank where it has come; what became of the rank is noted in `lost`."""
        channel, moment = self.channels[rank], time.monotonic()
        try:
            channel.fill(0)
            while message := channel.take():
                if message.get("number") == self._number:
                    return message["answer"]
        except Gone:
            lost[rank] = f"{self.peers[rank].label} died: its connection ended"
            return None
        if moment > channel.heard + channel.silent_seconds:
            lost[rank] = (
                f"{self.peers[rank].label} is silent since {moment - channel.heard:.0f} s: stopped, hung or cut off"
            )
        elif moment > until:
            lost[rank] = f"{self.peers[rank].label} lives, and did not finish its part in time"
        return None

    def end(self, exit_code: int, what: list[str]) -> None:
        """Tell every rank that can be told how it ended, and leave."""
        self._beating.end()
        for channel in self.channels.values():
            with contextlib.suppress(Gone, OSError):
                channel.connection.settimeout(GRACE_SECONDS)
                channel.send({"end": exit_code, "what": what})
                channel.connection.shutdown(socket.SHUT_WR)
        until = time.monotonic() + GRACE_SECONDS
        for channel in self.channels.values():  # a member closes when it has read; the store is theirs until then
            with contextlib.suppress(Gone):
                while time.monotonic() < until:
                    channel.fill(until - time.monotonic())
            channel.close()


def absences(lost: Lost) -> Outcome:
    """An error for each rank that was lost."""
    remedy = "see its log and its host; start net-check again without them to look at the rest"
    findings = tuple(error(how, remedy=remedy) for _, how in sorted(lost.how.items()))
    return Outcome(findings=findings)
