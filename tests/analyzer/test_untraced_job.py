"""Of a job without a trace the step records name what they show, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from stepscope.analyzer.job_time.job_verdict import RunFacts
from stepscope.analyzer.summaries import JobContext
from stepscope.analyzer.untraced_job import analyse_untraced_job
from stepscope.core.documents.analysis import Analysis
from stepscope.core.text.numbers import counted
from stepscope.core.vocabulary import Cause, Reason
from tests.analyzer.job_time.records import MS, rank_steps

_GPU = {"memory_allocated_bytes": 1e9}
_NUM_STEPS = 40


def _analysed(
    length_ms: Callable[[int], float] = lambda _: 40.0, more: Callable[[int], dict[str, Any]] = lambda _: {}
) -> Analysis:
    records = [rank_steps(0, [length_ms(index) for index in range(_NUM_STEPS)], more)]
    return _analysis(RunFacts(records))


def _analysis(facts: RunFacts, **context: Any) -> Analysis:
    return analyse_untraced_job(facts, JobContext(**context), world_size=len(facts.records))


def _every_fifth(fields: dict[str, Any]) -> Callable[[int], dict[str, Any]]:
    return lambda index: fields if index % 5 == 4 else {}


@pytest.mark.parametrize(
    ("more", "length_ms", "cause", "reasons"),
    [
        (lambda _: {"figures": {"gc_pause_ns": 60.0 * MS}}, lambda _: 100.0, Cause.HOST_BOUND, [Reason.GC]),
        (lambda _: {"compile_ns": 60 * MS}, lambda _: 100.0, Cause.HOST_BOUND, [Reason.COMPILE]),
        (lambda _: {"run_delay_ns": 60 * MS}, lambda _: 100.0, Cause.CONTENTION, [Reason.CPU_LIMITED]),
        (lambda _: {"data_wait_ns": 60 * MS}, lambda _: 100.0, Cause.DATA_LOADING, [Reason.STARVED]),
        (_every_fifth({"phases": {"evaluation": 100 * MS}}), lambda i: 140.0 if i % 5 == 4 else 40.0, "evaluation", []),
        (_every_fifth({"phases": {"checkpoint": 100 * MS}}), lambda i: 140.0 if i % 5 == 4 else 40.0, "checkpoint", []),
        (_every_fifth({"figures": {"overflow": 1.0}}), lambda _: 40.0, Cause.WASTED_STEPS, [Reason.OVERFLOW]),
    ],
)
def test_records_alone_name_what_they_show(
    more: Callable[[int], dict[str, Any]], length_ms: Callable[[int], float], cause: Cause, reasons: list[Reason]
) -> None:
    analysis = _analysed(length_ms, more)
    verdict, job_time = analysis.verdict, analysis.job_time
    assert (verdict.cause, verdict.reasons, verdict.bottleneck) == (cause, reasons, True)
    assert verdict.fix is not None
    assert verdict.fix.basis == "telemetry"
    assert verdict.fix.step_ms == pytest.approx(40)
    assert job_time is not None
    assert job_time.basis == "telemetry"
    apart = {Reason.GC: "garbage_collection", Reason.COMPILE: "compilation"}
    category = next((apart[reason] for reason in reasons if reason in apart), cause)
    assert verdict.share == pytest.approx(job_time.breakdown[category])
    assert sum(job_time.breakdown.values()) == pytest.approx(1)


@pytest.mark.parametrize(("figures", "share"), [({}, 0.05), (_GPU, 0.025)])  # on a GPU queued work may hide all of it
def test_without_a_large_recorded_loss_the_cause_is_unknown(figures: dict[str, float], share: float) -> None:
    analysis = _analysed(more=lambda _: {"figures": figures, "data_wait_ns": 2 * MS})
    verdict, job_time = analysis.verdict, analysis.job_time
    assert verdict.cause is Cause.INSUFFICIENT_EVIDENCE
    assert (verdict.bottleneck, verdict.share, verdict.fix) == (None, None, None)
    assert verdict.confidence <= 0.5
    assert f"{1 - share:.1%} of training time has no recorded cause" in verdict.summary
    assert "profile some steps" in verdict.actions[0]
    assert job_time is not None
    assert job_time.breakdown == {Cause.UNEXPLAINED: pytest.approx(1 - share), Cause.DATA_LOADING: pytest.approx(share)}
    trace = next(layer for layer in job_time.layers if layer.layer == "trace")
    assert (trace.used, trace.agrees) == (False, None)
    assert "a full capture" in trace.note
    assert "no_trace" in [notice.code for notice in analysis.warnings]


def test_confidence_is_bounded_where_the_unknown_part_is_larger() -> None:
    smaller = _analysed(lambda _: 100.0, lambda _: {"data_wait_ns": 30 * MS}).verdict
    larger = _analysed(lambda _: 100.0, lambda _: {"data_wait_ns": 70 * MS}).verdict
    assert (smaller.cause, larger.cause) == (Cause.DATA_LOADING, Cause.DATA_LOADING)
    assert smaller.confidence <= 0.85 < larger.confidence


def _pauses(index: int) -> dict[str, Any]:
    return {"figures": {**_GPU, "gc_pause_ns": (50.0 + index % 4) * MS}}


def test_host_time_that_makes_gpu_steps_longer_is_a_loss() -> None:
    verdict = _analysed(lambda index: 90.0 + index % 4, _pauses).verdict
    assert (verdict.cause, verdict.reasons) == (Cause.HOST_BOUND, [Reason.GC])
    assert verdict.fix is not None
    assert verdict.fix.step_ms == pytest.approx(40, abs=0.5)


def test_host_time_that_leaves_gpu_steps_as_long_may_be_hidden_and_is_not_named() -> None:
    analysis = _analysed(lambda _: 90.0, _pauses)
    assert (analysis.verdict.cause, analysis.verdict.bottleneck) == (Cause.INSUFFICIENT_EVIDENCE, None)


def test_a_pause_that_later_steps_make_up_for_is_hidden() -> None:
    def more(index: int) -> dict[str, Any]:
        return {"figures": {**_GPU, "gc_pause_ns": (100.0 if index % 11 == 3 else 1.0) * MS}}

    lengths = {3: 190.0, 4: 45.0, 5: 45.0}  # the host was ahead of the GPU by as much
    assert _analysed(lambda index: lengths.get(index % 11, 90.0), more).verdict.bottleneck is None
    assert _analysed(lambda index: 190.0 if index % 11 == 4 else 90.0, more).verdict.reasons == [Reason.GC]


def test_one_ranks_waits_are_its_own() -> None:
    records = [
        rank_steps(0, [100.0] * _NUM_STEPS),
        rank_steps(1, [100.0] * _NUM_STEPS, lambda _: {"data_wait_ns": 60 * MS}),
    ]
    verdict = _analysis(RunFacts(records)).verdict
    assert (verdict.cause, verdict.ranks) == (Cause.DATA_LOADING, [1])


def test_slow_steps_without_a_record_are_named_with_their_period() -> None:
    analysis = _analysed(lambda index: 400.0 if index % 8 == 7 else 40.0)
    assert analysis.verdict.cause is Cause.UNEXPLAINED
    assert analysis.job_time is not None
    assert analysis.job_time.unexplained is not None
    assert analysis.job_time.unexplained.every == 8
    assert analysis.job_time.breakdown == {Cause.UNEXPLAINED: pytest.approx(1)}


def test_steps_that_get_longer_are_named_with_what_grows() -> None:
    def more(index: int) -> dict[str, Any]:
        return {"figures": {"host_memory_bytes": 1e9 + 1e8 * index}}

    analysis = _analysed(lambda index: 40.0 + index, more)
    verdict = analysis.verdict
    assert (verdict.cause, verdict.reasons) == (Cause.UNEXPLAINED, [Reason.STEPS_GET_LONGER])
    assert verdict.share == pytest.approx(0.25, abs=0.02)
    assert verdict.fix is not None
    assert verdict.fix.step_ms == pytest.approx(44.5, abs=1)
    assert verdict.evidence[1].value == pytest.approx(31 / 44.5, abs=0.1)
    assert analysis.job_time is not None
    assert analysis.job_time.unexplained is None
    assert any("with them grow host_memory_bytes" in notice.message for notice in analysis.warnings)


@pytest.mark.parametrize("num_steps", [1, 3])
def test_a_run_of_start_up_steps_shows_nothing(num_steps: int) -> None:
    records = rank_steps(0, [700.0] * num_steps, lambda _: {"data_wait_ns": 600 * MS})
    verdict = _analysis(RunFacts([records])).verdict
    assert verdict.cause is Cause.INSUFFICIENT_EVIDENCE
    assert f"only {num_steps - 1} of {counted(num_steps, 'step')} may stand for the job" in verdict.summary


def test_more_ranks_than_cores_are_said() -> None:
    records = [rank_steps(rank, [40.0] * _NUM_STEPS) for rank in range(4)]
    codes = [notice.code for notice in _analysis(RunFacts(records), num_cpus=2).warnings]
    assert "oversubscribed" in codes


def test_a_loss_that_is_not_finite_is_no_overflow() -> None:
    def more(index: int) -> dict[str, Any]:
        return {"non_finite": ["loss"]} if index == 7 else {"figures": {"overflow": float(10 <= index < 20)}}

    only = _analysed(more=lambda index: {"non_finite": ["loss"]} if index < 8 else {}).verdict
    assert (only.cause, only.reasons) == (Cause.WASTED_STEPS, [Reason.NON_FINITE])
    assert "8 losses not finite" in only.summary
    both = _analysed(more=more).verdict
    assert both.reasons == [Reason.OVERFLOW, Reason.NON_FINITE]
    assert "10 updates skipped, 1 loss not finite" in both.summary


def test_slow_steps_in_which_the_allocator_retried_are_inferred_to_be_its() -> None:
    def more(index: int) -> dict[str, Any]:
        return {"figures": {**_GPU, "num_alloc_retries": (index + 1) // 8}}

    verdict = _analysed(lambda index: 400.0 if index % 8 == 7 else 40.0, more).verdict
    assert (verdict.cause, verdict.reasons, verdict.bottleneck) == (Cause.HOST_BOUND, [Reason.ALLOCATOR], True)
    assert verdict.confidence <= 0.7
    assert verdict.fix is not None
    assert verdict.fix.step_ms == pytest.approx(40)
    every_step = _analysed(lambda i: 400.0 if i % 8 == 7 else 40.0, lambda i: {"figures": {"num_alloc_retries": i}})
    assert every_step.verdict.cause is Cause.UNEXPLAINED
