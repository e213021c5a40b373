"""Clock alignment: clocks of different hosts are corrected, and unconnected ones are kept apart."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.analyzer.collectives.calls import Call, PeerCall, match_calls
from stepscope.analyzer.collectives.clocks import Clocks, _line, estimate_clocks

US = 1000
MS = 1000 * US
SECOND = 1000 * MS


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


def drifting(calls: dict[int, list[Call]], drift: dict[int, float]) -> dict[int, list[Call]]:
    return {
        rank: [
            replace(
                c,
                start_ns=c.start_ns + round(c.start_ns * drift[rank]),
                end_ns=c.end_ns + round(c.end_ns * drift[rank]),
            )
            for c in own
        ]
        for rank, own in calls.items()
    }


def stretched(calls: dict[int, list[Call]], factor: int) -> dict[int, list[Call]]:
    """The same meetings, further apart."""
    return {
        rank: [
            replace(
                c, start_ns=c.start_ns + (factor - 1) * (number * MS), end_ns=c.end_ns + (factor - 1) * (number * MS)
            )
            for number, c in enumerate(own)
        ]
        for rank, own in calls.items()
    }


def test_a_clock_that_drifts_is_followed_on_a_long_trace() -> None:
    """40 parts in a million over 20 s move a clock by 800 us; without the drift the residual would be 200 us."""
    calls = stretched(job([(0, 1)], {0: 0, 1: 7 * MS}, rounds=200), 100)
    clocks = clocks_of(drifting(calls, {0: 0.0, 1: 40e-6}), {0: "a", 1: "b"})
    assert clocks.drift[1] - clocks.drift[0] == pytest.approx(40e-6, rel=0.02)
    assert clocks.residual_us is not None
    assert clocks.residual_us < 2.0
    for one, other in zip(calls[0], drifting(calls, {0: 0.0, 1: 40e-6})[1], strict=True):
        apart = int(clocks.to_job(1, other.end_ns)) - int(clocks.to_job(0, one.end_ns))
        assert abs(apart) < 5 * US


def test_a_short_trace_shows_no_drift() -> None:
    calls = drifting(job([(0, 1)], {0: 0, 1: 7 * MS}, rounds=100), {0: 0.0, 1: 5e-6})
    assert clocks_of(calls, {0: "a", 1: "b"}).drift == {}


def test_ends_that_are_far_off_are_left_out() -> None:
    calls = job([(0, 1)], {0: 0, 1: 7 * MS}, rounds=30)
    for place in range(0, 30, 4):
        late = calls[1][place]
        calls[1][place] = replace(late, end_ns=late.end_ns + 3 * MS)
    assert_aligned(clocks_of(calls, {0: "a", 1: "b"}), {0: 0, 1: 7 * MS})


def test_two_shared_collectives_prove_no_offset() -> None:
    clocks = clocks_of(job([(0, 1)], {0: 0, 1: 7 * MS}, rounds=2), {0: "a", 1: "b"})
    assert clocks.island[0] != clocks.island[1]


@given(st.lists(st.integers(-50 * MS, 50 * MS), min_size=3, max_size=5), st.randoms())
def test_offsets_are_recovered_within_their_residual_whatever_the_ranks_are_called(
    ahead: list[int], order: random.Random
) -> None:
    names = list(range(len(ahead)))
    order.shuffle(names)
    ahead_of = {rank: ahead[place] for place, rank in enumerate(names)}
    groups = [tuple(sorted((names[i], names[i + 1]))) for i in range(len(names) - 1)] + [tuple(sorted(names))]
    calls = job(groups, ahead_of)
    clocks = clocks_of(calls, {rank: f"host{rank}" for rank in names})
    assert len(set(clocks.island.values())) == 1
    for rank in names:
        off = (clocks.offset_ns[rank] - clocks.offset_ns[names[0]]) - (ahead_of[rank] - ahead_of[names[0]])
        assert abs(off) <= 2 * US + clocks.uncertainty_ns(rank, names[0])


def test_uncertainty_is_nought_on_one_host_and_the_pairs_residual_between_two() -> None:
    clocks = clocks_of(job([(0, 1, 2)], {0: 0, 1: 0, 2: 7 * MS}), {0: "a", 1: "a", 2: "b"})
    assert clocks.uncertainty_ns(0, 1) == 0.0
    assert clocks.uncertainty_ns(0, 2) == clocks.residual_ns["a", "b"] > 0


def messages(ahead_ns: int, *, transfer_us: int, wait_us: int, back: bool = True) -> dict[int, list[Call]]:
    """Ten round trips between two ranks; each receiver waits before the sender comes."""
    calls: dict[int, list[Call]] = {0: [], 1: []}
    for number in range(10):
        for source in (0, 1) if back else (0,):
            sent = (2 * number + source) * 50 * MS
            end = sent + transfer_us * US
            peers = (PeerCall(source, 1 - source, number),)
            for rank, start, kind in ((source, sent, "send"), (1 - source, sent - wait_us * US, "recv")):
                shift = ahead_ns if rank == 1 else 0
                calls[rank].append(Call(rank, start + shift, end + shift, 1, (0, 1), kind, 4, peers, True))
    return calls


HOSTS: dict[int, str | None] = {0: "a", 1: "b"}


def test_hosts_that_only_pass_activations_on_are_bounded_by_these() -> None:
    clocks = clocks_of(messages(7 * MS, transfer_us=40, wait_us=5000), HOSTS)
    assert clocks.island[0] == clocks.island[1]
    assert abs(clocks.offset_ns[1] - clocks.offset_ns[0] - 7 * MS) <= 40 * US
    assert clocks.residual_ns["a", "b"] == 40 * US  # half of what lies between the bounds


def test_bounds_are_narrow_against_all_of_the_waiting_also_where_most_receivers_find_their_message_there() -> None:
    """Of 20 messages 16 are not waited for: the bounds of 80 us are to be held against 1,000 us, the mean."""
    calls = messages(7 * MS, transfer_us=40, wait_us=5000)
    for own in calls.values():
        for place, call in enumerate(own):
            if call.kind == "recv" and call.peers[0].ordinal < 8:
                own[place] = replace(call, start_ns=call.start_ns + 5000 * US)
    clocks = clocks_of(calls, HOSTS)
    assert clocks.island[0] == clocks.island[1]
    assert clocks.residual_ns["a", "b"] == 40 * US


def test_wide_bounds_and_traffic_one_way_tie_nothing_together() -> None:
    for calls in (
        messages(7 * MS, transfer_us=400, wait_us=5000),
        messages(7 * MS, transfer_us=40, wait_us=5000, back=False),
    ):
        clocks = clocks_of(calls, HOSTS)
        assert clocks.island[0] != clocks.island[1]


def test_times_on_the_jobs_clock_keep_their_order() -> None:
    clocks = Clocks({0: 7}, 1.0, {0: 0}, drift={0: 9e-4}, about_ns=1000)
    assert (np.diff(clocks.to_job(0, np.arange(0, 5000))) >= 0).all()


@pytest.mark.parametrize("about_ns", [0, 10**18, 2**62])
def test_a_line_is_found_far_from_the_origin_and_of_ends_close_together(about_ns: int) -> None:
    time = about_ns + 1e9 * np.arange(20.0)
    slope, start = _line(time, 500.0 + 2e-6 * (time - about_ns))
    assert slope == pytest.approx(2e-6, rel=1e-3)
    assert start + slope * time[0] == pytest.approx(500, abs=2)
    assert _line(time[:1].repeat(9), np.arange(9.0)) == (0.0, 4.0)
