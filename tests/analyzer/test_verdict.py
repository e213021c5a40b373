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


def test_every_verdict_brings_evidence_and_a_remedy() -> None:
    for analysis in (busy_job(idle_us=0), busy_job(idle_us=300)):
        assert analysis.verdict.evidence
        assert analysis.verdict.actions
        assert analysis.verdict.evidence[0].value == pytest.approx(row_of(analysis, analysis.verdict.cause).fraction)


def test_the_same_input_gives_the_same_intervals() -> None:
    assert busy_job(idle_us=150) == busy_job(idle_us=150)
