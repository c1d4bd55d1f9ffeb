"""A stranger on the network of a run: another host's process that reaches what the run opens, and speaks up there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from faults.forking import Command, Forking
from faults.pairs import MOVE, PORT, SLOW, Pair, adapter, arguments, begun, two_hosts

from loradock.errors import Diverged

pytestmark = pytest.mark.thin(2)

SECRET = "known to the ranks, and not to a stranger"
SLOWER = SLOW.replace("0.2", "1.0")
"""So slow that a stranger who begins at the second step has spoken before the last."""
LOOKS = """
import sys
from datetime import timedelta
from torch.distributed import PrefixStore, TCPStore
def store(host):
    return PrefixStore("reports/0", TCPStore(host, {port}, is_master=False, timeout=timedelta(seconds=2)))
"""
READS = (
    LOOKS
    + """
try: print("read:", store("{address}").multi_get(["0", "1"]))
except RuntimeError as failure: print("not read:", type(failure).__name__)
sys.exit()
"""
)
# What it says of rank 1 is what `Diverged` of rank 1 would say, in the place of what rank 1 says, until the run ends.
# It is said again at once: rank 0 may read right after rank 1 spoke, each time.
FORGES = (
    LOOKS
    + """
import time
from loradock.distributed.failure import Report
from loradock.distributed.seal import Seal
words = Report(rank=1, host="b", count=10**6, code=79, what="training diverged").as_bytes()
way, said = store("10.77.0.1"), 0
try:
    while True:
        way.set("1", Seal(key={key!r}, start="0").close("1", words))
        said += 1
        time.sleep(0.002)
except RuntimeError:
    print("said", said, "times")
sys.exit()
"""
)


@pytest.fixture
def words(llama: Path, rows: Path) -> list[str]:
    return arguments(llama, rows, "limits.peer_seconds=20", engine="fast")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, llama: Path, rows: Path, forking: Forking) -> bytes:
    """The adapter of the two-process run that nobody disturbs."""
    folder = tmp_path_factory.mktemp("undisturbed")
    pair = begun(forking, folder, arguments(llama, rows, engine="fast"))
    assert pair.finish() == [0, 0], pair.text()
    return adapter(folder)


@pytest.fixture
def running() -> Iterator[list[Pair]]:
    """None of them outlives its test."""
    pairs: list[Pair] = []
    yield pairs
    for pair in pairs:
        pair.kill()


def stranger(forking: Forking, folder: Path, host: str, code: str, **given: object) -> Command:
    """A process of that host that does what `code` says."""
    return forking.start(folder, code=MOVE.format(host=host) + code.format(port=PORT, **given))


def test_the_store_of_a_run_on_one_node_cannot_be_reached_from_another_host(
    tmp_path: Path, words: list[str], forking: Forking, running: list[Pair]
) -> None:
    with two_hosts() as (own, other):
        run = begun(forking, tmp_path, words, code=SLOWER, hosts=(own, own), MASTER_ADDR="127.0.0.1")
        running.append(run)
        assert run.reached(2), run.text()
        within = stranger(forking, tmp_path, own, READS, address="127.0.0.1")
        within.finish()
        assert "\nread: [" in within.text()  # it is there
        beyond = stranger(forking, tmp_path, other, READS, address="10.77.0.1")
        beyond.finish()
        assert "not read: " in beyond.text()
        assert run.finish() == [0, 0], run.text()


@pytest.mark.parametrize("key", [b"", b"another secret, guessed wrongly"])
def test_what_a_stranger_says_in_the_name_of_a_rank_ends_no_run_with_a_secret(
    key: bytes, tmp_path: Path, words: list[str], forking: Forking, running: list[Pair], undisturbed: bytes
) -> None:
    with two_hosts() as hosts:
        running.append(begun(forking, tmp_path, words, code=SLOWER, hosts=hosts, LORADOCK_RUN_SECRET=SECRET))
        assert running[0].reached(2), running[0].text()
        speaker = stranger(forking, tmp_path, hosts[1], FORGES, key=key)
        assert running[0].finish() == [0, 0], running[0].text()
        speaker.finish()
        assert re.search(r"^said [1-9]\d* times$", speaker.text(), re.MULTILINE), speaker.text()
    assert "a report in the name of rank 1 is malformed, or not signed" in running[0].text()
    assert adapter(tmp_path) == undisturbed


def test_the_same_words_end_a_run_without_a_secret(
    tmp_path: Path, words: list[str], forking: Forking, running: list[Pair]
) -> None:
    with two_hosts() as hosts:
        longer = [*words, "--set", "train.max_steps=60"]  # so that it is spoken to while it trains
        running.append(begun(forking, tmp_path, longer, code=SLOWER, hosts=hosts))
        assert running[0].reached(2), running[0].text()
        speaker = stranger(forking, tmp_path, hosts[1], FORGES, key=b"")
        assert running[0].ranks[0].finish() == Diverged.exit_code, running[0].text()
        speaker.finish()
