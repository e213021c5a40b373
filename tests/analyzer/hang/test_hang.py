"""The culprit, and nobody else, is found in jobs whose fault is known."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.analyzer.hang import explain_hang
from stepscope.core.documents.hang import FlightDump, GroupProgress, HangKind, HangVerdict
from stepscope.core.vocabulary import Cause
from tests.analyzer.hang.recorders import WORLD, Job, mesh


def _verdict(dumps: list[FlightDump]) -> tuple[str, HangKind | None, list[int]]:
    verdict: HangVerdict = explain_hang(dumps).verdict
    assert "\n" not in verdict.summary
    return verdict.cause, verdict.kind, verdict.ranks


def _trained(num_steps: int = 3, num_tensor: int = 2, num_data: int = 4) -> Job:
    """Some steps of TP and DP, all ended."""
    job = Job(mesh(num_tensor, num_data))
    for _ in range(num_steps):
        for group in list(job.groups)[1:]:
            job.call(group)
    return job


def _others(job: Job, group: str, *ranks: int) -> list[int]:
    return [rank for rank in job.groups[group] if rank not in ranks]


def test_nothing_open_is_no_hang() -> None:
    report = explain_hang(_trained().dumps())
    assert (report.verdict.cause, report.verdict.kind, report.verdict.ranks) == ("none", None, [])
    assert report.ranks == list(range(8))
    assert report.missing_ranks == []


def test_recorders_that_start_at_different_points_are_no_hang() -> None:
    dumps = _trained(20).dumps(newest=7)
    assert _verdict([*dumps[:3], *_trained(20).dumps(newest=50)[3:]]) == ("none", None, [])


@given(st.integers(2, 4), st.integers(2, 4), st.data())
def test_a_rank_that_never_calls_is_stuck_on_its_host(num_tensor: int, num_data: int, data: st.DataObject) -> None:
    job = _trained(data.draw(st.integers(0, 3)), num_tensor, num_data)
    culprit = data.draw(st.sampled_from(job.groups[WORLD]))
    only_open = data.draw(st.booleans())
    groups = list(job.groups)[1:]
    of_culprit = [group for group in groups if culprit in job.groups[group]]
    first = data.draw(st.sampled_from(of_culprit))
    # the first group that misses it waits; others come as far as they can, and wait in turn
    job.call(first, _others(job, first, culprit), done=False)
    stuck = {*_others(job, first, culprit), culprit}
    for group in groups:
        if group != first and stuck & set(job.groups[group]) and stuck != set(job.groups[group]):
            free = [rank for rank in job.groups[group] if rank not in stuck]
            job.call(group, free, done=False)
            stuck |= set(free)
    assert _verdict(job.dumps(only_open=only_open)) == (Cause.HANG, HangKind.HOST, [culprit])


@given(st.integers(2, 4), st.integers(2, 4), st.data())
def test_a_rank_that_has_called_what_only_its_peers_finish_is_stuck_on_its_gpu(
    num_tensor: int, num_data: int, data: st.DataObject
) -> None:
    job = _trained(data.draw(st.integers(0, 3)), num_tensor, num_data)
    culprit = data.draw(st.sampled_from(job.groups[WORLD]))
    group = next(name for name in list(job.groups)[1:] if culprit in job.groups[name])
    job.call(group, [culprit], done=False).call(group, _others(job, group, culprit))
    for _ in range(data.draw(st.integers(1, 3))):
        job.call(group, done=False)
    assert _verdict(job.dumps()) == (Cause.HANG, HangKind.DEVICE, [culprit])


def test_two_guilty_ranks_are_both_named() -> None:
    job = _trained()
    for group in ("1", "3"):  # ranks 0-1 and 4-5
        first, second = job.groups[group]
        job.call(group, [second], done=False)
        assert first in (0, 4)
    job.call(WORLD, [2, 3, 6, 7], done=False)
    assert _verdict(job.dumps()) == (Cause.HANG, HangKind.HOST, [0, 4])


def test_calls_of_gloo_that_timed_out_are_open_though_it_calls_them_retired() -> None:
    job = Job(mesh(2, 2), backend="gloo")
    job.call("1").call("2").call("3").call("4")
    job.call(WORLD, [0, 1, 3], given_up=True)
    report = explain_hang(job.dumps())
    assert (report.verdict.kind, report.verdict.ranks) == (HangKind.HOST, [2])
    assert [(group.ranks, group.waits_for) for group in report.groups] == [([0, 1, 3], [2]), ([2], [])]


def test_calls_of_gloo_that_all_have_made_are_done_when_it_tracks_them_no_more() -> None:
    job = Job(mesh(2, 2), backend="gloo").call(WORLD, given_up=True).call(WORLD, given_up=True)
    assert _verdict(job.dumps()) == ("none", None, [])


def test_a_root_that_is_ahead_with_a_broadcast_waits_for_nobody() -> None:
    job = Job(mesh(2, 2), backend="gloo").call(WORLD, given_up=True)
    job.call(WORLD, [0], name="broadcast", given_up=True)
    assert _verdict(job.dumps()) == ("none", None, [])


def test_who_calls_something_else_than_most_is_named() -> None:
    job = Job({WORLD: (0, 1, 2, 3)}).call(WORLD)
    job.call(WORLD, [0, 1, 3], done=False).call(WORLD, [2], name="_all_gather_base", done=False)
    job.call(WORLD, [0, 1, 3], done=False)
    assert _verdict(job.dumps()) == (Cause.HANG, HangKind.DESYNC, [2])


def test_the_first_rank_is_not_taken_for_right() -> None:
    job = Job({WORLD: (0, 1, 2)}).call(WORLD, [0], size=5, done=False).call(WORLD, [1, 2], size=6, done=False)
    assert _verdict(job.dumps()) == (Cause.HANG, HangKind.DESYNC, [0])


def test_where_two_disagree_both_are_named_and_it_is_less_certain() -> None:
    job = Job({WORLD: (0, 1)}).call(WORLD, [0]).call(WORLD, [1], name="_all_gather_base")
    verdict = explain_hang(job.dumps()).verdict
    assert (verdict.kind, verdict.ranks) == (HangKind.DESYNC, [0, 1])
    assert verdict.confidence < 0.9
    assert [(one.ranks, one.message) for one in verdict.evidence] == [
        ([0], "called all_reduce of 4 Float"),
        ([1], "called _all_gather_base of 4 Float"),
    ]


def test_all_to_all_of_different_sizes_is_no_mismatch() -> None:
    job = Job({WORLD: (0, 1)}).call(WORLD, [0], name="all_to_all", size=1).call(WORLD, [1], name="all_to_all", size=9)
    assert _verdict(job.dumps()) == ("none", None, [])


def test_a_rank_that_left_the_loop_waits_in_another_group_than_those_that_wait_for_it() -> None:
    job = Job({WORLD: (0, 1, 2, 3), "1": (0, 1, 2, 3)}).call("1")
    job.call("1", [0, 1, 3], done=False).call(WORLD, [2], name="barrier", done=False)
    assert _verdict(job.dumps()) == (Cause.HANG, HangKind.DESYNC, [2])


def test_whom_all_wait_for_has_left_though_each_of_them_waits_in_another_group() -> None:
    job = Job(mesh(2, 2))
    for _ in range(2):
        job.call("1").call("2").call("3").call("4").call(WORLD)
    job.call(WORLD, [3], name="barrier", done=False).call("2", [2], done=False)
    job.call("1").call("3", [0], done=False).call("4", [1], done=False)
    assert _verdict(job.dumps()) == (Cause.HANG, HangKind.DESYNC, [3])


def test_ranks_that_leave_the_loop_for_what_they_never_did_are_named_and_not_those_they_keep_waiting() -> None:
    """A data-parallel rank of two tensor-parallel ones runs out of data: they are as many as those that go on."""
    job = _trained(3, num_tensor=2, num_data=2)
    job.call("1").call("2", [2, 3]).call(WORLD, [2, 3], done=False)
    job.call("3", [0], done=False).call("4", [1], done=False)
    assert _verdict(job.dumps()) == (Cause.HANG, HangKind.DESYNC, [2, 3])


def test_of_two_that_wait_for_each_other_the_one_that_all_others_wait_for_has_left() -> None:
    job = Job(mesh(2, 4)).call("1").call("2").call("3").call("4").call("5").call("6").call(WORLD)
    job.call("2", [2], name="barrier", done=False).call(WORLD, [1, 3, 5, 7], done=False)
    job.call("5", [0, 4, 6], done=False)
    assert _verdict(job.dumps()) == (Cause.HANG, HangKind.DESYNC, [2])


def test_what_one_rank_has_open_no_other_has_completed_on_gloo() -> None:
    """A peer is gone: some notice, and their calls are given up; others still wait."""
    job = Job({WORLD: (0, 1, 2, 3)}, backend="gloo").call(WORLD, given_up=True)
    job.call(WORLD, [0, 1], given_up=True).call(WORLD, [2], done=False)
    assert _verdict(job.dumps(without=[3])) == (Cause.HANG, HangKind.UNKNOWN, [3])


def test_a_rank_without_a_dump_that_others_wait_for_is_the_first_suspect() -> None:
    """pytorch#196968."""
    job = Job({WORLD: (0, 1, 2, 3)}).call(WORLD).call(WORLD, [0, 2, 3], done=False)
    report = explain_hang(job.dumps(without=[1]))
    assert (report.verdict.cause, report.verdict.kind, report.verdict.ranks) == (Cause.HANG, HangKind.UNKNOWN, [1])
    assert report.missing_ranks == [1]


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        ([1], "left no dump, and the others wait for it"),
        ([1, 2], "left no dump, and the others wait for them"),
    ],
)
def test_one_rank_is_spoken_of_as_one(missing: list[int], said: str) -> None:
    there = [rank for rank in range(4) if rank not in missing]
    job = Job({WORLD: (0, 1, 2, 3)}).call(WORLD).call(WORLD, there, done=False)
    assert explain_hang(job.dumps(without=missing)).verdict.evidence[0].message == said


