"""Matching: calls of different ranks are matched as the same operation, and only those."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.analyzer.collectives.calls import BEFORE_STEPS, Call, CallId, Matches, PeerCall, match_calls

WORLD = (0, 1)


def call(
    rank: int,
    kind: str = "all_reduce",
    *,
    size: int | None = 4,
    step: int = 1,
    group: tuple[int, ...] | None = WORLD,
    sequence: int | None = None,
    peers: tuple[PeerCall, ...] = (),
) -> Call:
    return Call(rank, 0, 1, step, group, kind, size, peers, True, sequence)


def pairs(matches: Matches) -> list[tuple[int, ...]]:
    """Each match as the places of its calls, by rank."""
    return [tuple(match[rank].place for rank in sorted(match)) for match in matches.collectives]


def calls_of(rank: int, words: Sequence[tuple[str, int | None]], *, step: int = 1) -> list[Call]:
    return [call(rank, kind, size=size, step=step) for kind, size in words]


def test_the_ith_calls_of_a_group_within_a_step_belong_together() -> None:
    words = [("all_reduce", 4), ("all_gather", 8), ("all_reduce", 4)]
    matches = match_calls({rank: calls_of(rank, words) for rank in WORLD})
    assert pairs(matches) == [(0, 0), (1, 1), (2, 2)]
    assert matches.unmatched == []
    assert matches.incomplete == []


def test_a_call_that_one_rank_lost_does_not_shift_the_later_steps() -> None:
    one = [call(0, step=1), call(0, step=1), call(0, step=2)]
    other = [call(1, step=1), call(1, step=2)]
    matches = match_calls({0: one, 1: other})
    assert pairs(matches) == [(0, 0), (2, 1)]
    assert matches.unmatched == [CallId(0, 1)]


def test_where_sequences_differ_the_common_part_is_matched_and_the_rest_counted() -> None:
    one = calls_of(0, [("all_reduce", 4), ("all_gather", 8), ("reduce_scatter", 2), ("all_reduce", 4)])
    other = calls_of(1, [("all_reduce", 4), ("reduce_scatter", 2), ("all_reduce", 4)])
    matches = match_calls({0: one, 1: other})
    assert sorted(pairs(matches)) == [(0, 0), (2, 1), (3, 2)]
    assert matches.unmatched == [CallId(0, 1)]


def test_a_size_that_one_rank_does_not_know_agrees_with_any() -> None:
    matches = match_calls({0: calls_of(0, [("all_reduce", None)]), 1: calls_of(1, [("all_reduce", 4)])})
    assert pairs(matches) == [(0, 0)]


def test_sizes_must_agree_where_they_are_known() -> None:
    matches = match_calls({0: calls_of(0, [("all_reduce", 8)]), 1: calls_of(1, [("all_reduce", 4)])})
    assert pairs(matches) == []
    assert len(matches.unmatched) == 2


def test_experts_send_uneven_amounts_in_the_same_all_to_all() -> None:
    one = calls_of(0, [("all_to_all", 10), ("all_to_all", 30)])
    other = calls_of(1, [("all_to_all", 20), ("all_to_all", 15)])
    assert pairs(match_calls({0: one, 1: other})) == [(0, 0), (1, 1)]


def test_sequence_numbers_match_where_order_misleads() -> None:
    one = [call(0, sequence=number) for number in (11, 12, 13)]
    other = [call(1, sequence=number) for number in (12, 13, 14)]
    matches = match_calls({0: one, 1: other})
    assert pairs(matches) == [(1, 0), (2, 1)]
    assert matches.unmatched == [CallId(0, 0), CallId(1, 2)]


def test_two_communicators_with_the_same_members_fall_back_to_order() -> None:
    one = [call(0, sequence=1), call(0, sequence=1), call(0, sequence=2)]
    other = [call(1, sequence=1), call(1, sequence=1), call(1, sequence=2)]
    assert pairs(match_calls({0: one, 1: other})) == [(0, 0), (1, 1), (2, 2)]


def test_communicators_with_the_same_members_are_told_apart_by_their_id() -> None:
    def numbered(rank: int, sequence: int, communicator: int) -> Call:
        return replace(call(rank, sequence=sequence), communicator=communicator)

    one = [numbered(0, 1, 70), numbered(0, 1, 90), numbered(0, 2, 70)]
    other = [numbered(1, 1, 90), numbered(1, 1, 70), numbered(1, 2, 70)]
    assert sorted(pairs(match_calls({0: one, 1: other}))) == [(0, 1), (1, 0), (2, 2)]
    private = [numbered(1, 1, 8), numbered(1, 1, 9), numbered(1, 2, 8)]  # ids of the process: by first use
    assert sorted(pairs(match_calls({0: one, 1: private}))) == [(0, 0), (1, 1), (2, 2)]


def test_a_node_that_one_graph_launch_lost_does_not_shift_the_next_launch() -> None:
    def nodes(rank: int, counts: Sequence[int]) -> list[Call]:
        return [
            replace(call(rank, size=None), graph_launch=number)
            for number, count in enumerate(counts)
            for _ in range(count)
        ]

    matches = match_calls({0: nodes(0, (2, 2)), 1: nodes(1, (1, 2))})
    assert sorted(pairs(matches)) == [(0, 0), (2, 1), (3, 2)]
    assert matches.unmatched == [CallId(0, 1)]


def test_calls_before_the_steps_are_counted_from_their_end_as_profilers_start_apart() -> None:
    one = [call(0, step=BEFORE_STEPS), call(0, step=BEFORE_STEPS), call(0, step=1)]
    other = [call(1, step=BEFORE_STEPS), call(1, step=1)]
    assert sorted(pairs(match_calls({0: one, 1: other}))) == [(1, 0), (2, 1)]


def test_a_group_with_a_missing_member_is_incomplete_and_not_unmatched() -> None:
    matches = match_calls({0: [call(0, group=(0, 1, 2))], 1: [call(1, group=(0, 1, 2))]})
    assert matches.collectives == []
    assert matches.unmatched == []
    assert len(matches.incomplete) == 2
    assert matches.partial == [{0: CallId(0, 0), 1: CallId(1, 0)}]


def test_a_group_that_is_not_told_is_incomplete() -> None:
    assert len(match_calls({0: [call(0, group=None)], 1: [call(1, group=None)]}).incomplete) == 2


def test_a_send_meets_the_receive_of_the_same_direction_and_order() -> None:
    def sent(rank: int, ordinal: int) -> Call:
        return call(rank, "send" if rank == 0 else "recv", peers=(PeerCall(0, 1, ordinal),))

    matches = match_calls({0: [sent(0, 0), sent(0, 1)], 1: [sent(1, 0), sent(1, 1)]})
    assert matches.peers[CallId(0, 1)] == [CallId(1, 1)]
    assert matches.peers[CallId(1, 0)] == [CallId(0, 0)]


def test_a_grouped_kernel_needs_every_peer_of_its_group() -> None:
    middle = call(1, "p2p", peers=(PeerCall(0, 1, 0), PeerCall(1, 2, 0)))
    first, last = call(0, "send", peers=(PeerCall(0, 1, 0),)), call(2, "recv", peers=(PeerCall(1, 2, 0),))
    matches = match_calls({0: [first], 1: [middle], 2: [last]})
    assert matches.peers[CallId(1, 0)] == [CallId(0, 0), CallId(2, 0)]
    without_last = match_calls({0: [first], 1: [middle]})
    assert without_last.incomplete == [CallId(1, 0)]


def test_a_receive_without_its_send_is_unmatched() -> None:
    matches = match_calls({0: [], 1: [call(1, "recv", peers=(PeerCall(0, 1, 0),))]})
    assert matches.unmatched == [CallId(1, 0)]


def test_point_to_point_calls_before_the_steps_are_counted_from_their_end() -> None:
    sends = [call(0, "send", step=BEFORE_STEPS, peers=(PeerCall(0, 1, ordinal),)) for ordinal in range(3)]
    receive = call(1, "recv", step=BEFORE_STEPS, peers=(PeerCall(0, 1, 0),))
    assert match_calls({0: sends, 1: [receive]}).peers[CallId(1, 0)] == [CallId(0, 2)]


words = st.lists(st.sampled_from([("all_reduce", 4), ("all_gather", 8), ("all_gather", 16)]), max_size=8)


@settings(max_examples=80, deadline=None)
@given(st.lists(words, min_size=2, max_size=3))
def test_matches_agree_in_kind_and_size_use_each_call_once_and_keep_the_order(
    ranks: list[list[tuple[str, int]]],
) -> None:
    group = tuple(range(len(ranks)))
    calls = {rank: [call(rank, kind, size=size, group=group) for kind, size in own] for rank, own in enumerate(ranks)}
    matches = match_calls(calls)
    used = [call for match in matches.collectives for call in match.values()]
    assert len(used) == len(set(used))
    assert sorted(map(repr, [*used, *matches.unmatched])) == sorted(
        repr(CallId(rank, place)) for rank, own in calls.items() for place in range(len(own))
    )
    for match in matches.collectives:
        assert len({(calls[r][c.place].kind, calls[r][c.place].num_bytes) for r, c in match.items()}) == 1
    ordered = sorted(pairs(matches))
    assert all(a < b for one, two in pairwise(ordered) for a, b in zip(one, two, strict=True))


def test_long_sequences_that_disagree_are_matched_at_both_ends_in_little_time() -> None:
    one = calls_of(0, [("all_reduce", 4)] * 30_000)
    other = calls_of(1, [("all_reduce", 4)] * 20_000 + [("all_reduce", 8)] + [("all_reduce", 4)] * 5_000)
    began = time.perf_counter()
    matches = match_calls({0: one, 1: other})
    assert time.perf_counter() - began < 5.0
    assert len(matches.collectives) == 25_000
