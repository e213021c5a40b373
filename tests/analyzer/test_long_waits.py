"""A long wait is named with its rank and step, also where all ranks' steps are equally long."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from stepscope.analyzer.long_waits import StepWaits, long_waits
from stepscope.analyzer.step_telemetry import log_report, step_report
from stepscope.core.documents.steps import LoggedSteps, LongWait, RankSteps, Step, TrainingLog

_MS = 1_000_000
_USUAL_MS, _USUAL_WAIT_MS = 15_000, 1_000


def _ranks(
    waits: dict[int, dict[int, int]], *, num_ranks: int = 8, num_steps: int = 60, phase: str = ""
) -> list[RankSteps]:
    """Ranks that wait for each other: waits (or a phase of that name) in ms by step and rank lengthen all ranks'."""
    seen = random.Random(0)
    ranks = [RankSteps(rank) for rank in range(num_ranks)]
    for index in range(num_steps):
        added = waits.get(index, {})
        whole = _USUAL_MS + max(added.values(), default=0)
        for rank in range(num_ranks):
            wait = seen.randint(200, _USUAL_WAIT_MS) + (0 if phase else added.get(rank, 0))
            phases = {"fwd_bwd": (whole - wait - (added.get(rank, 0) if phase else 0)) * _MS}
            if phase and rank in added:
                phases[phase] = added[rank] * _MS
            length = whole + seen.randint(-3, 3)
            ranks[rank].add(Step(index, 0, length * _MS, wait * _MS, phases))
    return ranks


def test_one_rank_at_a_time_waits_for_data() -> None:
    """m2lines/Samudra#634: the step is equally long on all ranks, which wait in fwd_bwd."""
    report = step_report(_ranks({23: {5: 21_000}, 27: {2: 19_000}, 36: {5: 46_000}, 52: {0: 39_000}}))
    assert [(wait.step, wait.name, wait.ranks) for wait in report.long_waits] == [
        (23, "data", [5]),
        (27, "data", [2]),
        (36, "data", [5]),
        (52, "data", [0]),
    ]
    wait = report.long_waits[2]
    assert 46_000 <= wait.ms <= 47_000
    assert wait.usual_ms <= _USUAL_WAIT_MS
    assert abs(wait.step_ms - 61_000) < 10
    row = report.steps[36]
    assert (row.slowest_rank, row.data_wait_rank) == (None, 5)
    assert report.data_wait is not None
    assert report.longest_data_wait is not None
    assert report.longest_data_wait > 2 * report.data_wait


def test_several_ranks_and_all_of_them() -> None:
    report = step_report(_ranks({20: {1: 30_000, 4: 29_000}, 40: dict.fromkeys(range(8), 30_000)}))
    assert [(wait.step, wait.ranks) for wait in report.long_waits] == [(20, [1, 4]), (40, list(range(8)))]


def test_one_rank_alone_in_a_phase() -> None:
    report = step_report(_ranks({30: {0: 20_000}}, phase="checkpoint"))
    assert [(wait.step, wait.name, wait.ranks, wait.ms) for wait in report.long_waits] == [
        (30, "checkpoint", [0], 20_000)
    ]


def test_a_phase_that_all_ranks_are_in_names_none() -> None:
    assert step_report(_ranks({30: dict.fromkeys(range(8), 20_000)}, phase="checkpoint")).long_waits == []


def test_one_rank_is_named_by_its_data_wait_alone() -> None:
    report = step_report(_ranks({30: {0: 20_000}}, num_ranks=1))
    assert [(wait.step, wait.ranks) for wait in report.long_waits] == [(30, [0])]
    assert step_report(_ranks({30: {0: 20_000}}, num_ranks=1, phase="checkpoint")).long_waits == []


def test_a_wait_that_the_step_does_not_show_is_no_long_one() -> None:
    ranks = _ranks({})
    ranks[3].steps[30] = Step(30, 0, _USUAL_MS * _MS, 9_000 * _MS)
    assert step_report(ranks).long_waits == []


def test_always_slow_loading_is_usual() -> None:
    assert step_report(_ranks({step: {3: 10_000} for step in range(60)})).long_waits == []


def test_the_first_and_captured_steps_do_not_count() -> None:
    ranks = _ranks({0: {3: 30_000}})
    assert step_report(ranks).long_waits == []


def test_too_few_steps_show_nothing() -> None:
    assert step_report(_ranks({3: {3: 30_000}}, num_steps=5)).long_waits == []


def test_a_slower_rank_is_still_named() -> None:
    ranks = [RankSteps(rank, [Step(0, 0, (10 + (rank == 2)) * _MS)]) for rank in range(4)]
    assert step_report(ranks).steps[0].slowest_rank == 2


def test_logs() -> None:
    logged = [LoggedSteps(step, 1, 1000.0 + 9000.0 * (step == 7), 10.0 + 9000.0 * (step == 7)) for step in range(1, 20)]
    (wait,) = log_report(TrainingLog("Megatron-LM", logged)).long_waits
    assert wait == LongWait(7, "data", [], 9010.0, 10.0, 10_000.0, 1000.0)
    logged[6] = LoggedSteps(7, 1, 10_000.0, 9010.0, 5)
    assert log_report(TrainingLog("Megatron-LM", logged)).long_waits[0].ranks == [5]


def test_a_log_s_report_counts_steps_and_not_lines() -> None:
    logged = [LoggedSteps(10, 10, 900.0), LoggedSteps(20, 10, 100.0), LoggedSteps(21, 1, 500.0)]
    report = log_report(TrainingLog("torchtitan", logged))
    assert (report.num_steps, report.num_settled, report.ranks, report.source) == (21, 11, [], "torchtitan")
    assert (report.step_ms.p50, report.step_ms.max) == (100.0, 500.0)
    assert report.data_wait is None
    assert [(row.slowest_rank, row.num_steps) for row in report.steps] == [(None, 10), (None, 10), (None, 1)]
    assert log_report(TrainingLog("x", logged[:1])).step_ms.p50 == 900.0  # the only line


def test_what_a_restart_repeats_is_said() -> None:
    logged = [LoggedSteps(step, 1, 9.0) for step in (1, 2, 3)]
    logged += [LoggedSteps(step, 1, 5.0, attempt=2) for step in (2, 3)]
    report = log_report(TrainingLog("Megatron-LM", logged))
    assert [row.ms for row in report.steps] == [9.0, 5.0, 5.0]
    assert [notice.message for notice in report.warnings] == [
        "the log holds 2 starts of the training; 2 steps that a later one repeats are left out"
    ]


@given(
    st.lists(
        st.tuples(
            st.floats(0, 1e9),
            st.dictionaries(st.none() | st.integers(0, 9), st.floats(0, 1e9), max_size=4),
            st.dictionaries(st.sampled_from("ab"), st.dictionaries(st.integers(0, 3), st.floats(0, 1e9), min_size=1)),
        ),
        max_size=12,
    )
)
def test_each_long_wait_is_of_a_longer_step(
    steps: list[tuple[float, dict[int | None, float], dict[str, dict[int | None, float]]]],
) -> None:
    waits = [StepWaits(index, *step) for index, step in enumerate(steps)]
    for wait in long_waits(waits):
        assert wait.step_ms > wait.usual_step_ms
        assert wait.ms >= wait.usual_ms
        assert set(wait.ranks) <= {
            rank for of in (waits[wait.step].data, *waits[wait.step].phases.values()) for rank in of
        }