@pytest.mark.parametrize(("ahead", "said"), [(1, "1 collective fewer"), (2, "2 collectives fewer")])
def test_one_collective_is_counted_as_one(ahead: int, said: str) -> None:
    job = Job({WORLD: (0, 1, 2)}).call(WORLD)
    for _ in range(ahead):
        job.call(WORLD, [1, 2], done=False)
    (evidence,) = explain_hang(job.dumps()).verdict.evidence
    assert said in evidence.message
    assert explain_hang(job.dumps()).verdict.summary.endswith("2 others wait")


def test_the_last_rank_is_missed_by_the_size_of_groups_like_its_own() -> None:
    """gloo's recorder lists no members."""
    job = Job(mesh(2, 2), backend="gloo").call("1").call("2").call("3").call("4").call(WORLD, [0, 1, 2], given_up=True)
    alike = {"0": "default_pg", "1": "tensor", "2": "tensor", "3": "data", "4": "data"}
    dumps = [
        replace(
            dump,
            groups={},
            descriptions={},
            operations=tuple(replace(call, description=alike[call.group]) for call in dump.operations),
        )
        for dump in job.dumps(without=[3])
    ]
    assert _verdict(dumps) == (Cause.HANG, HangKind.UNKNOWN, [3])


def test_the_last_rank_is_missed_where_the_size_of_the_job_is_known() -> None:
    job = Job({WORLD: (0, 1)}, backend="gloo").call(WORLD).call(WORLD, [0], given_up=True)
    unlisted = [
        replace(
            dump,
            groups={},
            descriptions={},
            operations=tuple(replace(call, description="default_pg") for call in dump.operations),
        )
        for dump in job.dumps(without=[1])
    ]
    assert explain_hang(unlisted, world_size=2).verdict.ranks == [1]


