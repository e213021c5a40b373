"""Are the clocks of different hosts put right, and are those that nothing ties together told apart?"""

from __future__ import annotations

import random

from stepscope.analyzer.alignment.clocks import Clocks, estimate_clocks
from stepscope.analyzer.alignment.device_calls import Call
from stepscope.analyzer.alignment.matching import match_calls

US = 1000
MS = 1000 * US


def job(
    groups: list[tuple[int, ...]], ahead_ns: dict[int, int], *, kind: str = "all_reduce", rounds: int = 20
) -> dict[int, list[Call]]:
    """Every group meets `rounds` times; members leave within 2 us; each rank's clock stands `ahead_ns`."""
    generator = random.Random(1)
    calls: dict[int, list[Call]] = {rank: [] for rank in ahead_ns}
    for number in range(rounds):
        for place, group in enumerate(groups):
            end = (number * len(groups) + place) * MS
            for rank in group:
                own_end = end + generator.randrange(2 * US) + ahead_ns[rank]
                calls[rank].append(Call(rank, own_end - 100 * US, own_end, 1, group, kind, 4, (), True))
    return calls


def clocks_of(calls: dict[int, list[Call]], hosts: dict[int, str | None]) -> Clocks:
    return estimate_clocks(calls, match_calls(calls), hosts)


def assert_aligned(clocks: Clocks, ahead_ns: dict[int, int]) -> None:
    for rank, ahead in ahead_ns.items():
        off = (clocks.offset_ns[rank] - clocks.offset_ns[0]) - (ahead - ahead_ns[0])
        assert abs(off) < 2 * US, f"rank {rank} is off by {off} ns"


def test_one_named_host_is_one_clock() -> None:
    clocks = clocks_of(job([(0, 1)], {0: 0, 1: 5 * MS}), {0: "a", 1: "a"})
    assert clocks.offset_ns == {0: 0, 1: 0}
    assert clocks.residual_us is None
    assert len(set(clocks.island.values())) == 1


def test_a_known_offset_between_two_hosts_is_recovered_with_its_residual() -> None:
    ahead = {0: 0, 1: 7 * MS}
    clocks = clocks_of(job([(0, 1)], ahead), {0: "a", 1: "b"})
    assert_aligned(clocks, ahead)
    assert clocks.residual_us is not None
    assert clocks.residual_us < 2.0


def test_collectives_within_a_host_do_not_hide_the_offset_between_hosts() -> None:
    ahead = {0: 0, 1: 0, 2: 7 * MS, 3: 7 * MS}
    within = [(0, 1), (2, 3)] * 5
    clocks = clocks_of(job([*within, (0, 2), (1, 3)], ahead), {0: "a", 1: "a", 2: "b", 3: "b"})
    assert_aligned(clocks, ahead)


def test_hosts_that_never_meet_are_compared_through_others() -> None:
    ahead = {0: 0, 1: 3 * MS, 2: -4 * MS, 3: 9 * MS}
    clocks = clocks_of(job([(0, 1), (1, 2), (2, 3)], ahead), {rank: f"host{rank}" for rank in ahead})
    assert_aligned(clocks, ahead)
    assert len(set(clocks.island.values())) == 1


def test_hosts_without_common_collectives_are_islands() -> None:
    calls = job([(0, 1), (2, 3)], dict.fromkeys(range(4), 0))
    clocks = clocks_of(calls, {0: "a", 1: "b", 2: "c", 3: "d"})
    assert clocks.island[0] == clocks.island[1] != clocks.island[2] == clocks.island[3]


def test_a_broadcast_tells_nothing_as_its_root_may_leave_early() -> None:
    clocks = clocks_of(job([(0, 1)], {0: 0, 1: 7 * MS}, kind="broadcast"), {0: "a", 1: "b"})
    assert clocks.island[0] != clocks.island[1]
    assert clocks.residual_us is None


def test_ranks_without_host_names_share_a_clock_unless_they_show_an_offset() -> None:
    nameless: dict[int, str | None] = {0: None, 1: None}
    together = clocks_of(job([(0, 1)], {0: 0, 1: 5 * US}), nameless)
    assert together.offset_ns == {0: 0, 1: 0}
    ahead = {0: 0, 1: 7 * MS}
    apart = clocks_of(job([(0, 1)], ahead), nameless)
    assert_aligned(apart, ahead)


def test_nameless_ranks_without_collectives_are_taken_for_one_host() -> None:
    calls: dict[int, list[Call]] = {0: [], 1: []}
    clocks = clocks_of(calls, {0: None, 1: None})
    assert len(set(clocks.island.values())) == 1
