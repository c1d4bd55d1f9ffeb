"""Processes of one run watch one another: the one that is gone, silent or late is named by the others, which end.

Two forked processes (gloo on the CPU); those on two hosts live in two network namespaces with a cable between them.
The judgement itself, a pure function, is looked at in tests/training/test_peer_reports.py.
"""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from faults.forking import Forking
from faults.pairs import (
    ENDS_SECONDS,
    SAVE_EVERY,
    SLOW,
    STEPS,
    Pair,
    Start,
    adapter,
    arguments,
    begun,
    cut,
    free_port,
    lines,
    read,
    two_hosts,
)

from loradock.errors import Diverged, EnvironmentUnfit, Hung, Interrupted, Stopped

PEER_SECONDS = 5.0
LIMITED = f"limits.peer_seconds={PEER_SECONDS}"

LATE = """
import os, time
from loradock.training.loop import Loop
real = Loop.make_step
def make_step(self, inputs):
    while os.environ["RANK"] == "1" and self.step == 5: time.sleep(60)
    return real(self, inputs)
Loop.make_step = make_step
"""
DIVERGES = """
import os, time
from loradock.training import guards
from loradock.training.loop import Loop
real = Loop.make_step
def make_step(self, inputs):
    if os.environ["RANK"] == "1" and self.step == 5: raise guards.diverged(6, "the loss is nan")
    return real(self, inputs)
Loop.make_step = make_step
"""
SLOWER = f"""
import os, time
from loradock.training.backends.fast.backend import FastBackend
from loradock.model import export
real = FastBackend.micro_batches
def micro_batches(self, inputs, kind):
    time.sleep(0.6 if os.environ["RANK"] == "1" else 0)
    return real(self, inputs, kind)
FastBackend.micro_batches = micro_batches
write = export.export
def slowly(*rest, **more):
    time.sleep({PEER_SECONDS + 2})  # rank 1 waits for rank 0 all the while, and that is right
    return write(*rest, **more)
export.export = slowly
"""
SLOWER_PEFT = """
import os, time
from loradock.training.backends.peft.backend import PeftBackend
real = PeftBackend.forward_backward
def forward_backward(self, *rest, **more):
    time.sleep(0.3 if os.environ["RANK"] == "1" else 0)
    return real(self, *rest, **more)
PeftBackend.forward_backward = forward_backward
"""
FAILS_FIRST = """
import os
from loradock.training import inputs
from loradock.errors import DataError
def refuse(*rest, **more): raise DataError("rows.jsonl:7: not a row")
if os.environ["RANK"] == "0": inputs.prepare_corpus = refuse
"""


@pytest.fixture
def start(llama: Path, rows: Path, forking: Forking) -> Iterator[Start]:
    """Starts pairs; none outlives its test."""
    pairs: list[Pair] = []

    def begin(folder: Path, *settings: str, engine: str = "fast", **more: object) -> Pair:
        words = arguments(llama, rows, LIMITED, *settings, engine=engine)
        pairs.append(begun(forking, folder, words, **more))  # type: ignore[arg-type]
        return pairs[-1]

    yield begin
    for pair in pairs:
        pair.kill()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, llama: Path, rows: Path, forking: Forking) -> bytes:
    """The adapter of the two-process run that nobody disturbs."""
    folder = tmp_path_factory.mktemp("undisturbed")
    pair = begun(forking, folder, arguments(llama, rows, engine="fast"))
    assert pair.finish() == [0, 0], pair.text()
    return adapter(folder)


def wait_for_end(pair: Pair, rank: int = 0) -> float:
    """Returns the seconds that it took; fails where it does not come."""
    began = time.monotonic()
    pair.ranks[rank].finish(seconds=ENDS_SECONDS)
    return time.monotonic() - began


@pytest.mark.thin(4)
def test_a_process_that_is_stopped_is_named_and_the_same_command_continues_to_the_same_bits(
    tmp_path: Path, start: Start, undisturbed: bytes
) -> None:
    pair = start(tmp_path, code=SLOW)
    assert pair.reached(SAVE_EVERY + 1), pair.text()
    pair.ranks[1].send(signal.SIGSTOP)
    took = wait_for_end(pair)
    code = pair.ranks[0].ended()
    pair.ranks[1].send(signal.SIGKILL)
    host = os.uname().nodename
    assert code == Hung.exit_code, pair.text()
    assert took > PEER_SECONDS - 1
    assert f"error: no heartbeat from rank 1 on {host} for" in pair.ranks[0].text()
    assert re.search(r"its last report: (training|saving), after step \d", pair.ranks[0].text())
    assert (read(tmp_path, "status.json")["state"], read(tmp_path, "status.json")["exit_code"]) == (
        "failed",
        Hung.exit_code,
    )
    again = start(tmp_path)
    assert again.finish() == [0, 0], again.text()
    assert "continuing from checkpoint-" in again.text()
    assert adapter(tmp_path) == undisturbed