def test_a_rank_without_a_dump_comes_before_one_that_is_behind() -> None:
    job = Job(mesh(2, 4)).call("1").call("2").call("3", [5], done=False).call("4", [7], done=False)
    job.call(WORLD, [0, 1, 2, 3], done=False)
    assert _verdict(job.dumps(without=[4]))[2] == [4]


def test_few_dumps_that_wait_for_all_the_others_blame_nobody() -> None:
    job = Job({WORLD: tuple(range(16))}).call(WORLD).call(WORLD, done=False)
    cause, _, ranks = _verdict(job.dumps(without=range(2, 16)))
    assert (cause, ranks) == (Cause.INSUFFICIENT_EVIDENCE, [])


def test_few_dumps_can_still_blame_one_of_theirs() -> None:
    job = Job({WORLD: tuple(range(16)), "1": (0, 1)}).call("1").call("1", [0], done=False)
    assert _verdict(job.dumps(without=range(2, 16))) == (Cause.HANG, HangKind.HOST, [1])


def test_where_all_wait_in_the_same_call_nobody_is_blamed() -> None:
    job = _trained().call(WORLD, done=False)
    cause, kind, ranks = _verdict(job.dumps())
    assert (cause, kind, ranks) == (Cause.HANG, HangKind.UNKNOWN, [])


