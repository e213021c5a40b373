"""A replayed schedule matches the closed form where that is exact, and predicts nothing it cannot know."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.analyzer.pipeline.schedules import Order, Pass, Task, interleaved_order
from stepscope.analyzer.what_if.pipeline_schedule import HostTime, PipelineSchedule, replay_schedules
from stepscope.core.documents.what_if import WhatIfInput
from stepscope.core.vocabulary import Cause

MS = 1e6


def schedule(order: Order, pass_ms: dict[tuple[Pass, int], float], *, tail_ms: float = 5.0) -> PipelineSchedule:
    built = PipelineSchedule(
        chain=tuple(range(len(order))),
        order=order,
        pass_ns=[{task: pass_ms[task.kind, task.stage] * MS for tasks in order for task in tasks}],
        transfer_ns=0.0,
        between_ns=0.0,
        tail_ns=tail_ms * MS,
        period_ns=0.0,
        steps=[3, 4],
    )
    return replace(built, period_ns=built.step_ns())


def even(num_devices: int, num_micro_batches: int, forward_ms: float = 8.0) -> PipelineSchedule:
    times = {(Pass.FORWARD, d): forward_ms for d in range(num_devices)}
    times |= {(Pass.BACKWARD, d): 2 * forward_ms for d in range(num_devices)}
    return schedule(interleaved_order(num_devices, num_micro_batches), times)


@given(st.integers(2, 4), st.integers(1, 3), st.sampled_from([2, 4]))
def test_on_even_stages_more_micro_batches_give_the_closed_form(devices: int, rounds: int, times: int) -> None:
    micro_batches = devices * rounds
    finer = even(devices, micro_batches).with_more_micro_batches(times)
    assert finer is not None
    cut = micro_batches * times
    assert finer.step_ns() / MS == pytest.approx((cut + devices - 1) * 24 / times + 5)


def test_what_only_the_last_micro_batch_has_is_not_cut() -> None:
    whole = even(2, 2)
    reduced = 6 * MS  # gradients of both stages, inside the last backward
    pass_ns = {
        task: own + (reduced if task.kind is Pass.BACKWARD and task.micro_batch == 1 else 0.0)
        for task, own in whole.pass_ns[0].items()
    }
    finer = replace(whole, pass_ns=[pass_ns]).with_more_micro_batches(2)
    assert finer is not None
    assert finer.pass_ns[0][Task(Pass.BACKWARD, 0, 3)] == 8 * MS + reduced
    assert finer.pass_ns[0][Task(Pass.BACKWARD, 0, 1)] == 8 * MS


def test_the_report_says_what_it_replayed_and_gives_every_fix_beside_its_replay() -> None:
    times = {(Pass.FORWARD, 0): 4.0, (Pass.BACKWARD, 0): 8.0, (Pass.FORWARD, 1): 12.0, (Pass.BACKWARD, 1): 24.0}
    report = replay_schedules([schedule(interleaved_order(2, 2), times)])
    assert report.input is WhatIfInput.SCHEDULE
    assert report.replay_error == pytest.approx(0.0)
    assert report.measured_step_ms == pytest.approx(4 + 2 * 36 + 8 + 5)
    assert {fix.fix for fix in report.fixes} == {Cause.PIPELINE_BUBBLE, Cause.IMBALANCE}
    imbalance = next(fix for fix in report.fixes if fix.fix is Cause.IMBALANCE)
    assert imbalance.step_ms == pytest.approx(3 * 24 + 5)
    assert imbalance.ranks == [1]
    assert [fix.fix for fix in replay_schedules([even(2, 2)], [Cause.PIPELINE_BUBBLE]).fixes] == ["pipeline_bubble"] * 2


def test_a_schedule_that_is_not_known_gets_no_more_micro_batches_and_says_so() -> None:
    unusual = [
        [Task(Pass.FORWARD, 0, 1), Task(Pass.FORWARD, 0, 0), Task(Pass.BACKWARD, 0, 0), Task(Pass.BACKWARD, 0, 1)]
    ]
    unusual.append(
        [Task(Pass.FORWARD, 1, 1), Task(Pass.BACKWARD, 1, 1), Task(Pass.FORWARD, 1, 0), Task(Pass.BACKWARD, 1, 0)]
    )
    times = {(kind, stage): 1.0 for kind in (Pass.FORWARD, Pass.BACKWARD) for stage in range(2)}
    report = replay_schedules([schedule(unusual, times)], [Cause.PIPELINE_BUBBLE])
    assert report.fixes == []
    assert "no_pipeline_fix" in [notice.code for notice in report.warnings]


def test_no_cut_goes_below_what_the_host_takes_to_launch_it() -> None:
    """The step of 77 ms would take 65 in four parts and 59 in eight: the host needs 10 + 4 * 13 and 10 + 8 * 13."""
    launched = replace(even(2, 2), host=[HostTime(26 * MS, 10 * MS), HostTime(20 * MS, 0.0)])
    report = replay_schedules([launched], [Cause.PIPELINE_BUBBLE])
    assert report.measured_step_ms == pytest.approx(77)
    (fix,) = report.fixes
    assert fix.step_ms == pytest.approx(65)
    assert fix.binds_next is None
    slower = replace(launched, host=[HostTime(30 * MS, 10 * MS)])
    (fix,) = replay_schedules([slower], [Cause.PIPELINE_BUBBLE]).fixes
    assert fix.step_ms == pytest.approx(70)
    assert fix.binds_next is Cause.HOST_BOUND
    at_its_limit = replace(launched, host=[HostTime(40 * MS, 10 * MS)])
    report = replay_schedules([at_its_limit], [Cause.PIPELINE_BUBBLE])
    assert report.fixes == []
    (notice,) = [notice for notice in report.warnings if notice.code == "no_pipeline_fix"]
    assert notice.message.endswith("a host takes 90.0 ms to launch a step of 4 micro-batches")
