"""Is the largest loss named, is a healthy job called healthy, and is too little evidence said?"""

from __future__ import annotations

import pytest

from stepscope.core.analysis import Analysis
from stepscope.core.causes import HEALTHY_CAUSES, Cause
from tests.analyzer.build import TraceBuilder
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


def test_every_verdict_brings_evidence_and_a_remedy() -> None:
    for analysis in (busy_job(idle_us=0), busy_job(idle_us=300)):
        assert analysis.verdict.evidence
        assert analysis.verdict.actions
        assert analysis.verdict.evidence[0].value == pytest.approx(row_of(analysis, analysis.verdict.cause).fraction)


def test_the_same_input_gives_the_same_intervals() -> None:
    assert busy_job(idle_us=150) == busy_job(idle_us=150)
