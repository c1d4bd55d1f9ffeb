"""Processes that share one model by FSDP2 watch one another as those of DDP do, though each pass waits for all of them.

Two forked processes (gloo on the CPU), or two hosts (network namespaces) with a cable between them.
"""

from __future__ import annotations

import os
import re
import signal
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from faults.forking import Forking
from faults.pairs import SAVE_EVERY, SLOW, STEPS, Pair, Start, adapter, arguments, begun, cut, lines, read, two_hosts

from loradock.errors import EnvironmentUnfit, Hung

PEER_SECONDS = 5.0
SLACK_SECONDS = 20.0
"""Two reports, the naming and the record, on a machine that others use."""
SHARDED = ("train.parallel=fsdp", f"limits.peer_seconds={PEER_SECONDS}")
PASS = """
import os, subprocess, sys, time
from loradock.training.backends.fsdp.backend import FsdpBackend
real = FsdpBackend.forward_backward
is_second = os.environ["RANK"] == "1"
def forward_backward(self, batch, *, scale, at):
    {fault}
    return real(self, batch, scale=scale, at=at)
FsdpBackend.forward_backward = forward_backward
"""
"""Something happens in a pass of rank 1."""
LATE = PASS.format(fault="while is_second and at.step == 5: time.sleep(60)")
SLEEPY = PASS.format(fault="time.sleep(0.3 * is_second)")
HOGGED = """
import os, subprocess, sys
is_second = os.environ["RANK"] == "1"
os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[is_second]})
hog = "import os; parent = os.getppid()\\nwhile os.getppid() == parent: pass"
for _ in range(3 * is_second): subprocess.Popen([sys.executable, "-c", hog])
"""
"""Each rank has a CPU, and rank 1 shares its own with three other processes."""


BY_TOKENS = """
import time
from loradock.training.backends.fast.backend import FastBackend
real = FastBackend.forward_backward
def forward_backward(self, batch, **more):
    time.sleep(0.003 * batch.tokens)
    return real(self, batch, **more)
FastBackend.forward_backward = forward_backward
"""


@pytest.fixture
def start(llama: Path, rows: Path, forking: Forking) -> Start:
    def begin(folder: Path, *settings: str, **more: object) -> Pair:
        words = arguments(llama, rows, *SHARDED, *settings, engine="auto")
        return begun(forking, folder, words, **more)  # type: ignore[arg-type]

    return begin


@dataclass(frozen=True)
class Left:
    """What a finished run leaves: it is the same, to the last bit, however often it was cut off."""

    adapter: bytes
    losses: list[float]


def left(folder: Path) -> Left:
    return Left(adapter(folder), [line["loss"] for line in lines(folder, "train")])


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, llama: Path, rows: Path, forking: Forking) -> Left:
    folder = tmp_path_factory.mktemp("undisturbed")
    pair = begun(forking, folder, arguments(llama, rows, *SHARDED, engine="auto"))
    assert pair.finish() == [0, 0], pair.text()
    return left(folder)


def seconds_to_end(pair: Pair, rank: int = 0) -> float:
    began = time.monotonic()
    pair.ranks[rank].finish(seconds=120)
    return time.monotonic() - began


def continued(pair: Pair) -> Left:
    assert pair.finish() == [0] * len(pair.ranks), pair.text()
    assert "continuing from checkpoint-" in pair.text()
    return left(pair.folder)


def test_a_process_that_is_killed_is_named_by_the_other(tmp_path: Path, start: Start) -> None:
    pair = start(tmp_path, code=SLOW)
    assert pair.reached(2), pair.text()
    pair.ranks[1].send(signal.SIGKILL)
    assert seconds_to_end(pair) < PEER_SECONDS + SLACK_SECONDS
    assert pair.ranks[0].ended() == EnvironmentUnfit.exit_code, pair.text()
    assert f"of this run has ended, or cannot be reached: rank 1 on {os.uname().nodename}" in (pair.ranks[0].text())


@pytest.mark.full
@pytest.mark.parametrize("killed", [0, 1])
def test_a_run_whose_process_was_killed_continues_to_the_same_bits(
    killed: int, tmp_path: Path, start: Start, undisturbed: Left
) -> None:
    pair = start(tmp_path, code=SLOW)
    assert pair.reached(SAVE_EVERY + 1), pair.text()
    pair.ranks[killed].send(signal.SIGKILL)
    assert seconds_to_end(pair, 1 - killed) < PEER_SECONDS + SLACK_SECONDS
    assert pair.ranks[1 - killed].ended() == EnvironmentUnfit.exit_code, pair.text()
    assert re.search(rf"error: another rank .*: rank {killed} on \S+; silent for", pair.ranks[1 - killed].text())
    assert continued(start(tmp_path)) == undisturbed


@pytest.mark.full
def test_a_process_that_is_stopped_is_named_and_the_run_continues_to_the_same_bits(
    tmp_path: Path, start: Start, undisturbed: Left
) -> None:
    pair = start(tmp_path, code=SLOW)
    assert pair.reached(SAVE_EVERY + 1), pair.text()
    pair.ranks[1].send(signal.SIGSTOP)
    took = seconds_to_end(pair)
    pair.ranks[1].send(signal.SIGKILL)
    assert PEER_SECONDS - 1 < took < PEER_SECONDS + SLACK_SECONDS
    assert pair.ranks[0].ended() == Hung.exit_code, pair.text()
    assert f"error: no heartbeat from rank 1 on {os.uname().nodename} for" in pair.ranks[0].text()
    assert continued(start(tmp_path)) == undisturbed


