"""Replays of CPU ranks match an independent simulation, as measured and with a cause removed."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean, median

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.analyzer.summaries import JobContext
from stepscope.analyzer.what_if.whole_job import what_if_job
from stepscope.core.documents.what_if import Fix, WhatIfInput, WhatIfReport
from stepscope.core.errors import DataError
from stepscope.core.vocabulary import Cause
from stepscope.trace.columns import ProcessGroup
from tests.analyzer.build import WORKER, TraceBuilder
from tests.analyzer.readings import analyse, view_of
from tests.analyzer.what_if.host_schedules import FIRST_STEP, HostStep, run, without

Job = Sequence[Sequence[HostStep]]
EXACT = 1e-5
"""Nodes that meet at one instant are kept a nanosecond apart."""


def what_if(job: Job, *causes: Cause) -> WhatIfReport:
    traces, _ = run(job)
    return what_if_job([view_of(trace) for trace in traces], JobContext(), causes=causes)


def step_ms(job: Job) -> float:
    """Median over ranks of the mean whole step."""
    return median(map(mean, run(job)[1])) / 1e3


def fix_of(report: WhatIfReport, cause: Cause, change: str = "") -> Fix:
    return next(fix for fix in report.fixes if fix.fix is cause and change in fix.change)


def alike(*steps: HostStep, num_steps: int = 3) -> Job:
    """One step a rank, the same every time."""
    return [[step] * num_steps for step in steps]


PLAIN = HostStep(operators=(900, 2000, 1500))
LOADING = HostStep(operators=(900, 2000, 1500), loader=7000)
SLOW = HostStep(operators=(2700, 6000, 4500))


@pytest.mark.parametrize(
    "job",
    [alike(PLAIN), alike(PLAIN, PLAIN), alike(LOADING, PLAIN), alike(PLAIN, SLOW, PLAIN), alike(SLOW, LOADING)],
)
def test_nothing_changed_gives_the_measured_step(job: Job) -> None:
    report = what_if(job)
    assert report.input is WhatIfInput.TRACES
    assert report.measured_step_ms == pytest.approx(step_ms(job))
    assert report.replayed_step_ms == pytest.approx(step_ms(job), rel=EXACT)


def test_without_loading_nobody_waits_for_the_rank_that_loaded() -> None:
    fix = fix_of(what_if(alike(LOADING, PLAIN)), Cause.DATA_LOADING)
    assert fix.step_ms == pytest.approx(step_ms(alike(PLAIN, PLAIN)), rel=EXACT)
    assert fix.ranks == [0]


def test_without_a_straggler_its_peers_do_not_wait() -> None:
    fix = fix_of(what_if(alike(PLAIN, SLOW, PLAIN)), Cause.STRAGGLER)
    assert fix.step_ms == pytest.approx(step_ms(alike(PLAIN, PLAIN, PLAIN)), rel=EXACT)
    assert fix.ranks == [1]


def test_operators_that_only_the_straggler_runs_are_gone_with_what_python_takes_before_them() -> None:
    extra = HostStep(operators=PLAIN.operators, extra=(3000, 3000))
    fix = fix_of(what_if(alike(PLAIN, extra)), Cause.STRAGGLER)
    assert fix.step_ms == pytest.approx(step_ms(alike(PLAIN, PLAIN)), rel=EXACT)


def test_the_luck_of_single_operators_is_no_straggler() -> None:
    job = alike(HostStep(operators=(900, 3000, 1500)), HostStep(operators=(2900, 1000, 1500)))
    fix = fix_of(what_if(job), Cause.STRAGGLER)
    assert fix.step_ms > 0.9 * step_ms(alike(HostStep(operators=(900, 3000, 1500))))


@pytest.mark.parametrize("gathers", [0, 800])
def test_without_checkpoints_the_step_is_that_of_a_job_that_saves_none(gathers: int) -> None:
    saves = HostStep(operators=PLAIN.operators, checkpoint=9000, gathers=gathers)
    uneven = HostStep(operators=PLAIN.operators, checkpoint=4000, gathers=gathers)
    fix = fix_of(what_if(alike(saves, uneven)), Cause.CHECKPOINT)
    # one gap more where the span cuts Python's time in two
    assert fix.step_ms == pytest.approx(step_ms(alike(PLAIN, PLAIN)), abs=0.02)


def test_free_transfers_leave_the_waiting_for_the_late() -> None:
    job = alike(HostStep((900, 100), transfer=5000), HostStep((4000, 100), transfer=5000))
    fix = fix_of(what_if(job), Cause.COMMUNICATION)
    assert fix.step_ms == pytest.approx(step_ms(without(job, transfer=0)), rel=EXACT)


def test_a_reduction_that_ended_behind_compute_is_still_waited_for_when_compute_is_gone() -> None:
    extra = HostStep(operators=(900, 50), transfer=2000, extra=(6000,))
    job = alike(extra, HostStep(operators=(900, 50), transfer=2000))
    fix = fix_of(what_if(job), Cause.STRAGGLER)
    assert fix.step_ms == pytest.approx(step_ms(without(job, extra=())), rel=0.2)
    assert fix.step_ms > 2.0


def test_a_thread_that_computes_and_waits_itself_has_no_blocking_calls_to_save() -> None:
    assert not [fix for fix in what_if(alike(PLAIN, SLOW)).fixes if fix.fix is Cause.SYNCHRONIZATION]


def test_the_analysis_says_what_removing_its_cause_would_buy() -> None:
    traces, _ = run(alike(PLAIN, SLOW, PLAIN))
    analysis = analyse(*traces)
    assert analysis.verdict.cause is Cause.STRAGGLER
    gain = next(gain for gain in analysis.what_if if gain.fix is Cause.STRAGGLER)
    assert gain.step_ms == pytest.approx(step_ms(alike(PLAIN, PLAIN, PLAIN)), rel=EXACT)


def test_a_rank_without_steps_is_named() -> None:
    traces, _ = run(alike(PLAIN, PLAIN))
    bare = TraceBuilder(rank=2, world_size=3, gpu=None)
    bare.operator("aten::mm", 0, 5000)
    with pytest.raises(DataError, match="cannot be replayed: rank 2 has no profiled steps"):
        what_if_job([view_of(trace) for trace in [*traces, bare]], JobContext())


def test_ranks_with_and_without_a_device_are_not_replayed_together() -> None:
    traces, _ = run(alike(PLAIN))
    device = TraceBuilder(rank=1, world_size=2)
    device.step(3, 0, 100)
    device.kernel(20, 80, launch=10)
    with pytest.raises(DataError, match="rank 1 is traced on a device, others are not"):
        what_if_job([view_of(trace) for trace in [*traces, device]], JobContext())


def _fed_by_its_peer(loaders: Sequence[int]) -> tuple[list[TraceBuilder], list[int]]:
    """Rank 1 asks for what rank 0 sends, loads, computes; both reduce. The traces, and the steps' lengths."""
    world = ProcessGroup("0", "default_pg", (0, 1))
    first, second = (TraceBuilder(rank=rank, world_size=2, gpu=None, groups=(world,)) for rank in (0, 1))
    now, lengths = 0, []
    for number, loader in enumerate(loaders):
        first.operator("aten::mm", now, now + 500)
        first.operator("c10d::send", now + 500, now + 501, concrete='["", "", "1", "0"]')
        first.annotation("gloo:send", now + 501, now + 510)
        second.operator("c10d::recv_", now, now + 1, concrete='["", "", "0", "0"]')
        if loader:
            second.annotation("enumerate(DataLoader)#_SingleProcess.__next__", now + 5, now + 5 + loader)
        came = max(now + 520, now + 15 + loader)
        second.annotation("gloo:recv", now + 1, came)
        second.operator("aten::mm", came + 5, came + 805)
        for trace, asked in ((first, now + 520), (second, came + 810)):
            trace.operator("c10d::allreduce_", asked, asked + 5)
            trace.annotation("gloo:all_reduce", asked + 1, came + 910, thread=WORKER)
            trace.step(FIRST_STEP + number, now, came + 930)
        lengths.append(came + 930 - now)
        now = came + 930
    return [first, second], lengths


