"""net-check with real ranks on one machine: a healthy crew, and each fault that one of its ranks can have."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from env_check.cluster.ranks import Ranks, free_port, start
from faults.forking import ROOT, Forking

UNFIT = 71
QUICK = ("--only", "interface,clock,link,all-reduce")
AHEAD = "import time\nreal = time.time\ntime.time = lambda: real() + 7.5\n"
DIES = """
import os
from dataclasses import replace
import loradock.env_check.cluster as network
def die(me, asked):
    os._exit(9)
network.STAGES = tuple(replace(each, part=die) if each.name == "{stage}" else each for each in network.STAGES)
import loradock.env_check.cluster.net_check as page
page.STAGES = network.STAGES
"""
STOPS = DIES.replace("os._exit(9)", "os.kill(os.getpid(), 19)")
RAISES = DIES.replace("os._exit(9)", 'raise ValueError("out of sorts")')
BAD_VALUES = """
from loradock.env_check.cluster import collective
real = collective.values
def values(rank, size, name, *, device):
    made = real(rank, size, name, device=device)
    made[size // 2] += 1
    return made
collective.values = values
"""
BAD_SUMS = BAD_VALUES.replace("+= 1", "+= size != collective.EXCHANGED")
HANGS_ALONE = """
import time
from loradock.env_check.cluster import collective
collective.values = lambda *rest, **more: time.sleep(600)
"""


def one(ranks: Ranks) -> tuple[str, str, str]:
    """The only finding."""
    named = ranks.named()
    assert len(named) == 1, named
    return named[0]


def test_a_healthy_crew_has_nothing_named_and_ends_with_0(forking: Forking, tmp_path: Path) -> None:
    ranks = start(forking, tmp_path, *QUICK, ranks=(0, 1, 2))
    assert ranks.codes() == {0: 0, 1: 0, 2: 0}, ranks.text(0)
    assert ranks.named() == []
    content = ranks.content()
    assert (content["format"], content["world_size"], content["worst"]) == ("loradock.net-check/1", 3, "ok")
    assert [each["rank"] for each in content["ranks"]] == [0, 1, 2]
    by_name = {stage["stage"]: stage for stage in content["stages"]}
    assert list(by_name) == ["rendezvous", "interface", "clock", "link", "all-reduce"]
    pairs = {(row["from"], row["to"]) for row in by_name["link"]["rows"]}
    assert len(pairs) == 6
    assert all(row["mb_per_second"] > 1 for row in by_name["link"]["rows"])
    assert all(abs(row["offset_seconds"]) <= row["uncertainty_seconds"] for row in by_name["clock"]["rows"])


@pytest.mark.parametrize("wrong", [0, 1])
def test_the_wrong_clock_of_three_is_named(wrong: int, forking: Forking, tmp_path: Path) -> None:
    ranks = start(forking, tmp_path, "--only", "clock", "--strict", ranks=(0, 1, 2), codes={wrong: AHEAD})
    assert ranks.codes() == dict.fromkeys(range(3), UNFIT)
    stage, severity, what = one(ranks)
    assert (stage, severity) == ("clock", "warning")
    assert f"rank {wrong} (" in what
    assert "7.5 s ahead of the median of 3 clocks" in what


def test_a_warning_ends_with_0_unless_it_is_strict(forking: Forking, tmp_path: Path) -> None:
    ranks = start(forking, tmp_path, "--only", "clock", ranks=(0, 1), codes={1: AHEAD})
    assert ranks.codes() == {0: 0, 1: 0}
    assert "7.5 s ahead of that of rank 0" in one(ranks)[2]


def test_a_rank_that_does_not_come_is_named_with_its_node_and_the_others_end_in_time(
    forking: Forking, tmp_path: Path
) -> None:
    ranks = start(forking, tmp_path, "--timeout", "4", ranks=(0, 1, 2), world_size=4, local=2)
    assert ranks.codes(seconds=60) == dict.fromkeys(range(3), UNFIT)
    assert one(ranks) == ("rendezvous", "error", "rank 3, of node 1 did not come within 4 s")
    assert ranks.content()["left_out"] == ["interface", "clock", "link", "all-reduce", "node"]
    assert "rank 3, of node 1 did not come" in ranks.text(2), "the first rank of each node says why"


def test_where_rank_0_does_not_come_each_other_rank_says_where_it_looked(forking: Forking, tmp_path: Path) -> None:
    ranks = start(forking, tmp_path, "--timeout", "2", ranks=(1,), world_size=2)
    assert ranks.codes() == {1: UNFIT}
    assert "did not reach rank 0 at MASTER_ADDR 127.0.0.1" in ranks.text(1)
    assert "rank 0 is not running there" in ranks.text(1)


def test_a_name_that_nobody_knows_is_said(forking: Forking, tmp_path: Path) -> None:
    ranks = start(forking, tmp_path, "--timeout", "1", ranks=(1,), world_size=2, address="no-such-host.invalid")
    assert ranks.codes() == {1: UNFIT}
    assert "the host name cannot be resolved" in ranks.text(1)


def test_a_number_that_two_processes_have_is_named(forking: Forking, tmp_path: Path) -> None:
    ranks = start(forking, tmp_path, ranks=(0, 1, 2), codes={2: "import os\nos.environ['RANK'] = '1'"})
    codes = ranks.codes()
    assert codes[0] == UNFIT
    assert one(ranks)[2].startswith("rank 1 came twice")


def test_a_rank_that_dies_in_the_middle_is_named_and_what_is_left_out_is_said(forking: Forking, tmp_path: Path) -> None:
    ranks = start(forking, tmp_path, *QUICK, ranks=(0, 1, 2), codes={2: DIES.format(stage="link")})
    assert ranks.codes() == {0: UNFIT, 1: UNFIT, 2: 9}
    stage, _, what = one(ranks)
    assert stage == "link"
    assert what.startswith("rank 2 (")
    assert "died" in what
    assert ranks.content()["left_out"] == ["all-reduce"]


@pytest.mark.parametrize("stage", ["clock", pytest.param("link", marks=pytest.mark.full)])
def test_a_rank_that_is_stopped_is_named_within_the_timeout(stage: str, forking: Forking, tmp_path: Path) -> None:
    began = time.monotonic()
    ranks = start(forking, tmp_path, *QUICK, "--timeout", "5", ranks=(0, 1, 2), codes={1: STOPS.format(stage=stage)})
    assert {rank: ranks.commands[rank].finish(seconds=60) for rank in (0, 2)} == {0: UNFIT, 2: UNFIT}
    assert time.monotonic() - began < 60
    name, _, what = one(ranks)
    assert name == stage
    assert what.startswith("rank 1 (")
    assert "is silent" in what


@pytest.mark.parametrize(
    ("code", "said"), [(DIES, "died during"), pytest.param(STOPS, "was silent for 5 s during", marks=pytest.mark.full)]
)
def test_where_rank_0_dies_or_stops_the_others_name_it_and_end(
    code: str, said: str, forking: Forking, tmp_path: Path
) -> None:
    ranks = start(forking, tmp_path, *QUICK, "--timeout", "5", ranks=(0, 1, 2), codes={0: code.format(stage="link")})
    assert {rank: ranks.commands[rank].finish(seconds=60) for rank in (1, 2)} == {1: UNFIT, 2: UNFIT}
    for rank in (1, 2):
        assert "error: rank 0 (" in ranks.text(rank)
        assert said in ranks.text(rank)


def test_a_part_that_raises_is_an_answer_and_the_others_go_on(forking: Forking, tmp_path: Path) -> None:
    ranks = start(
        forking, tmp_path, "--only", "interface,clock", ranks=(0, 1), codes={1: RAISES.format(stage="interface")}
    )
    assert ranks.codes() == {0: UNFIT, 1: UNFIT}
    assert "ValueError" in one(ranks)[2]
    assert "rank 1 (" in one(ranks)[2]
    assert [stage["stage"] for stage in ranks.content()["stages"]] == ["rendezvous", "interface", "clock"]


def test_the_rank_whose_values_arrive_wrong_is_named(forking: Forking, tmp_path: Path) -> None:
    ranks = start(forking, tmp_path, "--only", "all-reduce", ranks=(0, 1, 2), codes={1: BAD_VALUES})
    assert ranks.codes() == dict.fromkeys(range(3), UNFIT)
    stage, _, what = one(ranks)
    assert stage == "all-reduce"
    assert what.startswith("gloo: the values of rank 1 (")
    assert what.endswith("arrive wrong")


def test_a_sum_that_is_wrong_is_found_where_all_values_arrive(forking: Forking, tmp_path: Path) -> None:
    ranks = start(forking, tmp_path, "--only", "all-reduce", ranks=(0, 1), codes={1: BAD_SUMS})
    assert ranks.codes() == {0: UNFIT, 1: UNFIT}
    assert "gloo fails on every rank" in one(ranks)[2]
    assert one(ranks)[2].endswith("the sum of 1 values of float32 is wrong")


def test_the_rank_that_holds_a_collective_up_is_named_though_its_process_lives(
    forking: Forking, tmp_path: Path
) -> None:
    ranks = start(forking, tmp_path, "--only", "all-reduce", "--timeout", "10", ranks=(0, 1, 2), codes={2: HANGS_ALONE})
    assert ranks.codes(seconds=60) == dict.fromkeys(range(3), UNFIT)
    what = one(ranks)[2]
    assert "rank 2 (" in what
    assert "had joined the group, and no more" in what


def test_an_interface_that_is_not_there_is_named(forking: Forking, tmp_path: Path) -> None:
    code = "import os\nos.environ['GLOO_SOCKET_IFNAME'] = 'ib7'"
    ranks = start(forking, tmp_path, "--only", "interface", ranks=(0, 1), codes={1: code})
    assert ranks.codes() == {0: UNFIT, 1: UNFIT}
    assert "GLOO_SOCKET_IFNAME is ib7, not an interface there" in one(ranks)[2]
    assert "rank 1 (" in one(ranks)[2]


def test_without_a_launcher_it_says_how_to_start_it(forking: Forking, tmp_path: Path) -> None:
    alone = forking.start(tmp_path, "net-check")
    assert alone.finish() == 64
    assert "net-check needs several ranks: RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT not set" in alone.text()
    assert "--nproc 2" in alone.text()
    unknown = forking.start(tmp_path, "net-check", "--only", "clock,lynk", RANK="0", WORLD_SIZE="2")
    assert unknown.finish() == 64
    assert "unknown stage: lynk" in unknown.text()


@pytest.mark.full
def test_the_same_by_nproc_by_our_launcher_and_by_torchrun(tmp_path: Path) -> None:
    options = ["net-check", "--only", "clock,all-reduce"]
    by_hand = [sys.executable, "-m", "loradock", *options, "--nproc", "2"]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", f"--master-port={free_port()}"]
    launched = [sys.executable, "-m", "loradock", "launch", "--nproc", "2", *options]
    for command in (by_hand, launched, [*launcher, "-m", "loradock", *options]):
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=300)
        assert done.returncode == 0, done.stderr
        assert "2 ranks sum known values by gloo" in done.stdout
        assert "0 errors, 0 warnings" in done.stdout


@pytest.mark.full
def test_ten_times_nothing_is_named_where_nothing_is_wrong(forking: Forking, tmp_path: Path) -> None:
    for number in range(10):
        folder = tmp_path / str(number)
        folder.mkdir()
        ranks = start(forking, folder, "--rounds", "3", ranks=(0, 1))
        assert ranks.codes() == {0: 0, 1: 0}, ranks.text(0)
        assert ranks.named() == []
