"""Scores of results whose truth is known."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.core.vocabulary import HEALTHY_CAUSES, Cause, Reason
from stepscope.reference_workloads.suite.cases import SuiteCase, SuiteRun, find_cases
from stepscope.reference_workloads.suite.report import encode_suite_report, make_suite_report, suite_report_markdown
from stepscope.reference_workloads.suite.results import PredictedFix, SuiteRunResult, why_run_failed
from stepscope.reference_workloads.suite.score import (
    SCORED,
    CaseOutcome,
    CaseScore,
    accuracy,
    confusion,
    expected_causes,
    score_case,
)

CASES = {case.name: case for case in find_cases("two-gpu")}
steps = st.floats(min_value=1e-3, max_value=1e6)


def result_of(case: SuiteCase, **fields: object) -> SuiteRunResult:
    return replace(SuiteRunResult(case.run.name, case.run.fingerprint, 1.0, trained=True), **fields)  # type: ignore[arg-type]


@given(st.sampled_from(sorted(CASES)), st.sampled_from(Cause), st.sets(st.sampled_from(Reason)))
def test_an_outcome_is_right_only_when_the_cause_is(name: str, cause: Cause, reasons: set[Reason]) -> None:
    case = CASES[name]
    row = score_case(case, result_of(case, cause=cause, reasons=sorted(reasons)), None)
    if case.injection is not None and case.injection.ends_run:
        assert row.outcome is CaseOutcome.FAILED  # it trained to its end
    else:
        is_right = cause in expected_causes(case)
        if case.injection is not None and cause in HEALTHY_CAUSES:
            is_right = is_right and bool(reasons & set(case.injection.reasons))
        assert (row.outcome in {CaseOutcome.RIGHT, CaseOutcome.WRONG_REASON}) == is_right
        assert (row.outcome is CaseOutcome.RIGHT) <= is_right


def test_the_other_face_of_a_fault_is_right_and_a_wrong_reason_is_told() -> None:
    buckets = CASES["ddp-tiny_buckets"]
    assert score_case(buckets, result_of(buckets, cause=Cause.HOST_BOUND), None).outcome is CaseOutcome.RIGHT
    row = score_case(buckets, result_of(buckets, cause=Cause.COMMUNICATION, reasons=[Reason.NO_OVERLAP]), None)
    assert row.outcome is CaseOutcome.WRONG_REASON
    assert "no_overlap" in row.why


def test_healthy_layouts_must_be_called_healthy() -> None:
    case = CASES["tp-healthy"]
    for cause in HEALTHY_CAUSES:
        assert score_case(case, result_of(case, cause=cause), None).outcome is CaseOutcome.RIGHT
    assert score_case(case, result_of(case, cause=Cause.HOST_BOUND), None).outcome is CaseOutcome.WRONG_CAUSE


def test_eager_tensor_parallelism_on_gpus_may_be_called_communication() -> None:
    """A layer waits for its all-reduce: 13.6 % of a step over NVLink."""
    case = CASES["tp-healthy"]
    exposed = result_of(case, cause=Cause.COMMUNICATION, reasons=[Reason.NO_OVERLAP])
    assert score_case(case, exposed, None).outcome is CaseOutcome.RIGHT
    assert score_case(case, replace(exposed, reasons=[Reason.SLOW_LINK]), None).outcome is CaseOutcome.WRONG_REASON
    on_cpu = SuiteRun("tp-healthy", replace(case.run.job, device_type="cpu"))
    for other in (CASES["ddp-healthy"], CASES["pp-healthy"], replace(case, run=on_cpu)):
        assert score_case(other, replace(exposed, name=other.name), None).outcome is CaseOutcome.WRONG_CAUSE
    report = make_suite_report(
        [score_case(case, exposed, None)], preset="two-gpu", command="c", device=None, is_complete=True
    )
    healthy = "compute_bound or latency_bound or memory_bound"
    row = f"{healthy} or communication (no_overlap) | communication (no_overlap) | right"
    assert row in suite_report_markdown(report)
    assert report.matrix == {"healthy": {"communication": 1}}


BOTH = ["flight/rank0", "flight/rank1"]


@pytest.mark.parametrize(
    ("name", "error", "artefacts", "wrong"),
    [
        ("fsdp-oom_growth", "rank 0 failed: OutOfMemoryError: CUDA out of memory", [], None),
        ("fsdp-oom_growth", "rank 0 failed: ValueError: no", [], "memory was to run out"),
        ("ddp-dying_rank", "rank 1 was killed by SIGKILL; all 2 ranks were ended", BOTH[:1], None),
        ("ddp-dying_rank", "rank 0 was killed by SIGKILL; all 2 ranks were ended", BOTH[1:], "rank 1 was to be killed"),
        ("ddp-dying_rank", "rank 1 was killed by SIGKILL; all 2 ranks were ended", [], "no flight recorder of rank 0"),
        ("ddp-dying_rank", "torch finds no CUDA device here", [], "rank 1 was to be killed"),
        ("ddp-uneven_data", "rank 0 failed: RuntimeError: Timed out waiting 15000ms", BOTH, None),
        ("ddp-uneven_data", "rank 0 was killed by SIGABRT; all 2 ranks were ended", BOTH, None),
        ("ddp-uneven_data", "rank 1 was killed by SIGABRT; all 2 ranks were ended", BOTH[:1], "recorder of rank 1"),
        ("ddp-uneven_data", "rank 0 failed: OutOfMemoryError: CUDA out of memory", BOTH, "until a timeout"),
    ],
)
def test_a_fault_that_ends_runs_must_end_them_by_what_it_is(
    name: str, error: str, artefacts: list[str], wrong: str | None
) -> None:
    case = CASES[name]
    result = result_of(case, trained=False, error=error, artefacts=artefacts)
    row = score_case(case, result, None)
    assert row.outcome is (CaseOutcome.ENDED_AS_EXPECTED if wrong is None else CaseOutcome.FAILED)
    assert (wrong or error) in row.why
    assert (why_run_failed(case.run, result) is None) == (wrong is None)  # what --again goes by


@given(steps, steps, steps, st.floats(min_value=-0.09, max_value=0.09))
def test_predictions_are_judged_against_the_control(fault: float, control: float, captured: float, off: float) -> None:
    case = CASES["ddp-straggler"]
    faulty = result_of(
        case,
        cause=Cause.STRAGGLER,
        reasons=[Reason.EXTRA_WORK],
        step_ms=fault,
        fixes={Cause.STRAGGLER: PredictedFix(captured * (1 + off), None)},
    )
    row = score_case(case, faulty, result_of(case, step_ms=control, captured_step_ms=captured))
    assert row.severity == pytest.approx(fault / control)
    assert row.prediction is not None
    assert row.prediction.error == pytest.approx(off, abs=1e-9)
    assert row.prediction.is_right


@pytest.mark.parametrize("name", ["ddp-recompute", "ddp-memory_bound"])
def test_a_fault_with_a_healthy_jobs_cause_is_right_by_its_reason_alone(name: str) -> None:
    case = CASES[name]
    assert case.injection is not None
    called = score_case(case, result_of(case, cause=case.injection.cause, reasons=list(case.injection.reasons)), None)
    assert called.outcome is CaseOutcome.RIGHT
    passed_for_healthy = score_case(case, result_of(case, cause=case.injection.cause), None)
    assert passed_for_healthy.outcome is CaseOutcome.WRONG_CAUSE
    assert accuracy([called, passed_for_healthy]) == 0.5
    assert confusion([passed_for_healthy]) == {str(case.injection.cause): {"healthy": 1}}


@pytest.mark.parametrize(
    ("captured", "calibrated", "is_right"), [(30.0, 20.0, False), (20.0, 30.0, True), (30.0, None, True)]
)
def test_the_calibrated_prediction_is_judged_where_there_is_one(
    captured: float, calibrated: float | None, is_right: bool
) -> None:
    case = CASES["ddp-straggler"]
    fixes = {Cause.STRAGGLER: PredictedFix(captured, calibrated)}
    row = score_case(
        case,
        result_of(case, cause=Cause.STRAGGLER, fixes=fixes),
        result_of(case, captured_step_ms=30.0, step_ms=30.0),
    )
    assert row.prediction is not None
    assert row.prediction.is_right is is_right


def test_a_missing_prediction_is_shown_and_not_right() -> None:
    case = CASES["pp-few_micro_batches"]
    control = result_of(case, captured_step_ms=30.0, step_ms=30.0)
    called = result_of(case, cause=Cause.PIPELINE_BUBBLE, reasons=[Reason.FEW_MICRO_BATCHES], no_fix="no schedule")
    row = score_case(case, called, control)
    assert row.prediction is not None
    assert row.prediction.is_right is False
    report = make_suite_report([row], preset="two-gpu", command="c", device=None, is_complete=True)
    assert (report.predictions_right, report.predictions_known) == (0, 1)
    assert "| pp-few_micro_batches | pipeline_bubble | none | 30.0 ms |" in suite_report_markdown(report)
    assert {"code": "no_prediction", "message": "pp-few_micro_batches: no schedule"} in report.warnings
    wrong_verdict = score_case(case, replace(called, cause=Cause.HOST_BOUND), control)
    assert wrong_verdict.prediction is None  # counted as a wrong cause


def test_a_failed_control_is_told() -> None:
    case = CASES["ddp-no_overlap"]
    called = result_of(case, cause=Cause.COMMUNICATION, reasons=[Reason.NO_OVERLAP])
    row = score_case(case, called, result_of(case, error="rank 0 failed: OutOfMemoryError"))
    assert (row.outcome, row.severity) == (CaseOutcome.RIGHT, None)
    report = make_suite_report([row], preset="two-gpu", command="c", device=None, is_complete=True)
    assert "control of ddp-no_overlap: rank 0 failed: OutOfMemoryError" in suite_report_markdown(report)
    assert [warning["code"] for warning in report.warnings] == ["no_prediction", "control_failed"]


def test_a_distorted_host_makes_the_gain_a_bound() -> None:
    case = CASES["ddp-slow_loader"]
    faulty = result_of(
        case, cause=Cause.DATA_LOADING, distortion=0.4, fixes={Cause.DATA_LOADING: PredictedFix(10.0, 9.0)}
    )
    row = score_case(case, faulty, result_of(case, captured_step_ms=30.0, step_ms=9.5))
    assert row.prediction is not None
    assert row.prediction.is_bound
    assert row.prediction.is_right is None


@given(st.lists(st.tuples(st.sampled_from(sorted(CASES)), st.none() | st.sampled_from(Cause)), max_size=12))
def test_the_matrix_counts_each_scored_case_once(called: list[tuple[str, Cause | None]]) -> None:
    rows: list[CaseScore] = []
    for name, cause in called:
        case = CASES[name]
        rows.append(score_case(case, None if cause is None else result_of(case, cause=cause), None))
    scored = sum(row.outcome in SCORED for row in rows)
    assert sum(sum(line.values()) for line in confusion(rows).values()) == scored
    share = accuracy(rows)
    assert (share is None) == (scored == 0)
    assert share is None or 0.0 <= share <= 1.0
    report = make_suite_report(rows, preset="two-gpu", command="c", device=None, is_complete=True)
    assert report.num_scored == scored
    assert suite_report_markdown(report).startswith("# Suite")
    assert b'"stepscope.suite/1"' in encode_suite_report(report)


def test_refused_and_missing_runs_are_not_scored() -> None:
    case = CASES["ddp-healthy"]
    assert score_case(case, None, None).outcome is CaseOutcome.NOT_RUN
    assert score_case(case, None, None, refusal="it needs GPUs").outcome is CaseOutcome.REFUSED
    assert accuracy([score_case(case, None, None)]) is None
