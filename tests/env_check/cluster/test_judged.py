"""What the stages judge, by numbers: who is named, who is not, and how."""

from __future__ import annotations

import random
from collections.abc import Mapping
from itertools import combinations
from typing import Any

import pytest

from loradock.env_check.cluster import clock, interface, link, node
from loradock.env_check.cluster.all_reduce import fitting
from loradock.env_check.cluster.all_reduce import judge as judge_sums
from loradock.env_check.cluster.base import Asked, Peer, leaders
from loradock.env_check.cluster.interfaces import chosen_by_nccl, is_loopback, plain_address
from loradock.env_check.cluster.link import Link


def peers(count: int, *, ranks_each: int = 1, **change: Any) -> dict[int, Peer]:
    made: dict[int, Peer] = {}
    for rank in range(count * ranks_each):
        host = rank // ranks_each
        base: dict[str, Any] = {"interface": "eth0", "mtu_bytes": 1500, "speed_mbit": None}
        made[rank] = Peer(
            rank=rank, host=f"node-{host}", place=str(host), address=f"10.0.0.{host}", port=4000, **base | change
        )
    return made


def all_links(count: int, mb_per_second: float, *, seconds: float = 1e-4) -> dict[tuple[int, int], Link]:
    return {
        (one, other): Link(sender=one, receiver=other, mb_per_second=mb_per_second, latency_seconds=seconds)
        for pair in combinations(range(count), 2)
        for one, other in (pair, pair[::-1])
    }


def changed(links: dict[tuple[int, int], Link], *keys: tuple[int, int], **change: Any) -> list[Link]:
    from dataclasses import replace

    return [replace(each, **change) if key in keys else each for key, each in links.items()]


@pytest.mark.parametrize("count", [2, 3, 4, 7, 16])
def test_every_pair_has_its_turn_once_and_nobody_has_two_at_a_time(count: int) -> None:
    rounds = list(link.rounds(range(count)))
    assert sorted(pair for each in rounds for pair in each) == sorted(combinations(range(count), 2))
    assert all(len({rank for pair in each for rank in pair}) == 2 * len(each) for each in rounds)


def test_links_that_are_alike_are_not_named() -> None:
    generator = random.Random(0)
    for count in (2, 3, 8):
        links = [
            Link(sender=a, receiver=b, mb_per_second=900 * generator.uniform(0.8, 1.2), latency_seconds=1e-4)
            for a, b in all_links(count, 1)
        ]
        assert [each.severity for each in link.judge(peers(count), links)] == ["ok"]


def test_a_host_that_is_slow_both_ways_is_named_twice_and_not_by_each_of_its_links() -> None:
    bad = [(a, b) for a, b in all_links(3, 1) if 1 in (a, b)]
    found = link.judge(peers(3), changed(all_links(3, 1000.0), *bad, mb_per_second=300.0))
    assert [each.what.split(" is slow")[0] for each in found] == [
        "all that rank 1 (node-1, 10.0.0.1 on eth0) sends",
        "all that rank 1 (node-1, 10.0.0.1 on eth0) receives",
    ]
    assert {each.severity for each in found} == {"warning"}


def test_one_slow_direction_of_many_is_named_by_its_two_ends() -> None:
    found = link.judge(peers(4), changed(all_links(4, 1000.0), (2, 3), mb_per_second=40.0))
    assert len(found) == 1
    assert found[0].severity == "error"
    assert "from rank 2 (node-2, 10.0.0.2 on eth0) to rank 3 (node-3, 10.0.0.3 on eth0)" in found[0].what
    assert "40 MB/s" in found[0].what


def test_two_hosts_are_held_against_what_their_interfaces_state() -> None:
    links = list(all_links(2, 100.0).values())
    assert link.judge(peers(2), links)[0].severity == "ok"
    assert link.judge(peers(2, speed_mbit=1000), links)[0].severity == "ok"
    found = link.judge(peers(2, speed_mbit=10_000), links)
    assert [each.severity for each in found] == ["warning", "warning"]
    assert "125 MB/s is the least to expect" in found[0].what


