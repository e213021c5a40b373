"""A replay matches the schedule of an independent simulation, as measured and with a cause removed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import mean, median
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.analyzer.summaries import JobContext
from stepscope.analyzer.what_if import transfer_edges
from stepscope.analyzer.what_if.fixes import FIXES
from stepscope.analyzer.what_if.replay import replay_times
from stepscope.analyzer.what_if.whole_job import replay_model, what_if_job
from stepscope.core.documents.what_if import Fix, WhatIfReport
from stepscope.core.vocabulary import Cause
from tests.analyzer.readings import view_of
from tests.analyzer.what_if.schedules import FIRST_STEP, Schedule, Step, fastest, plain_step, run

CLOSE = 0.02
"""Launches and events cost constants that are estimated from the trace: a microsecond or two here and there."""


def what_if(schedule: Schedule, *, unprofiled_ms: float | None = None) -> WhatIfReport:
    traces, _ = run(schedule)
    return what_if_job([view_of(trace) for trace in traces], JobContext(unprofiled_step_ms=unprofiled_ms))


def step_ms(schedule: Schedule, numbers: Sequence[int] = ()) -> float:
    """Median over ranks of the mean whole step, of the steps of these numbers."""
    chosen = [number - FIRST_STEP for number in numbers]
    steps = [[own[place] for place in chosen] if chosen else own for own in run(schedule)[1]]
    return median(map(mean, steps)) / 1e3


def without(schedule: Schedule, field: str) -> Schedule:
    """The schedule in which that takes no time."""
    values: dict[str, Any] = {field: 0}
    return schedule.each(lambda step: replace(step, **values))


def fix_of(report: WhatIfReport, cause: Cause, change: str = "") -> Fix:
    return next(fix for fix in report.fixes if fix.fix is cause and change in fix.change)


def job(*steps: Step, blocking: bool = False, num_steps: int = 4) -> Schedule:
    """One step a rank, the same every time."""
    return Schedule(tuple((step,) * num_steps for step in steps), blocking)


GPU_BOUND = plain_step((20, 2000), (20, 1000), (20, 3000))
LOADING = plain_step((20, 2000), (20, 1000), loader=9000)
HOST_LATE = plain_step((3000, 500), (2000, 700), (1000, 400))


@pytest.mark.parametrize(
    "schedule",
    [
        job(GPU_BOUND),
        job(LOADING),
        job(HOST_LATE),
        job(HOST_LATE, blocking=True),
        job(GPU_BOUND, GPU_BOUND, blocking=True),
        job(GPU_BOUND, plain_step((20, 5000), (20, 1000), (20, 3000))),
        job(LOADING, HOST_LATE, blocking=True),
    ],
)
def test_nothing_changed_gives_the_measured_step(schedule: Schedule) -> None:
    report = what_if(schedule)
    assert report.measured_step_ms == pytest.approx(step_ms(schedule))
    assert report.replayed_step_ms == pytest.approx(step_ms(schedule), rel=CLOSE)


@pytest.mark.parametrize("blocking", [False, True])
def test_without_loading_the_step_is_that_of_a_job_whose_data_is_ready(blocking: bool) -> None:
    schedule = job(LOADING, LOADING, blocking=blocking)
    fix = fix_of(what_if(schedule), Cause.DATA_LOADING)
    assert fix.step_ms == pytest.approx(step_ms(without(schedule, "loader")), rel=CLOSE)
    assert fix.speedup > 2


def test_loading_on_one_rank_alone_names_that_rank() -> None:
    schedule = job(GPU_BOUND, replace(GPU_BOUND, loader=9000))
    fix = fix_of(what_if(schedule), Cause.DATA_LOADING)
    assert fix.ranks == [1]
    assert fix.step_ms == pytest.approx(step_ms(without(schedule, "loader")), rel=CLOSE)


def test_without_checkpoints_the_step_is_that_of_a_job_that_saves_none() -> None:
    schedule = job(GPU_BOUND, replace(GPU_BOUND, checkpoint=20_000), blocking=True)
    fix = fix_of(what_if(schedule), Cause.CHECKPOINT)
    assert fix.step_ms == pytest.approx(step_ms(without(schedule, "checkpoint")), rel=CLOSE)


def test_without_a_straggler_every_rank_is_as_fast_as_the_fastest() -> None:
    slow = plain_step((20, 4000), (20, 1500), (20, 3000))
    fix = fix_of(what_if(job(GPU_BOUND, slow)), Cause.STRAGGLER)
    assert fix.step_ms == pytest.approx(step_ms(job(*[fastest([GPU_BOUND, slow])] * 2)), rel=CLOSE)
    assert fix.ranks == [1]


def test_kernels_that_only_the_straggler_runs_are_gone() -> None:
    extra = Step(0, (GPU_BOUND.kernels[0], *[(20, 900, "extra")] * 5, *GPU_BOUND.kernels[1:]), 30)
    fix = fix_of(what_if(job(GPU_BOUND, extra)), Cause.STRAGGLER)
    assert fix.step_ms == pytest.approx(step_ms(job(GPU_BOUND, GPU_BOUND)), rel=CLOSE)


def test_balanced_work_is_the_mean_of_the_ranks() -> None:
    heavy, light = plain_step((20, 6000)), plain_step((20, 2000))
    uneven = Schedule(((heavy, light, heavy, light, heavy), (light, heavy, light, heavy, light)))
    fix = fix_of(what_if(uneven), Cause.IMBALANCE)
    assert fix.step_ms == pytest.approx(step_ms(job(*[plain_step((20, 4000))] * 2)), rel=CLOSE)


def test_free_transfers_leave_the_waiting() -> None:
    late = plain_step((20, 5000))
    schedule = job(plain_step((20, 1000), transfer=2500), replace(late, transfer=2500))
    fix = fix_of(what_if(schedule), Cause.COMMUNICATION, "free")
    assert fix.step_ms == pytest.approx(step_ms(without(schedule, "transfer")), rel=CLOSE)


def test_without_host_delay_the_device_decides() -> None:
    fix = fix_of(what_if(job(HOST_LATE)), Cause.HOST_BOUND)
    assert fix.step_ms == pytest.approx(step_ms(job(plain_step((0, 500), (0, 700), (0, 400)))), rel=CLOSE)


def test_without_blocking_calls_the_host_runs_ahead() -> None:
    mixed = plain_step((1500, 500), (100, 2500))
    fix = fix_of(what_if(job(mixed, blocking=True)), Cause.SYNCHRONIZATION)
    assert fix.step_ms == pytest.approx(step_ms(job(mixed)), rel=CLOSE)


def test_when_two_causes_bind_the_second_is_named() -> None:
    report = what_if(job(replace(HOST_LATE, loader=7000), num_steps=5))
    assert fix_of(report, Cause.DATA_LOADING).binds_next is Cause.HOST_BOUND


def test_calibration_scales_host_time_until_the_replay_meets_the_unprofiled_step() -> None:
    slow_host, host = plain_step((3000, 500), (3000, 700)), plain_step((1500, 500), (1500, 700))
    unprofiled = step_ms(job(host))
    report = what_if(job(slow_host), unprofiled_ms=unprofiled)
    assert report.host_scale == pytest.approx(0.5, abs=0.02)
    assert report.calibrated_replay_ms == pytest.approx(unprofiled, rel=CLOSE)


def test_a_step_that_no_host_speed_explains_is_not_calibrated() -> None:
    report = what_if(job(GPU_BOUND), unprofiled_ms=step_ms(job(GPU_BOUND)) / 3)
    assert report.host_scale is None
    assert [notice.code for notice in report.warnings] == ["not_calibrated"]


kernel = st.tuples(st.integers(10, 2000), st.integers(200, 3000))


@st.composite
def schedules(draw: st.DrawFn, *, max_ranks: int = 3) -> Schedule:
    """Jobs of a few ranks whose kernels take other times on every rank and in every step."""
    num_kernels = draw(st.integers(1, 3))
    steps = st.builds(
        lambda kernels, loader: plain_step(*kernels, loader=loader, transfer=100),
        st.lists(kernel, min_size=num_kernels, max_size=num_kernels),
        st.sampled_from([0, 0, 4000]),
    )
    own = st.lists(steps, min_size=3, max_size=3).map(tuple)
    ranks = draw(st.lists(own, min_size=1, max_size=max_ranks))
    return Schedule(tuple(ranks), draw(st.booleans()))


@settings(max_examples=40)
@given(schedule=schedules())
def test_any_schedule_is_replayed(schedule: Schedule) -> None:
    report = what_if(schedule)
    assert report.replayed_step_ms == pytest.approx(step_ms(schedule, report.steps), rel=CLOSE, abs=0.02)
    for fix in report.fixes:
        if fix.fix is Cause.DATA_LOADING:
            ready = step_ms(without(schedule, "loader"), report.steps)
            assert fix.step_ms == pytest.approx(ready, rel=CLOSE, abs=0.03)


@settings(max_examples=40)
@given(schedule=schedules())
def test_nothing_happens_later_because_a_cause_is_gone(schedule: Schedule) -> None:
    model = replay_model([view_of(trace) for trace in run(schedule)[0]])
    assert model is not None
    before = replay_times(model.graph, model.base)
    for (cause, _), apply in FIXES.items():
        fixed = apply(model, model.base)
        if fixed is not None and cause is not Cause.IMBALANCE:  # which moves work to other ranks
            assert (replay_times(model.graph, fixed) <= before).all(), cause


@settings(max_examples=20)
@given(schedule=schedules(max_ranks=6))
def test_one_node_for_the_last_arrival_changes_no_time(schedule: Schedule) -> None:
    views = [view_of(trace) for trace in run(schedule)[0]]
    times = []
    for members in (2, 100):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(transfer_edges, "LARGE_COLLECTIVE", members)
            model = replay_model(views)
        assert model is not None
        fixes = [apply(model, model.base) for apply in FIXES.values()]
        of_ranks = slice(model.graph.layout.num_nodes - model.graph.layout.num_arrivals)
        times.append([replay_times(model.graph, one)[of_ranks] for one in [model.base, *fixes] if one is not None])
    assert all(np.array_equal(one, other) for one, other in zip(*times, strict=True))


def test_the_graph_of_a_collective_grows_with_its_members() -> None:
    steps = (plain_step((10, 300), (10, 200)),) * 3
    slots = []
    for num_ranks in (8, 16, 32):
        model = replay_model([view_of(trace) for trace in run(Schedule((steps,) * num_ranks))[0]])
        assert model is not None
        slots.append(model.graph.num_slots)
    assert slots[2] - slots[1] == pytest.approx(2 * (slots[1] - slots[0]), rel=0.01)