def test_a_process_that_is_killed_is_named_at_once_where_the_launcher_says_so(tmp_path: Path, start: Start) -> None:
    words = tmp_path / "words"
    words.mkdir()
    pair = start(tmp_path, "limits.peer_seconds=600", code=SLOW, LORADOCK_LAST_WORDS=str(words))
    assert pair.reached(2), pair.text()
    pair.ranks[1].send(signal.SIGKILL)
    (words / "1.json").write_text(json.dumps({"code": 137, "what": "was killed by SIGKILL"}))
    wait_for_end(pair)
    assert pair.ranks[0].ended() == read(tmp_path, "status.json")["exit_code"] == 137, "what the launcher ends with"
    assert re.search(r"another rank .*: rank 1 on \S+, last heard of .*: was killed by SIGKILL", pair.ranks[0].text())
    assert (words / "0.peer").exists(), "the launcher must not take it for the one that failed"


@pytest.mark.thin(4)
def test_the_keeper_of_the_store_is_named_where_it_is_killed(tmp_path: Path, start: Start) -> None:
    pair = start(tmp_path, code=SLOW)
    assert pair.reached(2), pair.text()
    pair.ranks[0].send(signal.SIGKILL)
    wait_for_end(pair, 1)
    assert pair.ranks[1].ended() == EnvironmentUnfit.exit_code
    assert re.search(r"error: another rank .*: rank 0 on \S+; silent for", pair.ranks[1].text())


@pytest.mark.thin(4)
def test_a_process_that_is_late_is_named_by_all_and_by_itself_with_its_stacks(tmp_path: Path, start: Start) -> None:
    pair = start(tmp_path, code=LATE)
    assert pair.finish(seconds=ENDS_SECONDS) == [Hung.exit_code] * 2, pair.text()
    for rank in pair.ranks:
        assert re.search(r"error: rank 1 on \S+ made no progress for \d+ s after step 5", rank.text())
    assert "in make_step\n" in pair.ranks[1].text()
    assert "in make_step\n" not in pair.ranks[0].text()


@pytest.mark.thin(4)
def test_an_error_of_one_process_is_the_end_of_all_with_its_exit_code(tmp_path: Path, start: Start) -> None:
    pair = start(tmp_path, code=DIVERGES)
    assert pair.finish(seconds=ENDS_SECONDS) == [Diverged.exit_code] * 2, pair.text()
    assert re.search(r"another rank .*: rank 1 on \S+, after step 5: .*the loss is nan", pair.ranks[0].text())
    assert read(tmp_path, "status.json")["exit_code"] == Diverged.exit_code


@pytest.mark.parametrize(("level", "lines_of_gloo"), [("WARNING", 0), ("INFO", 2)])
def test_data_that_rank_0_refuses_end_all_with_65_and_gloo_talks_where_it_is_asked_to(
    level: str, lines_of_gloo: int, tmp_path: Path, start: Start
) -> None:
    pair = start(tmp_path, code=FAILS_FIRST, TORCH_CPP_LOG_LEVEL=level)
    assert pair.finish(seconds=ENDS_SECONDS) == [65, 65], pair.text()
    assert re.search(r"rank 0 on \S+, while setting up: rows.jsonl:7: not a row", pair.ranks[1].text())
    assert pair.text().count("[Gloo] Rank ") == lines_of_gloo


@pytest.mark.thin(4)
def test_a_process_whose_data_worker_a_signal_ended_too_saves_nothing_alone(
    tmp_path: Path, start: Start, undisturbed: bytes
) -> None:
    """A scheduler that signals every process of a job; the other rank is in its step, and would not come to save."""
    pair = start(tmp_path, "train.workers=1", code=SLOW)
    assert pair.reached(SAVE_EVERY + 2), pair.text()
    workers = pair.ranks[1].left()
    assert workers
    pair.ranks[1].send(signal.SIGTERM)
    for worker in workers:
        os.kill(worker, signal.SIGTERM)
    codes = pair.finish(seconds=ENDS_SECONDS)
    assert codes[1] == Stopped.exit_code, pair.text()
    assert f"stopped by SIGTERM; step {SAVE_EVERY} is committed" in pair.ranks[1].text()
    assert codes[0] != 0
    again = start(tmp_path, "train.workers=1")
    assert again.finish() == [0, 0], again.text()
    assert f"continuing from checkpoint-{SAVE_EVERY}" in again.text()
    assert adapter(tmp_path) == undisturbed


@pytest.mark.thin(4)
def test_each_process_may_have_a_cache_of_its_own(tmp_path: Path, start: Start, undisturbed: bytes) -> None:
    pair = start(tmp_path, code="import os; os.environ['LORADOCK_CACHE'] += os.environ['RANK']")
    assert pair.finish() == [0, 0], pair.text()
    assert adapter(tmp_path) == undisturbed
    assert all(list((tmp_path / f"cache{rank}").glob("*")) for rank in range(2))