def test_the_end_of_a_chain_of_messages_is_stuck_on_its_host() -> None:
    job = Job({WORLD: (0, 1, 2, 3)}).call(WORLD)
    job.message(WORLD, 3, "recv 3<-2", done=False).message(WORLD, 2, "recv 2<-1", done=False)
    job.message(WORLD, 0, "send 0->1", done=False)
    assert _verdict(job.dumps()) == (Cause.HANG, HangKind.HOST, [1])


def test_a_message_excuses_who_does_not_come_to_a_collective() -> None:
    """Rank 1 waits for rank 2's message, so that it calls no collective: rank 2 does neither."""
    job = Job({WORLD: (0, 1, 2)}).call(WORLD).call(WORLD, [0], done=False)
    job.message(WORLD, 1, "recv 1<-2", done=False)
    assert _verdict(job.dumps()) == (Cause.HANG, HangKind.HOST, [2])


def test_groups_of_one_name_and_other_members_are_told_apart() -> None:
    """Groups made by splitting reuse names."""
    left = Job({"7": (0, 1)}).call("7").call("7", [1], done=False).dumps()
    right = Job({"7": (2, 3)}).call("7").call("7").call("7").dumps()
    assert _verdict([*left, *right]) == (Cause.HANG, HangKind.HOST, [0])


def test_ranks_are_grouped_by_where_they_stand() -> None:
    job = Job({WORLD: (0, 1, 2, 3)}).call(WORLD)
    job.call(WORLD, [0, 3], done=False, function="evaluate").call(WORLD, [2], done=False, function="backward")
    groups = explain_hang(job.dumps()).groups
    assert [(group.ranks, group.stack, group.waits_for) for group in groups] == [
        ([0, 3], ["evaluate (train.py:7)"], [1]),
        ([1], ["train (train.py:7)"], []),
        ([2], ["backward (train.py:7)"], [1]),
    ]


@pytest.mark.parametrize("newest", [1, 2, 5])
def test_short_ring_buffers_are_enough(newest: int) -> None:
    job = _trained(9)
    job.call("1", [1], done=False)
    assert _verdict(job.dumps(newest=newest)) == (Cause.HANG, HangKind.HOST, [0])


def test_dumps_of_different_moments_blame_nobody() -> None:
    """Rank 0 is not behind: what its peers completed since cannot complete without it."""
    early, late = _trained(3).dumps(), _trained(5).call("1", [1], done=False).dumps()
    verdict = explain_hang([early[0], *late[1:]]).verdict
    assert (verdict.cause, verdict.ranks) == (Cause.INSUFFICIENT_EVIDENCE, [])
    assert "rank 0 older" in verdict.summary


def test_a_root_that_completes_alone_says_nothing_of_moments() -> None:
    job = Job({WORLD: (0, 1, 2)}).call(WORLD).call(WORLD, [0, 1], name="broadcast").call(WORLD, [0, 1], done=False)
    assert _verdict(job.dumps()) == (Cause.HANG, HangKind.HOST, [2])


@pytest.mark.parametrize(("seconds", "cause"), [(0.2, Cause.INSUFFICIENT_EVIDENCE), (20.0, Cause.HANG)])
def test_a_call_that_is_open_for_an_instant_is_no_hang(seconds: float, cause: Cause) -> None:
    dumps = [
        replace(
            dump,
            operations=tuple(replace(one, created_ns=1_000_000_000) for one in dump.operations),
            written_ns=1_000_000_000 + int(seconds * 1e9),
        )
        for dump in _trained().call("1", [1], done=False).dumps()
    ]
    assert _verdict(dumps)[0] == cause


@pytest.mark.parametrize("only_open", [False, True])
def test_messages_of_a_group_do_not_count_as_its_collectives(only_open: bool) -> None:
    """torch writes the number of whichever was last, collective or message, into one place."""
    job = Job({WORLD: (0, 1, 2)}).call(WORLD).call(WORLD)
    for place in range(5):
        job.message(WORLD, 2, "send 2->1", done=place < 4)
    job.call(WORLD, [1], done=False)
    dumps = []
    for dump in job.dumps(only_open=only_open):
        progress = GroupProgress(5, 4) if dump.rank == 2 else dump.progress[0]
        numbered = tuple(replace(one, sequence=2) if one.is_p2p else one for one in dump.operations)
        dumps.append(replace(dump, progress={0: progress}, operations=numbered))
    assert _verdict(dumps) == (Cause.HANG, HangKind.HOST, [0])