@pytest.mark.full
def test_a_process_that_is_late_in_a_pass_is_named_by_all_and_by_itself(tmp_path: Path, start: Start) -> None:
    pair = start(tmp_path, code=LATE)
    assert pair.finish() == [Hung.exit_code] * 2, pair.text()
    for rank in pair.ranks:
        assert re.search(r"error: rank 1 on \S+ made no progress for \d+ s after step 5", rank.text())
    assert "in forward_backward\n" in pair.ranks[1].text()


@pytest.mark.full
@pytest.mark.parametrize("fault", [SLEEPY, HOGGED], ids=["asleep", "short of CPU"])
def test_a_slow_process_is_named_though_all_wait_for_it_at_each_layer(fault: str, tmp_path: Path, start: Start) -> None:
    pair = start(tmp_path, code=fault)
    assert pair.finish() == [0, 0], pair.text()
    host = os.uname().nodename
    seconds = [line["rank_seconds"] for line in lines(tmp_path, "train")]
    assert len(seconds) == STEPS
    assert statistics.median(each[f"1@{host}"] / each[f"0@{host}"] for each in seconds[1:]) > 1.5
    alert = next(each for each in read(tmp_path, "run.json")["alerts"] if each["name"] == "straggler")
    assert re.match(rf"rank 1 on {host} takes \d+ % longer than the others", alert["what"])
    assert f"alert: rank 1 on {host} takes" in pair.text()


@pytest.mark.full
def test_a_process_with_more_tokens_than_the_other_is_no_straggler(
    tmp_path: Path, llama: Path, rows: Path, forking: Forking
) -> None:
    """Packs are filled one after the other, so that rank 0 has more; time is that of the tokens here."""
    words = arguments(llama, rows, "train.packing=true", "train.micro_batch=4", "data.max_length=48", engine="fast")
    pair = begun(forking, tmp_path, words, code=BY_TOKENS)
    assert pair.finish() == [0, 0], pair.text()
    host = os.uname().nodename
    seconds = [line["rank_seconds"] for line in lines(tmp_path, "train")]
    assert 0.85 < statistics.median(each[f"1@{host}"] / each[f"0@{host}"] for each in seconds) < 1.15
    assert "longer than the others" not in pair.text()


@pytest.mark.full
def test_a_cut_cable_ends_both_hosts_and_the_run_continues_to_the_same_bits(
    tmp_path: Path, start: Start, undisturbed: Left
) -> None:
    with two_hosts() as hosts:
        pair = start(tmp_path, code=SLOW, hosts=hosts)
        assert pair.reached(SAVE_EVERY + 1), pair.text()
        cut(hosts[1])
        assert seconds_to_end(pair) < PEER_SECONDS + SLACK_SECONDS
        assert pair.finish() == [Hung.exit_code] * 2, pair.text()
        for rank, other in ((0, 1), (1, 0)):
            assert f"no heartbeat from rank {other} on {hosts[other]}" in pair.ranks[rank].text()
    with two_hosts() as hosts:
        assert continued(start(tmp_path, hosts=hosts)) == undisturbed


@pytest.mark.full
def test_a_host_that_is_killed_is_named_with_all_its_processes_and_the_run_continues_to_the_same_bits(
    tmp_path: Path, start: Start
) -> None:
    with two_hosts() as hosts:
        whole = start(tmp_path / "whole", hosts=hosts, count=4)
        assert whole.finish() == [0] * 4, whole.text()
    with two_hosts() as hosts:
        pair = start(tmp_path / "cut", code=SLOW, hosts=hosts, count=4)
        assert pair.reached(SAVE_EVERY + 1), pair.text()
        for rank in pair.ranks[2:]:
            rank.send(signal.SIGKILL)
        assert seconds_to_end(pair) < PEER_SECONDS + SLACK_SECONDS
        assert [rank.finish() for rank in pair.ranks[:2]] == [EnvironmentUnfit.exit_code] * 2, pair.text()
        assert re.search(rf"error: another rank .*: ranks? (2|3|2, 3) on {hosts[1]}; silent for", pair.ranks[0].text())
    with two_hosts() as hosts:
        assert continued(start(tmp_path / "cut", hosts=hosts, count=4)) == left(tmp_path / "whole")


@pytest.mark.full
def test_over_two_hosts_the_losses_are_those_of_one_process(
    tmp_path: Path, start: Start, llama: Path, rows: Path, forking: Forking
) -> None:
    """Of the same global batch, by an engine that shares no model code with the sharded one."""
    single = begun(forking, tmp_path / "single", arguments(llama, rows, "lora.dropout=0", engine="fast"), count=1)
    assert single.finish() == [0], single.text()
    with two_hosts() as hosts:
        pair = start(tmp_path / "pair", "lora.dropout=0", hosts=hosts)
        assert pair.finish() == [0, 0], pair.text()
    one, two = left(tmp_path / "single").losses, left(tmp_path / "pair").losses
    assert len(one) == STEPS
    assert two == pytest.approx(one, rel=1e-5)


@pytest.mark.full
def test_a_run_of_the_reference_engine_names_the_process_that_is_killed(
    tmp_path: Path, llama: Path, rows: Path, forking: Forking
) -> None:
    words = arguments(llama, rows, f"limits.peer_seconds={PEER_SECONDS}", "train.parallel=ddp", engine="peft")
    pair = begun(forking, tmp_path, words, code=SLOW)
    assert pair.reached(2), pair.text()
    pair.ranks[1].send(signal.SIGKILL)
    assert seconds_to_end(pair) < PEER_SECONDS + SLACK_SECONDS
    assert pair.ranks[0].ended() == EnvironmentUnfit.exit_code, pair.text()
    assert re.search(r"error: another rank .*: rank 1 on \S+; silent for", pair.ranks[0].text())
