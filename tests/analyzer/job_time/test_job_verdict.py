"""The verdict is about the training time of all steps; a capture of a few divides what their records leave open."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from stepscope.analyzer.job_time.job_verdict import RunFacts
from stepscope.analyzer.job_time.loss import Loss
from stepscope.analyzer.summaries import JobContext
from stepscope.analyzer.untraced_job import analyse_untraced_job
from stepscope.core.documents.analysis import Analysis
from stepscope.core.documents.run_directory import RankSteps
from stepscope.core.documents.training_settings import LoaderSettings, TrainingSettings
from stepscope.core.vocabulary import Cause, Reason
from tests.analyzer.build import TraceBuilder, three_captured_steps
from tests.analyzer.job_time.records import MS, START_NS, captured, rank_steps
from tests.analyzer.readings import analyse

_CAPTURED_US = 80_000


def _trace(kernels_us: tuple[int, int, int] = (40_000, 40_000, 40_000)) -> TraceBuilder:
    """Three captured steps of 80 ms, each with one kernel that the host launches once a step."""
    return three_captured_steps(_CAPTURED_US, kernels_us)


def _analysed(
    length_ms: Callable[[int], float],
    more: Callable[[int], dict[str, Any]] = lambda _: {},
    *,
    trace: TraceBuilder | None = None,
    num_cpus: int | None = None,
    loaders: Sequence[LoaderSettings] = (),
) -> Analysis:
    lengths = [80.0 if 4 <= index <= 6 else length_ms(index) for index in range(40)]
    records = rank_steps(0, lengths, lambda index: captured(4, 6)(index) | more(index))
    facts = RunFacts([records], num_cpus=num_cpus)
    return analyse(trace or _trace(), context=JobContext(run=facts, settings=TrainingSettings(loaders=list(loaders))))


def test_idle_time_that_only_the_capture_has_is_no_bottleneck() -> None:
    analysis = _analysed(lambda _: 42.0)
    verdict, job_time = analysis.verdict, analysis.job_time
    assert job_time is not None
    assert (verdict.bottleneck, verdict.fix) == (False, None)
    assert job_time.breakdown[Cause.HOST_BOUND] < 0.1
    assert job_time.mean_step_ms == pytest.approx(42)
    assert sum(job_time.breakdown.values()) == pytest.approx(1)


def test_idle_time_of_unprofiled_steps_is_the_hosts_at_a_confidence_below_nine_tenths() -> None:
    verdict = _analysed(lambda _: 60.0).verdict
    assert (verdict.cause, verdict.bottleneck) == (Cause.HOST_BOUND, True)
    assert verdict.share == pytest.approx(20 / 60, abs=0.01)
    assert verdict.confidence < 0.9
    assert verdict.fix is not None
    assert (verdict.fix.basis, verdict.fix.step_ms) == ("bound", None)
    assert verdict.fix.interval_ms == pytest.approx((0.97 * 40, 40), abs=0.1)


def test_one_core_for_all_launching_threads_is_a_reason() -> None:
    assert _analysed(lambda _: 60.0, num_cpus=1).verdict.reasons[0] is Reason.CPU_LIMITED


def test_recorded_waits_are_a_loss_as_far_as_the_gpu_can_have_been_idle() -> None:
    hidden = _analysed(lambda _: 42.0, lambda _: {"data_wait_ns": 15 * MS})
    assert hidden.verdict.bottleneck is False
    assert hidden.job_time is not None
    assert hidden.job_time.breakdown[Cause.DATA_LOADING] <= 2 / 42
    starved = _analysed(lambda _: 200.0, lambda _: {"data_wait_ns": 155 * MS}).verdict
    assert (starved.cause, starved.reasons) == (Cause.DATA_LOADING, [Reason.STARVED])
    assert starved.share == pytest.approx(0.775)
    assert starved.fix is not None
    assert starved.fix.step_ms == pytest.approx(45)
    assert starved.confidence >= 0.9


@pytest.mark.parametrize(
    ("loaders", "action", "reasons"),
    [
        ([LoaderSettings(True, 2)], "num_workers=9 (now 2)", [Reason.STARVED]),
        ([LoaderSettings(False, 1), LoaderSettings(True, 2)], "num_workers=9 (now 2)", [Reason.STARVED]),
        ([LoaderSettings(True, 0)], "num_workers=5 (now 0)", [Reason.STARVED, Reason.NO_WORKERS]),
        (
            [LoaderSettings(True, 1), LoaderSettings(True, 2)],
            "raise num_workers to 4.4 times what it is, and prefetch_factor",
            [Reason.STARVED],
        ),
    ],
)
def test_the_number_of_workers_to_set_begins_with_the_present_one(
    loaders: list[LoaderSettings], action: str, reasons: list[Reason]
) -> None:
    verdict = _analysed(lambda _: 200.0, lambda _: {"data_wait_ns": 155 * MS}, loaders=loaders).verdict
    assert (verdict.actions[0], verdict.reasons) == (action, reasons)


def test_workers_that_are_far_too_few_starve_a_loop_that_waits_for_every_second_batch() -> None:
    def more(index: int) -> dict[str, Any]:
        return {"data_wait_ns": 320 * MS if index % 2 else 0}

    verdict = _analysed(lambda index: 362.0 if index % 2 else 42.0, more).verdict
    assert verdict.reasons == [Reason.STARVED]
    assert verdict.fix is not None
    assert verdict.fix.action == "num_workers=10 (now 2, by the period of the waits)"


def test_collections_are_the_hosts_with_their_own_share() -> None:
    verdict = _analysed(lambda _: 200.0, lambda _: {"figures": {"gc_pause_ns": 120.0 * MS}}).verdict
    assert (verdict.cause, verdict.reasons) == (Cause.HOST_BOUND, [Reason.GC])
    assert verdict.share == pytest.approx(0.6)


def test_skipped_updates_waste_their_steps() -> None:
    verdict = _analysed(lambda _: 42.0, lambda index: {"figures": {"overflow": float(index < 10)}}).verdict
    assert (verdict.cause, verdict.reasons) == (Cause.WASTED_STEPS, [Reason.OVERFLOW])
    assert verdict.share == pytest.approx(10 / 40)
    assert verdict.fix is not None
    assert verdict.fix.speedup == pytest.approx(4 / 3)


def test_evaluation_is_named_though_no_capture_holds_it() -> None:
    def more(index: int) -> dict[str, Any]:
        return {"phases": {"evaluation": 100 * MS}} if index % 5 == 0 else {}

    verdict = _analysed(lambda index: 150.0 if index % 5 == 0 else 42.0, more).verdict
    assert verdict.cause is Cause.EVALUATION
    assert verdict.share == pytest.approx((8 * 108) / (8 * 150 + 32 * 42), abs=0.01)  # with what surrounds the phase


def test_slow_steps_without_a_record_or_capture_are_unexplained() -> None:
    analysis = _analysed(lambda index: 400.0 if index % 8 == 7 else 42.0)
    verdict, job_time = analysis.verdict, analysis.job_time
    assert job_time is not None
    assert job_time.unexplained is not None
    assert (verdict.cause, verdict.bottleneck) == (Cause.UNEXPLAINED, True)
    assert (job_time.unexplained.num_steps, job_time.unexplained.every) == (5, 8)
    assert "once(wait=13)" in verdict.actions[0]  # a rule for three in a row would never take one
    assert verdict.confidence < 0.9


def test_slow_steps_in_a_row_are_profiled_by_the_rule_for_them() -> None:
    verdict = _analysed(lambda index: 400.0 if index in range(30, 36) else 42.0).verdict
    assert (verdict.cause, verdict.actions[0]) == (
        Cause.UNEXPLAINED,
        "profile(capture_when=slow_step()) profiles these steps",
    )


def test_no_capture_is_promised_of_slow_steps_that_come_alone_at_random() -> None:
    verdict = _analysed(lambda index: 400.0 if index in {9, 16, 20, 31, 33} else 42.0).verdict
    assert verdict.cause is Cause.UNEXPLAINED
    assert "prof.phase" in verdict.actions[0]


def test_kernels_that_pause_for_milliseconds_show_another_process_on_the_gpu() -> None:
    verdict = _analysed(lambda _: 60.0, trace=_trace((70_000, 20_000, 60_000))).verdict
    assert (verdict.cause, verdict.reasons) == (Cause.CONTENTION, [Reason.GPU_SHARED])
    assert verdict.confidence <= 0.7
    assert verdict.fix is not None
    assert verdict.fix.step_ms == pytest.approx(60 * (1 - 30 / 80), rel=0.02)


def test_without_records_the_captured_steps_are_all_that_is_known() -> None:
    analysis = analyse(_trace())
    verdict, job_time = analysis.verdict, analysis.job_time
    assert job_time is not None
    assert (job_time.basis, job_time.goodput, job_time.num_steps) == ("trace", None, 2)
    assert (verdict.cause, verdict.bottleneck) == (Cause.HOST_BOUND, True)
    assert verdict.share == pytest.approx(analysis.ledger[Cause.HOST_BOUND.value])  # type: ignore[index]
    assert verdict.confidence < 0.9


@pytest.mark.parametrize("fields", [{"figures": {"gc_pause_ns": 15.0 * MS}}, {"run_delay_ns": 15 * MS}])
def test_host_time_that_the_launch_queue_can_hide_is_only_bounded(fields: dict[str, Any]) -> None:
    assert _analysed(lambda _: 46.0, lambda _: fields).verdict.bottleneck is False
    verdict = _analysed(lambda _: 60.0, lambda _: {"figures": {"gc_pause_ns": 36.0 * MS}}).verdict
    assert verdict.reasons == [Reason.GC]
    assert verdict.confidence < 0.9
    assert verdict.fix is not None
    assert verdict.fix.step_ms is None
    assert verdict.fix.interval_ms == pytest.approx((0.97 * 40, 60), abs=0.1)


def test_host_time_that_no_launch_queue_can_hide_is_seen() -> None:
    verdict = _analysed(lambda _: 2600.0, lambda _: {"figures": {"gc_pause_ns": 2320.0 * MS}}).verdict
    assert verdict.reasons == [Reason.GC]
    assert verdict.confidence >= 0.9
    assert verdict.fix is not None
    assert verdict.fix.step_ms == pytest.approx(280)


@pytest.mark.parametrize("fields", [{"figures": {"overflow": 1.0}}, {"non_finite": ["loss"]}])
def test_a_run_without_a_lasting_update_is_wasted(fields: dict[str, Any]) -> None:
    analysis = _analysed(lambda _: 42.0, lambda _: fields)
    assert (analysis.verdict.cause, analysis.verdict.bottleneck) == (Cause.WASTED_STEPS, True)
    assert (analysis.verdict.share, analysis.verdict.fix, analysis.verdict.next) == (1.0, None, None)
    assert analysis.job_time is not None
    assert analysis.job_time.breakdown == {Cause.WASTED_STEPS: pytest.approx(1)}


def _cpu_trace() -> TraceBuilder:
    """Three captured steps of 80 ms, each an operator."""
    trace = TraceBuilder()
    for place in range(3):
        begin = 1_000 + place * _CAPTURED_US
        trace.step(4 + place, begin, begin + _CAPTURED_US)
        trace.operator("aten::mm", begin + 10, begin + _CAPTURED_US - 10)
    return trace


def test_a_capture_that_contradicts_the_records_leaves_little_confidence() -> None:
    verdict = _analysed(lambda _: 42.0, lambda _: {"phases": {"evaluation": 40 * MS}}, trace=_cpu_trace()).verdict
    assert verdict.cause is Cause.EVALUATION
    assert verdict.confidence < 0.7


def test_captured_steps_that_lack_a_cpu_as_the_others_do_not_contradict_the_records() -> None:
    job_time = _analysed(lambda _: 80.0, lambda _: {"run_delay_ns": 50 * MS}, trace=_cpu_trace()).job_time
    assert job_time is not None
    assert job_time.breakdown[Cause.CONTENTION] == pytest.approx(50 / 80)
    assert [layer.agrees for layer in job_time.layers if layer.layer == "trace"] == [True]


def test_a_start_up_step_alone_leaves_the_traces_verdict() -> None:
    records = [rank_steps(0, [700.0])]
    analysis = analyse(_trace(), context=JobContext(run=RunFacts(records)))
    assert analysis.verdict.cause is analyse(_trace()).verdict.cause
    assert analysis.verdict.confidence <= 0.8
    assert analysis.job_time is not None
    assert analysis.job_time.basis == "trace"


def test_the_next_cause_is_told_from_the_verdicts_by_its_reasons() -> None:
    verdict = _analysed(lambda _: 2600.0, lambda _: {"figures": {"gc_pause_ns": 2320.0 * MS}}).verdict
    assert verdict.next is not None
    assert (verdict.next.cause, *verdict.next.reasons) != (verdict.cause, *verdict.reasons)


def test_the_confidence_of_many_steps_is_that_of_few() -> None:
    def of(num_steps: int) -> float:
        records = rank_steps(0, [200.0] * num_steps, lambda i: captured(4, 6)(i) | {"data_wait_ns": 155 * MS})
        return analyse(_trace(), context=JobContext(run=RunFacts([records]))).verdict.confidence

    assert of(5_000) == of(40) >= 0.9


@pytest.mark.parametrize("waiting", [range(20, 21), range(1, 4)], ids=["one step", "the first steps"])
@pytest.mark.parametrize("others_ms", [0.0, 10.0])
def test_few_long_waits_are_bursts_without_a_pattern(others_ms: float, waiting: range) -> None:
    lengths = [400.0 if index in waiting else others_ms for index in range(41)]
    records = [rank_steps(0, lengths, lambda index: {"data_wait_ns": 390 * MS if index in waiting else 0})]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        verdict = analyse_untraced_job(RunFacts(records), JobContext(), world_size=1).verdict
    assert (verdict.cause, verdict.reasons) == (Cause.DATA_LOADING, [Reason.BURSTY])
    assert all(math.isfinite(evidence.value) for evidence in verdict.evidence)


@pytest.mark.parametrize(("run_delay_ms", "is_reason"), [(1, False), (10, True)])
def test_lack_of_a_cpu_is_a_reason_of_a_late_host_where_it_is_much_of_that(run_delay_ms: int, is_reason: bool) -> None:
    reasons = _analysed(lambda _: 70.0, lambda _: {"run_delay_ns": run_delay_ms * MS}).verdict.reasons
    assert (reasons[-1] is Reason.CPU_LIMITED) is is_reason
    assert reasons[0] is not Reason.CPU_LIMITED


def test_wasted_steps_are_named_beside_a_larger_loss() -> None:
    def more(index: int) -> dict[str, Any]:
        return {"phases": {"evaluation": 100 * MS}, "figures": {"overflow": float(index % 5 == 0)}}

    analysis = _analysed(lambda _: 142.0, more)
    verdict, job_time = analysis.verdict, analysis.job_time
    assert job_time is not None
    assert verdict.cause is Cause.EVALUATION
    assert verdict.next is not None
    assert (verdict.next.cause, verdict.next.reasons) == (Cause.WASTED_STEPS, [Reason.OVERFLOW])
    assert verdict.next.share == pytest.approx(0.2, abs=0.03)
    assert Cause.WASTED_STEPS in [other.cause for other in verdict.secondary]


def test_causes_of_different_ranks_at_once_are_told_apart() -> None:
    lengths = [150.0] * 40
    loading = rank_steps(0, lengths, lambda _: {"data_wait_ns": 60 * MS})
    collecting = rank_steps(1, lengths, lambda _: {"figures": {"gc_pause_ns": 40.0 * MS}})
    records = [loading, collecting]
    analysis = analyse_untraced_job(RunFacts(records), JobContext(), world_size=2, missing_ranks=[])
    verdict, job_time = analysis.verdict, analysis.job_time
    assert job_time is not None
    assert (verdict.cause, verdict.ranks) == (Cause.DATA_LOADING, [0])
    assert verdict.share == pytest.approx(20 / 150)
    assert verdict.fix is not None
    assert verdict.fix.step_ms == pytest.approx(130)
    assert job_time.breakdown["overlapping"] == pytest.approx(40 / 150)
    assert sum(job_time.breakdown.values()) == pytest.approx(1)
    assert verdict.next is not None
    assert verdict.next.reasons == [Reason.GC]
    assert verdict.next.share == pytest.approx(40 / 150)
    assert "overlap with garbage collection on rank 1" in verdict.summary


def test_causes_that_hide_each_other_are_a_bottleneck_by_what_they_take_together() -> None:
    lengths = [150.0] * 40
    loading = rank_steps(0, lengths, lambda _: {"data_wait_ns": 60 * MS})
    collecting = rank_steps(1, lengths, lambda _: {"figures": {"gc_pause_ns": 57.0 * MS}})
    verdict = analyse_untraced_job(RunFacts([loading, collecting]), JobContext(), world_size=2).verdict
    assert (verdict.cause, verdict.bottleneck) == (Cause.DATA_LOADING, True)
    assert verdict.share == pytest.approx(3 / 150)
    alone, together = verdict.evidence[:2]
    assert (alone.metric, together.metric) == ("share_of_training_time", "share_with_overlap")
    assert (alone.threshold, together.threshold) == (None, 0.1)
    assert [alone.value, together.value] == pytest.approx([3 / 150, 60 / 150])


def test_evaluations_after_skipped_updates_are_evaluations() -> None:
    def more(index: int) -> dict[str, Any]:
        phases = {"evaluation": 240 * MS} if index % 6 == 5 else {}
        return {"phases": phases, "figures": {"overflow": float(index % 3 == 2)}}

    analysis = _analysed(lambda index: 300.0 if index % 6 == 5 else 60.0, more)
    verdict, job_time = analysis.verdict, analysis.job_time
    assert job_time is not None
    assert verdict.cause is Cause.EVALUATION
    assert verdict.share == pytest.approx(0.4, abs=0.04)
    assert "of training time are in wasted steps as well" in verdict.summary
    shared = next(item for item in verdict.evidence if item.metric == "shared_with_another_cause")
    assert 0.4 / 3 - 0.02 < shared.value < 0.2  # other losses are in wasted steps as well
    assert verdict.next is not None
    assert verdict.next.cause is Cause.WASTED_STEPS
    assert verdict.next.share == pytest.approx(1 / 3, abs=0.03)
    assert verdict.fix is not None
    assert verdict.fix.step_ms == pytest.approx(60 / (2 / 3), rel=0.05)
    assert sum(job_time.breakdown.values()) == pytest.approx(1)


@pytest.mark.parametrize(
    ("length_ms", "words"), [(50.0, "differs by +60%"), (20.0, "is 4.0 times"), (1.0, "more than 10")]
)
def test_how_profiled_steps_differ_is_said_in_bounds(length_ms: float, words: str) -> None:
    job_time = _analysed(lambda _: length_ms).job_time
    assert job_time is not None
    assert words in next(layer.note for layer in job_time.layers if layer.layer == "trace")


def test_captured_steps_are_those_of_the_attempt_that_was_profiled() -> None:
    """Step 5 was slow in the first attempt; the second one's capture of its own step 5 does not tell why."""
    first = rank_steps(0, [900.0 if index == 5 else 80.0 for index in range(12)])
    again = rank_steps(0, [80.0] * 30, captured(4, 6), attempt=2, first=2, start_ns=START_NS + 5_000 * MS)
    trace = _trace((40_000, 10_000, 40_000))
    records = RankSteps(0, [*first.steps, *again.steps])
    job_time = analyse(trace, context=JobContext(run=RunFacts([records]))).job_time
    assert job_time is not None
    assert job_time.unexplained is not None
    assert job_time.unexplained.num_steps == 1


def test_share_of_a_loss_within_its_bounds_moves_what_it_gains() -> None:
    loss = Loss(Cause.HOST_BOUND, 10.0, alone_ms=8.0, own_ms=12.0).limited(5.0)
    assert (loss.gain_ms, loss.own_ms) == (4.0, 6.0)