def test_of_groups_made_anew_under_an_old_name_the_newest_counts() -> None:
    """destroy_process_group() and init_process_group() again: numbers start anew, the recorder keeps the old ones."""
    old = Job({WORLD: (0, 1)})
    for _ in range(9):
        old.call(WORLD)
    new = Job({WORLD: (0, 1)}).call(WORLD).call(WORLD, [1], done=False)
    dumps = []
    for before, after in zip(old.dumps(), new.dumps(), strict=True):
        later = [replace(one, group_id=3, record=one.record + 9) for one in after.operations]
        dumps.append(
            replace(
                after, operations=(*before.operations, *later), progress={0: before.progress[0], 3: after.progress[0]}
            )
        )
    assert _verdict(dumps) == (Cause.HANG, HangKind.HOST, [0])


def test_a_rank_of_a_giant_number_takes_no_room() -> None:
    dump = replace(Job({WORLD: (0, 1)}).call(WORLD, done=False).dumps()[0], rank=10**13, groups={})
    assert explain_hang([dump]).verdict.ranks == []


def test_what_gloo_counts_and_does_not_record_accuses_nobody() -> None:
    """Its messages are in the count of a group, and not among the calls."""
    job = Job({WORLD: (0, 1, 2)}, backend="gloo").call(WORLD).call(WORLD, [2], done=False)
    dumps = [replace(dump, progress={0: GroupProgress(5, 4 + dump.rank)}) for dump in job.dumps()]
    assert _verdict(dumps) == (Cause.HANG, HangKind.HOST, [0, 1])
    ended = Job({WORLD: (0, 1, 2)}, backend="gloo").call(WORLD).dumps()
    dumps = [replace(dump, progress={0: GroupProgress(5, 4)}) for dump in ended]
    assert _verdict(dumps) == (Cause.INSUFFICIENT_EVIDENCE, HangKind.UNKNOWN, [])


def test_a_thousand_ranks_are_answered_at_once() -> None:
    """Each answer of who waits for whom is worked out once, not by every rank."""
    ranks = tuple(range(1024))
    job = Job({WORLD: ranks}).call(WORLD).call(WORLD, [rank for rank in ranks if rank != 77], done=False)
    dumps = job.dumps()
    begin = time.process_time()
    assert _verdict(dumps) == (Cause.HANG, HangKind.HOST, [77])
    assert time.process_time() - begin < 2.0


@pytest.mark.parametrize(
    ("message", "culprit"),
    [
        (None, (HangKind.DEVICE, [0])),  # something that no recorder knows keeps its GPU
        ("begun", (HangKind.HOST, [2])),
        ("untold", (HangKind.HOST, [2])),  # starts of its group are not told: it may run
    ],
)
def test_a_collective_that_has_not_begun_behind_a_message_that_may_run_is_no_guilt(
    message: str | None, culprit: tuple[HangKind, list[int]]
) -> None:
    job = Job({"1": (0, 1), "2": (0, 2)}).call("1")
    if message is not None:
        job.message("2", 0, "recv 0<-1", done=False)
    dumps = job.call("1", done=False).dumps()
    begun = [(0, "1", 1), (1, "1", 1), (1, "1", 2), *([(0, "2", 0)] if message == "begun" else [])]
    dumps = [
        replace(
            dump,
            operations=tuple(
                replace(call, started_ns=1 if (dump.rank, call.group, call.sequence) in begun else None)
                for call in dump.operations
            ),
        )
        for dump in dumps
    ]
    assert _verdict(dumps)[1:] == culprit


@given(st.integers(2, 5), st.integers(2, 4), st.data())
def test_who_calls_the_collectives_of_two_groups_in_another_order_is_named(
    num_ranks: int, num_groups: int, data: st.DataObject
) -> None:
    """NCCL: all ranks have called all of them, so that nobody is behind."""
    ranks = tuple(range(num_ranks))
    order = [str(number) for number in range(1, num_groups + 1)]
    job = Job({WORLD: ranks} | dict.fromkeys(order, ranks))
    for _ in range(data.draw(st.integers(2, 3))):
        for group in [*order, WORLD]:
            job.call(group)
    culprit = data.draw(st.sampled_from(ranks))
    other_order = data.draw(st.permutations(order).filter(lambda one: one[0] != order[0]))
    for rank in ranks:
        for group in other_order if rank == culprit else order:
            job.call(group, [rank], done=False)
    verdict = explain_hang(job.dumps()).verdict
    assert (verdict.kind, verdict.ranks) == (HangKind.DESYNC, [culprit])
    others = "the others" if num_ranks > 2 else f"rank {1 - culprit}"
    assert verdict.summary == (
        f"rank {culprit} called all_reduce {_number(job, other_order[0])} of {other_order[0]}_group before all_reduce "
        f"{_number(job, order[0])} of {order[0]}_group, and {others} after it: a deadlock across process groups"
    )
    without_history = explain_hang(job.dumps(only_open=True)).verdict
    assert without_history.kind is HangKind.DESYNC
    assert without_history.ranks == ([culprit] if num_ranks > 2 else [0, 1])


