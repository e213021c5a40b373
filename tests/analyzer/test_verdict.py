"""Verdict: names the largest loss, calls a healthy job healthy, and reports too little evidence."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stepscope.analyzer.blame.remedies import profiler_action
from stepscope.core.documents.analysis import Analysis
from stepscope.core.text.verdict import verdict_text
from stepscope.core.vocabulary import HEALTHY_CAUSES, Cause, Reason
from tests.analyzer.build import TraceBuilder
from tests.analyzer.jobs import data_parallel
from tests.analyzer.readings import analyse, row_of


def busy_job(*, idle_us: int, steps: int = 4, name: str = "prof.data") -> Analysis:
    """Of each 1000 us step the host spends `idle_us` on what `name` says, and the device computes the rest."""
    trace = TraceBuilder()
    for step in range(steps):
        begin = step * 1000
        trace.step(step, begin, begin + 1000)
        trace.annotation(name, begin + 1000 - idle_us, begin + 1000)
        trace.kernel(begin, begin + 1000 - idle_us, launch=begin)
    trace.kernel(steps * 1000, steps * 1000 + 10, launch=steps * 1000 - 1)
    return analyse(trace)


@pytest.mark.parametrize(("idle_us", "is_named"), [(80, False), (150, True)])
def test_a_loss_is_named_from_a_tenth_of_the_step_on(idle_us: int, is_named: bool) -> None:
    verdict = busy_job(idle_us=idle_us).verdict
    assert (verdict.cause is Cause.DATA_LOADING) is is_named
    assert (verdict.cause in HEALTHY_CAUSES) is not is_named


def test_a_healthy_job_still_hears_of_a_loss_above_five_percent() -> None:
    assert [other.cause for other in busy_job(idle_us=80).verdict.secondary] == [Cause.DATA_LOADING]
    assert busy_job(idle_us=40).verdict.secondary == []


def uneven_last_step(*, loading_us: int, last_loading_us: int) -> Analysis:
    """Three steps of 1000 us and a last one that is cut after 100 us of compute and its loading."""
    trace = TraceBuilder()
    for number in range(4):
        begin = number * 1000
        loading = last_loading_us if number == 3 else loading_us
        trace.step(number, begin, begin + 1000)
        middle = begin + 100 + loading
        trace.kernel(begin, begin + 100, launch=begin)
        trace.annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", begin + 100, middle)
        end = middle + 10 if number == 3 else begin + 1000
        trace.kernel(middle, end, launch=middle)
    return analyse(trace)


def test_milliseconds_a_step_are_of_whole_steps_whatever_the_cut_last_one_holds() -> None:
    analysis = uneven_last_step(loading_us=200, last_loading_us=800)
    row = row_of(analysis, Cause.DATA_LOADING)
    assert row.fraction == pytest.approx((3 * 200 + 800) / 3910, rel=0.01)
    assert row.ms_per_step == pytest.approx(0.2, abs=0.002)
    assert analysis.job.step_ms == pytest.approx(1.0)
    assert sum(row.ms_per_step or 0.0 for row in analysis.root_causes) == pytest.approx(1.0)
    assert row.ms_interval is not None
    low, high = row.ms_interval
    assert row.ms_per_step is not None
    assert low <= row.ms_per_step <= high < 0.21


def test_what_only_the_cut_last_step_holds_has_no_milliseconds_of_a_step() -> None:
    row = row_of(uneven_last_step(loading_us=0, last_loading_us=800), Cause.DATA_LOADING)
    assert row.fraction > 0.2
    assert row.ms_per_step is None


def test_the_cost_is_given_as_share_and_milliseconds_of_a_step() -> None:
    analysis = busy_job(idle_us=200)
    row = row_of(analysis, Cause.DATA_LOADING)
    assert row.ms_per_step == pytest.approx(row.fraction * 1.0, rel=0.01)
    assert row.interval is not None
    assert row.interval[0] <= row.fraction <= row.interval[1]
    assert "ms of each 1.0 ms step" in analysis.verdict.summary
    assert "\n" not in analysis.verdict.summary


@pytest.mark.parametrize(("name", "cause"), [("checkpoint", Cause.CHECKPOINT), ("profiler stop", Cause.PROFILER)])
def test_checkpoints_and_the_profiler_can_be_the_verdict(name: str, cause: Cause) -> None:
    assert busy_job(idle_us=300, name=name).verdict.cause is cause


def test_a_trace_that_explains_nothing_is_insufficient_evidence() -> None:
    trace = TraceBuilder()
    trace.kernel(0, 10)
    trace.kernel(990, 1000)
    verdict = analyse(trace).verdict
    assert verdict.cause is Cause.INSUFFICIENT_EVIDENCE
    assert verdict.actions


def lost_launches(*, idle_us: int) -> Analysis:
    """The launch that ends the idle time of each 1000 us step is not in the trace: nobody knows why it came late."""
    trace = TraceBuilder()
    for step in range(4):
        begin = step * 1000
        trace.step(step, begin, begin + 1000)
        trace.kernel(begin, begin + 900 - idle_us, launch=begin)
        trace.kernel(begin + 900, begin + 1000)
    return analyse(trace)


@pytest.mark.parametrize(("idle_us", "is_healthy"), [(80, True), (150, False)])
def test_a_tenth_that_nothing_explains_bars_a_healthy_verdict(idle_us: int, is_healthy: bool) -> None:
    verdict = lost_launches(idle_us=idle_us).verdict
    assert (verdict.cause in HEALTHY_CAUSES) is is_healthy
    if not is_healthy:
        assert verdict.cause is Cause.INSUFFICIENT_EVIDENCE
        assert "12.0% of the time" in verdict.summary  # the window ends with the last launched kernel
        assert verdict.evidence[0].value == pytest.approx(3 * 150 / 3750)


def test_communication_that_may_be_waiting_is_named_with_half_confidence_and_promises_nothing() -> None:
    """Two hosts that only broadcast: their clocks, and so the arrivals, are unknown; rank 1 computes 200 us more."""
    traces = data_parallel([[100] * 4, [300] * 4])
    for trace in traces:
        trace.host = f"node{trace.rank}"
        trace._descriptions = [replace(told, kind="broadcast") for told in trace._descriptions]
    analysis = analyse(*traces)
    verdict = analysis.verdict
    assert (verdict.cause, verdict.ranks) == (Cause.COMMUNICATION, [])
    assert verdict.reasons[0] is Reason.ARRIVALS_UNKNOWN
    assert verdict.confidence <= 0.5
    assert "arrivals are unknown" in verdict.summary
    assert "bandwidth" not in verdict.summary
    assert not [found for found in analysis.what_if if found.fix is Cause.COMMUNICATION]


def test_a_healthy_job_says_what_its_first_step_waited_for_and_is_less_sure() -> None:
    traces = [TraceBuilder(rank=rank, world_size=2) for rank in (0, 1)]
    for trace, late in zip(traces, (0, 500), strict=True):
        trace.step(1, 0, 100)
        trace.kernel(1000 + late, 2000 + late, launch=10)
        trace.collective("allreduce", 2000 + late, 2520, launch=20, group=(0, 1))
    verdict = analyse(*traces).verdict
    assert verdict.cause in HEALTHY_CAUSES
    assert "began before the trace; look at rank 1" in verdict.summary
    assert verdict.confidence == pytest.approx(0.7 * (1 - 500 / (1520 + 1020)), abs=0.001)


def test_every_verdict_brings_evidence_and_a_remedy() -> None:
    for analysis in (busy_job(idle_us=0), busy_job(idle_us=300)):
        assert analysis.verdict.evidence
        assert analysis.verdict.actions
        assert analysis.verdict.evidence[0].value == pytest.approx(row_of(analysis, analysis.verdict.cause).fraction)


def test_the_same_input_gives_the_same_intervals() -> None:
    assert busy_job(idle_us=150) == busy_job(idle_us=150)


def cpu_job(*, operator_us: int) -> Analysis:
    """A job without a GPU: of each 1000 us step an operator is open for `operator_us`."""
    trace = TraceBuilder(gpu=None)
    for step in range(4):
        begin = step * 1000
        trace.step(step, begin, begin + 1000)
        trace.operator("aten::mm", begin, begin + operator_us)
    return analyse(trace)


def words_of(analysis: Analysis) -> str:
    return "\n".join([*verdict_text(analysis).lines(), *analysis.verdict.actions])


def test_a_job_without_a_gpu_is_not_told_what_limits_its_operators() -> None:
    analysis = cpu_job(operator_us=990)
    assert analysis.job.device_kind == "cpu"
    assert analysis.verdict.cause is Cause.COMPUTE_BOUND
    assert analysis.verdict.summary.startswith("no bottleneck: the CPU is busy in operators for 99.")
    assert "which limits them (arithmetic or memory) is not known" in analysis.verdict.summary
    words = words_of(analysis)
    assert not [claim for claim in ("GPU", "bound by", "compute-bound", "healthy") if claim in words]


def test_time_between_operators_of_a_job_without_a_gpu_is_not_called_launching() -> None:
    analysis = cpu_job(operator_us=500)
    assert analysis.verdict.cause is Cause.HOST_BOUND
    assert analysis.verdict.summary.startswith("Python and framework code between operators takes 5")
    words = words_of(analysis)
    assert not [claim for claim in ("GPU", "launch", "CUDA") if claim in words]


def test_a_job_with_a_gpu_keeps_its_words() -> None:
    analysis = busy_job(idle_us=0)
    assert analysis.verdict.summary.startswith("no bottleneck: ")


def test_the_profiler_s_own_time_in_a_trace_without_steps_is_not_of_each_step() -> None:
    trace = TraceBuilder()
    trace.kernel(0, 500, launch=0)
    trace.overhead("Activity Buffer Request", 500, 900)
    trace.kernel(900, 1000, launch=899)
    verdict = analyse(trace).verdict
    assert verdict.cause is Cause.PROFILER
    assert "of each" not in verdict.summary
    assert [action.partition(" (")[0] for action in verdict.actions] == ["warm up before recording"]


@pytest.mark.parametrize(
    ("shapes", "stacks", "without"),
    [(False, False, ""), (True, False, " or without shapes"), (True, True, " or without shapes and stacks")],
)
def test_shapes_and_stacks_are_only_advised_against_where_they_were_recorded(
    shapes: bool, stacks: bool, without: str
) -> None:
    action = profiler_action(is_unmarked=False, with_shapes=shapes, with_stacks=stacks)
    assert action == f"profile fewer steps{without}; the profiler itself takes this time"