def test_what_had_long_come_when_it_was_asked_for_is_no_long_transfer() -> None:
    traces, lengths = _fed_by_its_peer([3000, 0, 3000, 0])
    report = what_if_job([view_of(trace) for trace in traces], JobContext())
    assert report.replayed_step_ms == pytest.approx(mean(lengths[:-1]) / 1e3, rel=0.01)
    assert fix_of(report, Cause.DATA_LOADING).step_ms == pytest.approx(lengths[1] / 1e3, rel=0.02)


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    """Any few ranks and steps with the same operators."""
    num_ranks, num_steps = draw(st.integers(1, 3)), draw(st.integers(2, 4))
    num_operators = draw(st.integers(1, 4))
    times = st.integers(1, 5000)
    return [
        [
            HostStep(
                operators=tuple(draw(times) for _ in range(num_operators)),
                loader=draw(st.sampled_from((0, 0, 50, 4000))),
                transfer=300,
                extra=tuple(draw(st.lists(times, max_size=1))),
                checkpoint=draw(st.sampled_from((0, 0, 3000))),
            )
            for _ in range(num_steps)
        ]
        for _ in range(num_ranks)
    ]


@settings(max_examples=60, deadline=None)
@given(jobs())
def test_any_job_is_replayed_and_none_gets_slower_without_a_cause(job: Job) -> None:
    report = what_if(job)
    assert report.replayed_step_ms == pytest.approx(report.measured_step_ms, rel=1e-3)
    grows = {Cause.IMBALANCE, Cause.STRAGGLER}  # what a step has less of, another may have more of
    assert all(fix.step_ms <= report.replayed_step_ms + 1e-3 for fix in report.fixes if fix.fix not in grows)


@settings(max_examples=60, deadline=None)
@given(jobs())
def test_without_loading_any_job_is_the_one_whose_data_is_ready(job: Job) -> None:
    job = without(job, checkpoint=0)
    fixes = [fix for fix in what_if(job, Cause.DATA_LOADING).fixes if fix.fix is Cause.DATA_LOADING]
    expected = step_ms(without(job, loader=0))
    # a reduction that ended behind compute is waited for before the optimizer, but known to be only at the step's end
    assert all(fix.step_ms == pytest.approx(expected, rel=0.02, abs=0.7) for fix in fixes)