def _number(job: Job, group: str) -> int:
    return max(call.sequence for call in job.dumps()[0].operations if call.group == group)


def test_a_cycle_of_three_groups_names_all_three() -> None:
    job = Job({WORLD: (0, 1, 2), "1": (0, 1), "2": (1, 2), "3": (0, 2)}).call(WORLD)
    for rank, groups in enumerate(("13", "21", "32")):
        for group in groups:
            job.call(group, [rank], done=False)
    verdict = explain_hang(job.dumps()).verdict
    assert (verdict.kind, verdict.ranks) == (HangKind.DESYNC, [0, 1, 2])
    assert verdict.evidence[0].message == (
        "waits in all_reduce 1 of 1_group for rank 1, which called it after all_reduce 1 of 2_group"
    )


@given(st.data())
def test_ranks_that_call_in_one_order_never_deadlock_whatever_has_ended_at_whatever_moment(data: st.DataObject) -> None:
    num_ranks = data.draw(st.integers(2, 5))
    ranks = st.lists(st.integers(0, num_ranks - 1), min_size=2, unique=True).map(lambda one: tuple(sorted(one)))
    members = data.draw(st.lists(ranks, min_size=1, max_size=4))
    job = Job({WORLD: tuple(range(num_ranks))} | {str(number + 1): one for number, one in enumerate(members)})
    program = data.draw(st.lists(st.sampled_from(list(job.groups)), min_size=1, max_size=8))
    called = [data.draw(st.integers(0, len(program))) for _ in range(num_ranks)]
    ended = [data.draw(st.integers(0, one)) for one in called]
    for place, group in enumerate(program):
        for rank in job.groups[group]:
            if place < called[rank]:
                job.call(group, [rank], done=place < ended[rank])
    assert explain_hang(job.dumps()).verdict.kind is not HangKind.DESYNC


def test_gloo_runs_its_groups_at_once_so_that_their_order_says_nothing() -> None:
    job = Job({WORLD: (0, 1), "1": (0, 1)}, backend="gloo").call(WORLD).call("1")
    for rank, groups in enumerate((("1", WORLD), (WORLD, "1"))):
        for group in groups:
            job.call(group, [rank], done=False)
    assert _verdict(job.dumps()) == (Cause.HANG, HangKind.UNKNOWN, [])


def test_a_collective_that_runs_beside_an_older_one_does_not_wait_for_it() -> None:
    job = Job({WORLD: (0, 1), "1": (0, 1)}).call(WORLD).call("1")
    for rank, groups in enumerate((("1", WORLD), (WORLD, "1"))):
        for group in groups:
            job.call(group, [rank], done=False)
    dumps = [
        replace(dump, operations=tuple(replace(call, started_ns=1) for call in dump.operations)) for dump in job.dumps()
    ]
    assert _verdict(dumps) == (Cause.HANG, HangKind.UNKNOWN, [])


def test_a_host_that_waits_for_its_gpu_before_the_call_is_stuck_on_the_gpu() -> None:
    job = _trained().call("1", [1], done=False)
    waits = {0: "item() in train (train.py:7)", 1: "item() in train (train.py:9)"}
    verdict = explain_hang(job.dumps(), device_waits=waits).verdict
    assert (verdict.kind, verdict.ranks, verdict.reasons) == (HangKind.DEVICE, [0], ["device"])
    assert verdict.summary == (
        "rank 0 never called the collective that the others wait in: its GPU does not finish the work before it, for "
        "which the host waits in item() in train (train.py:7); 1 other waits"
    )


def test_a_host_that_waits_for_its_gpu_while_a_message_is_open_may_wait_for_the_message() -> None:
    job = Job({WORLD: (0, 1, 2)}).call(WORLD).call(WORLD, [0, 1], done=False)
    job.message(WORLD, 2, "send 2->1", done=False).message(WORLD, 1, "recv 1<-2", done=False)
    verdict = explain_hang(job.dumps(), device_waits={2: "item() in train (train.py:7)"}).verdict
    assert (verdict.kind, verdict.ranks) == (HangKind.HOST, [2])
