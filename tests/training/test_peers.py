"""Two that watch one another within one process, over a real store: what they hear, and that nothing of them stays."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from torch.distributed import TCPStore

from loradock.distributed import heartbeat
from loradock.distributed.failure import Report
from loradock.distributed.heartbeat import TELL_SECONDS, Peers
from loradock.distributed.rendezvous import Meeting
from loradock.distributed.seal import Seal
from loradock.distributed.watchdog import LATE_SECONDS
from loradock.errors import DataError, LoradockError

HEARD_SECONDS, QUICK_SECONDS = 30.0, 0.2


class Watched:
    """A way to the store. While `words` are set, each look finds them as rank 1's: a stranger always wrote last."""

    def __init__(self, way: Any) -> None:
        self.way, self.words, self.looks = way, None, 0

    def set(self, key: str, value: bytes) -> None:
        self.way.set(key, value)

    def multi_get(self, keys: list[str]) -> list[bytes]:
        self.looks += 1
        found = self.way.multi_get(keys)
        looked = zip(keys, found, strict=True)
        return [self.words if self.words is not None and key == "1" else each for key, each in looked]


def wait_for(is_so: Callable[[], bool]) -> None:
    until = time.monotonic() + HEARD_SECONDS
    while not is_so():
        assert time.monotonic() < until
        time.sleep(0.02)


WARNING = "in the name of rank 1 is malformed, or not signed with the secret of this run: not counted"
SEAL = Seal(key=b"a secret of sixteen", start="0")


@pytest.fixture
def store() -> TCPStore:
    return TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> list[LoradockError]:
    """Reports come five times as often as in a run, and what would end this process is noted here."""
    noted: list[LoradockError] = []
    monkeypatch.setattr(heartbeat, "TELL_SECONDS", QUICK_SECONDS)
    monkeypatch.setattr(Peers, "_end", lambda _, error: noted.append(error))
    return noted


@pytest.fixture
def both(store: TCPStore) -> list[Peers]:
    """Ranks 0 and 1, neither of which has begun."""
    ways = [Watched(store), TCPStore("127.0.0.1", store.port, is_master=False, wait_for_workers=False)]
    return [
        Peers(Meeting(group=None, reports=way, hosts=("a", "b"), seal=SEAL), rank=rank, limit_seconds=300)
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


def forged(**said: Any) -> bytes:
    return Report(rank=1, host="b", count=10**6, code=79, what="training diverged", is_told=True, **said).as_bytes()


@pytest.mark.parametrize(
    "words",
    [
        forged(),
        Seal(key=b"another secret of theirs", start="0").close("1", forged()),
        Seal(key=SEAL.key, start="1").close("1", forged()),
        SEAL.close("0", forged()),
        b"",
        b"{}",
        b"\xff" * 4096,
    ],
)
def test_what_a_stranger_writes_in_the_name_of_a_rank_ends_nothing(
    both: list[Peers], words: bytes, ended: list[LoradockError], capfd: pytest.CaptureFixture[str]
) -> None:
    way: Any = both[0].store
    for each in both:
        each.start()
    wait_for(lambda: both[0].heard_of(1).count > 1)
    way.words = words
    wait_for(lambda: WARNING in capfd.readouterr().err)
    time.sleep(2 * QUICK_SECONDS)
    before = both[0].heard_of(1)
    assert (before.code, ended) == (None, [])
    way.words = None
    wait_for(lambda: both[0].heard_of(1).count > before.count)
    both[1].leave(DataError("rows.jsonl:7: not a row"))
    error = both[0].blamed()
    both[0].leave(error, is_told=True)
    assert isinstance(error, DataError)


def test_an_old_report_that_is_written_again_does_not_count(both: list[Peers], ended: list[LoradockError]) -> None:
    way: Any = both[0].store
    for each in both:
        each.start()
    old = way.way.get("1")
    wait_for(lambda: both[0].heard_of(1).count > 3)
    way.words, looks = old, way.looks
    wait_for(lambda: way.looks > looks + 2)
    heard = both[0].heard_of(1).count
    assert heard > 3
    wait_for(lambda: way.looks > looks + 5)
    assert both[0].heard_of(1).count == heard
    way.words = None
    for each in reversed(both):
        each.leave(None)
    assert ended == []


def test_without_a_secret_only_what_is_a_report_is_heard(store: TCPStore, ended: list[LoradockError]) -> None:
    stranger: Any = store
    way: Any = Watched(store)
    alone = Peers(Meeting(group=None, reports=way, hosts=("a", "b"), seal=Seal()), rank=0, limit_seconds=300)
    stranger.set("1", b"[1, 2]")
    alone.start()
    wait_for(lambda: way.looks > 1)
    assert alone.heard_of(1).count == 0
    stranger.set("1", Report(rank=1, host="b", count=3).as_bytes())
    wait_for(lambda: alone.heard_of(1).count == 3)
    alone.leave(None)
    assert ended == []


def test_many_short_waits_are_not_told_as_one_long_one() -> None:
    """A fast process waits for a slow one nearly all the time: whoever looks now and then hardly sees it elsewhere."""
    keeper = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    alone = Peers(Meeting(group=None, reports=keeper, hosts=("a",), seal=Seal()), rank=0, limit_seconds=300)
    alone.start()

    def told_after(waits: int, seconds: float) -> float:
        for _ in range(waits):
            with alone.waiting():
                time.sleep(seconds)
        report = Report.of(keeper.get("0"))
        assert report
        return report.waiting_seconds

    assert told_after(50, 0.1) < 2 * LATE_SECONDS
    assert told_after(1, 3 * TELL_SECONDS) > TELL_SECONDS
    alone.leave(None)
