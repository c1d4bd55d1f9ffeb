"""Two that watch one another within one process, over a real store: what they hear, and that nothing of them stays."""

from __future__ import annotations

import threading
import time

import pytest
from torch.distributed import TCPStore

from loradock.distributed.failure import Report
from loradock.distributed.heartbeat import TELL_SECONDS, Peers
from loradock.distributed.rendezvous import Meeting
from loradock.distributed.watchdog import LATE_SECONDS
from loradock.errors import DataError

HEARD_SECONDS = 30.0


@pytest.fixture
def both() -> list[Peers]:
    """Ranks 0 and 1, neither of which has begun."""
    keeper = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    ways = [keeper, TCPStore("127.0.0.1", keeper.port, is_master=False, wait_for_workers=False)]
    return [
        Peers(Meeting(group=None, reports=way, hosts=("a", "b"), seal=Seal()), rank=rank, limit_seconds=300)
        for rank, way in enumerate(ways)
    ]


def threads() -> list[str]:
    """Those of peers that are alive."""
    return [each.name for each in threading.enumerate() if each.name.startswith("peers-")]


def test_one_that_left_tells_and_judges_no_more(both: list[Peers]) -> None:
    for each in both:
        each.start()
    assert len(threads()) == 4
    for each in reversed(both):
        each.leave(None)
    until = time.monotonic() + HEARD_SECONDS
    while threads() and time.monotonic() < until:
        time.sleep(0.05)
    assert threads() == []


def test_the_last_word_of_one_is_heard_by_the_other(both: list[Peers]) -> None:
    for each in both:
        each.start()
    both[1].leave(DataError("rows.jsonl:7: not a row"))
    error = both[0].blamed()
    both[0].leave(error, is_told=True)
    assert isinstance(error, DataError)
    assert "rank 1 on b, while setting up: rows.jsonl:7: not a row" in error.what


def test_many_short_waits_are_not_told_as_one_long_one() -> None:
    """A fast process waits for a slow one nearly all the time: whoever looks now and then hardly sees it elsewhere."""
    keeper = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    alone = Peers(Meeting(group=None, reports=keeper, hosts=("a",), seal=Seal()), rank=0, limit_seconds=300)
    alone.start()

    def told_after(waits: int, seconds: float) -> float:
        for _ in range(waits):
            with alone.waiting():
                time.sleep(seconds)
        return Report.of(keeper.get("0")).waiting_seconds

    assert told_after(50, 0.1) < 2 * LATE_SECONDS
    assert told_after(1, 3 * TELL_SECONDS) > TELL_SECONDS
    alone.leave(None)