def test_a_late_link_is_named_beside_quick_ones() -> None:
    found = link.judge(peers(4), changed(all_links(4, 1000.0), (0, 3), (3, 0), latency_seconds=0.004))
    assert [each.severity for each in found] == ["warning"]
    assert "between rank 0 (node-0, 10.0.0.0 on eth0) and rank 3 " in found[0].what
    assert "4 ms; the quicker ones take 0.1 ms" in found[0].what


def test_a_link_that_fails_once_and_works_later_is_no_failure() -> None:
    fails = Link(sender=0, receiver=1, mb_per_second=None, latency_seconds=None, failure="no answer")
    works = Link(sender=0, receiver=1, mb_per_second=800.0, latency_seconds=1e-4)
    assert link.better(fails, works) == works
    assert link.better(works, fails) == works


def test_ranks_of_one_host_share_its_links() -> None:
    assert [each.rank for each in leaders(peers(3, ranks_each=4).values())] == [0, 4, 8]


def test_the_quickest_exchange_tells_the_offset_and_what_it_leaves_open() -> None:
    exchanges = [(100.0, 105.9, 101.0), (200.0, 205.01, 200.02), (300.0, 305.4, 300.5)]
    told = clock.offset(exchanges)
    assert told.seconds == pytest.approx(5.0)
    assert told.uncertainty_seconds == pytest.approx(0.01)


def test_an_offset_that_the_round_trip_may_explain_is_not_named() -> None:
    doubtful = clock.Offset(seconds=1.6, uncertainty_seconds=0.9)
    sure = clock.Offset(seconds=1.6, uncertainty_seconds=0.1)
    zero = clock.Offset(seconds=0.0, uncertainty_seconds=0.0)
    assert clock.judge(peers(3), {0: zero, 1: doubtful, 2: zero})[0].severity == "ok"
    assert clock.judge(peers(3), {0: zero, 1: sure, 2: zero})[0].severity == "warning"


def noisy(generator: random.Random, rounds: int, level: float, noise: float) -> list[float]:
    return [level * generator.uniform(1 - noise, 1 + noise) for _ in range(rounds)]


def test_eight_per_cent_are_named_where_the_noise_is_small_and_not_where_it_is_large() -> None:
    generator = random.Random(1)
    for noise, expected in ((0.01, {("gemm x_tflops", 2)}), (0.3, set[Any]())):
        rates = {"gemm x_tflops": {rank: noisy(generator, 7, 0.92 if rank == 2 else 1.0, noise) for rank in range(4)}}
        assert set(node.outliers(rates, [range(4)], limit=0.05)) == expected


def test_three_per_cent_are_not_named_however_sure() -> None:
    generator = random.Random(2)
    rates = {"disk y_mb_per_second": {rank: noisy(generator, 9, 0.97 if rank else 1.0, 0.002) for rank in range(2)}}
    assert node.outliers(rates, [range(2)], limit=0.05) == {}
    assert set(node.outliers(rates, [range(2)], limit=0.02)) == {("disk y_mb_per_second", 1)}


def test_what_the_noise_hides_is_said() -> None:
    generator = random.Random(3)
    quiet = {"gemm x_tflops": {rank: noisy(generator, 5, 1.0, 0.005) for rank in range(2)}}
    loud = {**quiet, "disk y_mb_per_second": {rank: noisy(generator, 5, 1.0, 0.4) for rank in range(2)}}
    assert "hide" not in node.alike_enough(2, quiet, [range(2)], limit_percent=5).what
    assert (
        "the noise would hide more than that in disk y_mb"
        in node.alike_enough(2, loud, [range(2)], limit_percent=5).what
    )


def test_what_slows_all_of_a_round_names_nobody() -> None:
    shared = [1.0, 0.4, 0.9, 0.2, 1.0]
    rates = {"gemm x_tflops": {rank: [value * (1 + rank / 100) for value in shared] for rank in range(3)}}
    assert node.outliers(rates, [range(3)], limit=0.05) == {}


