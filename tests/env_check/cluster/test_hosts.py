"""net-check between network namespaces as hosts: bad links, wrong interfaces, firewalls, slow nodes, each planted."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from env_check.cluster.hosts import Hosts, hosts
from env_check.cluster.ranks import Ranks, start
from env_check.spoilt_machine import cgroup
from faults.forking import Forking

UNFIT = 71
Crew = Callable[..., Ranks]
# Smaller products than the bench's own, and copies: the whole stage in seconds. What is planted is far slower.
SMALL_BENCH = """
from loradock.env_check.bench import disk, gemm, memory_bandwidth
gemm.CPU_SIZE, memory_bandwidth.CPU_BYTES, disk.SIZE_BYTES = 512, 32 << 20, 1 << 20
"""
# Into the cgroup when the bench begins: all that comes before would take minutes there.
HELD_DOWN = """
import os
from dataclasses import replace
import loradock.env_check.cluster.net_check as page
from loradock.env_check.cluster import node
def part(me, asked):
    open({procs!r}, "w").write(str(os.getpid()))
    return node.part(me, asked)
page.STAGES = tuple(replace(each, part=part) if each.name == "node" else each for each in page.STAGES)
"""


@pytest.fixture(scope="module")
def three() -> Iterator[Hosts]:
    with hosts(3) as made:
        yield made


@pytest.fixture
def crew(three: Hosts, forking: Forking, tmp_path: Path) -> Iterator[Crew]:
    """Start a rank on each of the first `count` hosts; whatever a test did to an interface is undone."""

    def begin(*options: str, count: int = 3, codes: dict[int, str] | None = None) -> Ranks:
        return start(
            forking,
            tmp_path,
            *options,
            ranks=range(count),
            codes={rank: three.code(rank) + (codes or {}).get(rank, "") for rank in range(count)},
            address=three.address(0),
            local=1,
            environment={"GLOO_SOCKET_IFNAME": "net0"},
        )

    yield begin
    for number in range(3):
        for command in ("tc qdisc del dev net0 root", "ip route flush type blackhole", "iptables -F INPUT"):
            subprocess.run(["ip", "netns", "exec", three.namespaces[number], *command.split()], capture_output=True)
        three.on(number, *"ip link set net0 mtu 1500".split())


def finding(ranks: Ranks, stage: str) -> tuple[str, str]:
    """(severity, what) of the only finding of a stage, where no other stage found anything."""
    named = ranks.named()
    assert [each[0] for each in named] == [stage], named
    return named[0][1:]


def test_healthy_hosts_are_reached_by_their_interface_and_nothing_is_named(crew: Crew) -> None:
    ranks = crew("--only", "interface,clock,link,all-reduce")
    assert ranks.codes() == dict.fromkeys(range(3), 0), ranks.text(0)
    assert ranks.named() == []
    seen = [(each["host"], each["address"], each["interface"]) for each in ranks.content()["ranks"]]
    assert seen == [(f"host-{number}", f"10.9.0.{number + 1}", "net0") for number in range(3)]


def test_a_host_that_sends_slowly_is_named_with_its_interface(crew: Crew, three: Hosts) -> None:
    three.slow(1, "8mbit")
    ranks = crew("--only", "interface,link")
    assert ranks.codes() == dict.fromkeys(range(3), UNFIT)
    severity, what = finding(ranks, "link")
    assert severity == "error"
    assert what.startswith("all that rank 1 (host-1, 10.9.0.2 on net0) sends is slow")


@pytest.mark.full
def test_of_two_hosts_the_slow_direction_is_named_and_the_all_reduce_still_ends(crew: Crew, three: Hosts) -> None:
    three.slow(0, "4mbit")
    ranks = crew("--only", "link,all-reduce", count=2)
    assert ranks.codes() == {0: UNFIT, 1: UNFIT}
    severity, what = finding(ranks, "link")
    assert severity == "error"
    assert what.startswith("from rank 0 (host-0, 10.9.0.1 on net0) to rank 1 (host-1, 10.9.0.2 on net0)")


@pytest.mark.full
def test_two_hosts_that_do_not_reach_one_another_are_named_though_both_reach_rank_0(crew: Crew, three: Hosts) -> None:
    three.on(1, *"ip route add blackhole 10.9.0.3/32".split())
    ranks = crew("--only", "interface,link")
    assert ranks.codes() == dict.fromkeys(range(3), UNFIT)
    named = ranks.named()
    assert [each[:2] for each in named] == [("interface", "error"), ("link", "error")]
    assert "rank 1 (host-1, 10.9.0.2 on net0) has no route to rank 2 (host-2, 10.9.0.3 on net0)" in named[0][2]
    assert "rank 1 (host-1, 10.9.0.2 on net0) and rank 2 (host-2, 10.9.0.3 on net0) do not reach one" in named[1][2]


def test_an_mtu_that_one_host_has_alone_is_named(crew: Crew, three: Hosts) -> None:
    three.on(2, *"ip link set net0 mtu 1400".split())
    ranks = crew("--only", "interface")
    assert ranks.codes() == dict.fromkeys(range(3), 0)
    severity, what = finding(ranks, "interface")
    assert severity == "warning"
    assert what == "rank 2 (host-2, 10.9.0.3 on net0): an MTU of 1400, and 1500 on the others"


def test_a_host_whose_name_is_its_loopback_is_named_before_gloo_offers_that(crew: Crew) -> None:
    codes = dict.fromkeys(range(3), "import os, socket\n")
    codes[2] += "del os.environ['GLOO_SOCKET_IFNAME']\nsocket.sethostname('localhost')\n"
    ranks = crew("--only", "interface", codes=codes)
    assert ranks.codes() == dict.fromkeys(range(3), UNFIT)
    severity, what = finding(ranks, "interface")
    assert severity == "error"
    assert what.startswith("rank 2 (localhost, 10.9.0.3 on net0): gloo would offer 127.0.0.1 to the other hosts")


def test_a_firewall_that_lets_the_rendezvous_port_through_alone_is_said(crew: Crew, three: Hosts) -> None:
    try:
        three.on(0, *"iptables -A INPUT -p tcp --syn -m multiport ! --dports 20000:60999 -j DROP".split())
    except subprocess.CalledProcessError as failure:
        pytest.skip(f"no network namespaces here with a firewall: {failure.stderr}")
    ranks = crew("--only", "interface", "--timeout", "4", codes={0: ONE_PORT}, count=2)
    assert ranks.codes() == {0: UNFIT, 1: UNFIT}
    assert "a firewall is between them" in ranks.text(1)
    assert "reaches port" in finding(ranks, "rendezvous")[1]
    assert "rank 1 (host-1)" in finding(ranks, "rendezvous")[1]


# The listener of rank 0 gets a port that the firewall drops.
ONE_PORT = """
from loradock.env_check.cluster import rendezvous
import socket
rendezvous.listener = lambda address: socket.create_server(("", 10999))
"""


def often(group: Path) -> None:
    """1 ms of CPU in each 50 ms: a product takes longer than that, so that no round passes between two pauses."""
    if (group / "cpu.max").exists():
        (group / "cpu.max").write_text("1000 50000", encoding="utf-8")
    else:
        (group / "cpu.cfs_period_us").write_text("50000", encoding="utf-8")


@pytest.mark.full
def test_a_rank_whose_cpu_is_held_down_is_named_with_the_cause(crew: Crew) -> None:
    with cgroup("cpu", v2="cpu.max", v1="cpu.cfs_quota_us", limit=1000) as within:
        procs = within[2].splitlines()[0].partition("> ")[2]
        often(Path(procs).parent)
        codes = {0: SMALL_BENCH, 1: SMALL_BENCH + HELD_DOWN.format(procs=procs)}
        ranks = crew("--only", "node", "--rounds", "5", count=2, codes=codes)
        assert ranks.codes() == {0: 0, 1: 0}, ranks.text(0)
    severity, what = finding(ranks, "node")
    assert severity == "warning"
    assert what.startswith("rank 1 (host-1, 10.9.0.2 on net0) is more than 5 % below the others: ")
    assert "its cgroup gives it 0.02 of" in what