@pytest.mark.thin(4)
def test_a_signal_to_one_process_stops_all_at_the_same_step(tmp_path: Path, start: Start, undisturbed: bytes) -> None:
    pair = start(tmp_path, code=SLOW)
    assert pair.reached(SAVE_EVERY + 1), pair.text()
    pair.ranks[1].send(signal.SIGTERM)
    assert pair.finish() == [75, 75], pair.text()
    steps = [re.search(r"step (\d+) is committed", rank.text()) for rank in pair.ranks]
    assert steps[0]
    assert steps[1]
    assert steps[0][1] == steps[1][1]
    again = start(tmp_path)
    assert again.finish() == [0, 0], again.text()
    assert adapter(tmp_path) == undisturbed


def test_a_process_that_never_comes_is_named(tmp_path: Path, llama: Path, rows: Path, forking: Forking) -> None:
    words = arguments(llama, rows, "limits.setup_seconds=2", engine="fast")
    pair = begun(forking, tmp_path, words, WORLD_SIZE="3")
    codes = pair.finish(seconds=ENDS_SECONDS)
    assert codes[0] == Hung.exit_code
    assert codes[1] in (Hung.exit_code, EnvironmentUnfit.exit_code), "rank 0 may have left before its own time was up"
    assert "error: rank 2 of 3 did not join at 127.0.0.1:" in pair.ranks[0].text()


@pytest.mark.parametrize(
    ("host", "what"),
    [
        ("127.0.0.1", "connection refused: rank 0 is not running there"),
        ("no-such-host.invalid", "the host name cannot be resolved"),
    ],
)
def test_where_rank_0_does_not_answer_it_is_said_what_stands_in_between(
    host: str, what: str, tmp_path: Path, llama: Path, rows: Path, forking: Forking
) -> None:
    words = arguments(llama, rows, "limits.setup_seconds=1", engine="fast")
    place = {"WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "1", "MASTER_ADDR": host, "MASTER_PORT": str(free_port())}
    alone = forking.start(tmp_path, *words, **place)
    assert alone.finish(seconds=ENDS_SECONDS) == Hung.exit_code, alone.text()
    assert f"error: rank 0 does not answer at {host}:{place['MASTER_PORT']}: {what}" in alone.text()


def test_a_signal_is_heard_by_one_that_waits_for_the_others_to_come(
    tmp_path: Path, llama: Path, rows: Path, forking: Forking
) -> None:
    pair = begun(forking, tmp_path, arguments(llama, rows, engine="fast"), WORLD_SIZE="3")
    assert pair.launcher[0].wait_until(lambda: "environment: not checked" in pair.text(), seconds=ENDS_SECONDS)
    for rank in pair.ranks:
        rank.send(signal.SIGTERM)
    assert pair.finish(seconds=ENDS_SECONDS) == [Interrupted.exit_code] * 2, pair.text()


@pytest.mark.thin(4)
@pytest.mark.parametrize(
    ("engine", "code"), [("fast", SLOWER), pytest.param("peft", SLOWER_PEFT, marks=pytest.mark.full)]
)
def test_a_slow_process_is_named_and_the_run_goes_on(engine: str, code: str, tmp_path: Path, start: Start) -> None:
    pair = start(tmp_path, engine=engine, code=code)
    assert pair.finish() == [0, 0], pair.text()
    host = os.uname().nodename
    made = [line["rank_seconds"] for line in lines(tmp_path, "train")]
    assert len(made) == STEPS
    assert all(each.keys() == {f"0@{host}", f"1@{host}"} for each in made)
    alert = next(each for each in read(tmp_path, "run.json")["alerts"] if each["name"] == "straggler")
    assert re.match(rf"rank 1 on {host} takes \d+ % longer than the others", alert["what"])
    assert f"alert: rank 1 on {host} takes" in pair.text()


@pytest.mark.thin(4)
@pytest.mark.parametrize("fault", ["cut cable", pytest.param("host killed", marks=pytest.mark.full)])
def test_on_two_hosts_the_one_that_is_lost_is_named_and_the_run_continues_to_the_same_bits(
    fault: str, tmp_path: Path, start: Start, undisturbed: bytes
) -> None:
    with two_hosts() as hosts:
        pair = start(tmp_path, code=SLOW, hosts=hosts)
        assert pair.reached(SAVE_EVERY + 1), pair.text()
        if fault == "cut cable":
            cut(hosts[1])
        else:
            pair.ranks[1].send(signal.SIGKILL)
        wait_for_end(pair)
        assert f"rank 1 on {hosts[1]}" in pair.ranks[0].text()
        if fault == "cut cable":
            assert pair.finish(seconds=ENDS_SECONDS) == [Hung.exit_code] * 2, pair.text()
            assert f"no heartbeat from rank 0 on {hosts[0]}" in pair.ranks[1].text()
        else:
            assert pair.ranks[0].ended() == EnvironmentUnfit.exit_code
    with two_hosts() as hosts:
        again = start(tmp_path, hosts=hosts)
        assert again.finish() == [0, 0], again.text()
    assert "continuing from checkpoint-" in again.text()
    assert adapter(tmp_path) == undisturbed