class Answers:
    """Two ranks of two hosts; what rank 1 answers to its first `slow` asks is a third slower."""

    def __init__(self, *, slow: int) -> None:
        self.peers, self.limit_percent, self.rounds, self.timeout_seconds = peers(2), 5.0, 5, 60.0
        self.slowest_mb_per_second: float | None = None
        self.slow, self.asked = slow, 0

    def ask(self, asks: Mapping[int, Asked], *, limit_seconds: float) -> dict[int, dict[str, Any]]:
        if any("causes" in each for each in asks.values()):
            return {rank: {"causes": ["heat"]} for rank in asks}
        self.asked += 1
        rates = {0: 3.0, 1: 2.0 if self.asked <= self.slow else 3.0}
        return {rank: {"measured": {"float32_tflops": rates[rank]}, "fault": None} for rank in asks}


def test_what_looks_slow_is_measured_again_before_it_is_named() -> None:
    checks_of_a_rank = 3
    once = node.look(Answers(slow=5 * checks_of_a_rank)).findings
    assert [each.severity for each in once] == ["ok"]
    always = node.look(Answers(slow=1000)).findings
    assert [each.severity for each in always] == ["warning"]
    assert "rank 1 (node-1, 10.0.0.1 on eth0) is more than 5 % below the others" in always[0].what
    assert always[0].what.endswith("likely: heat")


def test_unlike_devices_are_said_and_not_compared() -> None:
    mixed = {0: peers(2)[0], 1: Peer(**{**vars(peers(2)[1]), "device": "NVIDIA A10"})}
    groups = node.alike(mixed)
    rates = {"gemm x_tflops": {0: [1.0] * 5, 1: [50.0] * 5}}
    assert node.outliers(rates, groups, limit=0.05) == {}
    assert "2 kinds of device" in node._mixed(groups)[0].what


def test_ranks_that_share_processors_take_turns_and_those_with_cards_do_not() -> None:
    assert node.turns(peers(2, ranks_each=2)) == [[0, 2], [1, 3]]
    assert node.turns(peers(2, ranks_each=2, has_gpu=True)) == [[0, 1, 2, 3]]


def test_interfaces_are_chosen_as_nccl_does() -> None:
    names = ["lo", "eth0", "eth1", "ib0"]
    assert chosen_by_nccl("eth", names) == ["eth0", "eth1"]
    assert chosen_by_nccl("=eth", names) == []
    assert chosen_by_nccl("=eth1,ib0", names) == ["eth1", "ib0"]
    assert chosen_by_nccl("^lo,ib", names) == ["eth0", "eth1"]


def test_addresses_are_compared_in_their_plain_form() -> None:
    assert plain_address("::ffff:10.0.0.1") == "10.0.0.1"
    assert plain_address("fe80::1%eth0") == "fe80::1"
    assert is_loopback("127.0.1.1")
    assert is_loopback("::1")
    assert not is_loopback("10.0.0.1")


def test_a_link_of_a_hundred_megabit_is_named_by_its_stated_speed() -> None:
    slow = peers(3)
    slow[1] = Peer(**{**vars(slow[1]), "speed_mbit": 100})
    answers = {rank: {"routes": {}, "gloo": "10.0.0.9", "named": {}, "absent": [], "there": []} for rank in slow}
    found = interface.judge(slow, answers)
    assert [each.what for each in found] == ["rank 1 (node-1, 10.0.0.1 on eth0): its link states 100 Mbit/s"]


def test_a_sum_that_fails_on_every_rank_alike_names_the_step() -> None:
    answers = {rank: {"reached": 1, "fault": "connect refused", "wrong_of": []} for rank in range(2)}
    found = judge_sums("nccl", [1], peers(2), answers)
    assert len(found) == 1
    assert "nccl fails on every rank" in found[0].what
    assert "reached the store: connect refused" in found[0].what


def test_a_slow_link_is_spared_large_sums() -> None:
    assert fitting(None) == [1, 1000, 262_147]
    assert fitting(0.05) == [1, 1000]
    assert fitting(0.0001) == [1]
