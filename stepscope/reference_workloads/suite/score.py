"""Scores of labelled runs: whether the fault was named, and whether what-if predicted the step without it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from stepscope.core.vocabulary import HEALTHY_CAUSES, Cause, Reason
from stepscope.reference_workloads.injections.faults import inject_faults
from stepscope.reference_workloads.suite.cases import HEALTHY, SuiteCase
from stepscope.reference_workloads.suite.results import SuiteRunResult, why_run_failed

GOOD_PREDICTION = 0.10
"""A predicted step this near to the control's is right."""

STRONG_DISTORTION = 0.10
"""Capturing that slows the step by more than this makes host-side losses larger than they are without it."""

_HOST_SIDE = frozenset({Cause.HOST_BOUND, Cause.SYNCHRONIZATION, Cause.DATA_LOADING, Cause.CHECKPOINT})


class CaseOutcome(StrEnum):
    """Outcome of a suite's case: whether the verdict was right, wrong, or not reached."""

    RIGHT = "right"
    """cause and reason"""
    WRONG_REASON = "wrong reason"
    """the cause is right, none of the expected reasons is named"""
    WRONG_CAUSE = "wrong cause"
    """or a cause that healthy jobs have, without the reason that tells the fault"""
    ENDED_AS_EXPECTED = "ended as expected"
    """a fault that ends the run did, by what it is; no verdict is scored"""
    FAILED = "failed"
    """no verdict, where one was due; or no end, where one was due"""
    REFUSED = "refused"
    """the fault means nothing here"""
    NOT_RUN = "not run"


SCORED = frozenset({CaseOutcome.RIGHT, CaseOutcome.WRONG_REASON, CaseOutcome.WRONG_CAUSE, CaseOutcome.FAILED})
"""Outcomes that count for the accuracy."""


@dataclass(frozen=True, slots=True)
class SuitePrediction:
    """What-if's step without the fault beside the control's. Milliseconds; errors are predicted / measured - 1.

    Attributes:
        fix: the cause that was removed.
        step_ms, control_ms, error: as captured, both; no step_ms where what-if has no answer.
        calibrated_ms, unprofiled_control_ms, calibrated_error: calibrated, and the control without a profiler.
        is_bound: capturing distorts the host so much that the gain is only a bound.
        why_none: why what-if has no answer, where it should have one; None where it has.
    """

    fix: Cause
    step_ms: float | None
    control_ms: float | None
    error: float | None
    calibrated_ms: float | None
    unprofiled_control_ms: float | None
    calibrated_error: float | None
    is_bound: bool
    why_none: str | None = None

    @property
    def is_right(self) -> bool | None:
        """Whether it is within GOOD_PREDICTION; None when it is only a bound or the control's step is not known."""
        if self.why_none is not None:
            return False
        # The calibrated error, which speaks of training as it is without a profiler; as captured where there is none.
        # Chosen beforehand: the smaller of two errors would be right more often than either way of predicting.
        judged = self.error if self.calibrated_error is None else self.calibrated_error
        return None if judged is None or self.is_bound else abs(judged) <= GOOD_PREDICTION


@dataclass(frozen=True, slots=True)
class CaseScore:
    """Score of one suite case: a row of the report.

    Attributes:
        fault: name of the injection, or "healthy".
        expected: the causes that are right, the foremost first.
        expected_reasons: by cause, one of which must be named with it; no entry where any will do.
        why: short reason where the outcome is not a plain success.
        severity: step with the fault / step without, neither profiled; None where the fault changes the model.
        overhead: profiled step / unprofiled step - 1.
        prediction: None where the fault has no fix, or its cause was not called.
        control_error: why the control's run failed, where it is another run: there is no severity then.
    """

    case: str
    layout: str
    fault: str
    outcome: CaseOutcome
    expected: list[Cause]
    expected_reasons: dict[Cause, list[Reason]]
    verdict: Cause | None = None
    reasons: list[Reason] = field(default_factory=list)
    confidence: float | None = None
    why: str = ""
    step_ms: float | None = None
    control_step_ms: float | None = None
    severity: float | None = None
    captured_step_ms: float | None = None
    overhead: float | None = None
    mfu: float | None = None
    peak_allocated_bytes: int | None = None
    prediction: SuitePrediction | None = None
    control_error: str | None = None
    artefacts: list[str] = field(default_factory=list)


def score_case(
    case: SuiteCase, result: SuiteRunResult | None, control: SuiteRunResult | None, *, refusal: str | None = None
) -> CaseScore:
    """Score a suite's case: compare the verdict with the injected fault.

    Args:
        result: of the case's run; None when it has not been made.
        control: of its control; None likewise.
        refusal: why the fault means nothing here.
    """
    outcome, why = _outcome(case, result, refusal)
    if result is None:
        return CaseScore(
            case.name, case.layout, _fault(case), outcome, expected_causes(case), expected_reasons(case), why=why
        )
    control_step = None if control is None else control.step_ms
    return CaseScore(
        case=case.name,
        layout=case.layout,
        fault=_fault(case),
        outcome=outcome,
        expected=expected_causes(case),
        expected_reasons=expected_reasons(case),
        verdict=result.cause,
        reasons=list(result.reasons),
        confidence=result.confidence,
        why=why,
        step_ms=result.step_ms,
        control_step_ms=control_step,
        severity=_ratio(result.step_ms, control_step) if _trains_same_model(case) else None,
        captured_step_ms=result.captured_step_ms,
        overhead=_relative(result.captured_step_ms, result.step_ms),
        mfu=result.mfu,
        peak_allocated_bytes=result.peak_allocated_bytes,
        prediction=None if control is None else _prediction(case, result, control),
        control_error=None if control is None or case.control.name == case.run.name else control.error,
        artefacts=list(result.artefacts),
    )


def accuracy(scores: Sequence[CaseScore]) -> float | None:
    """Share of a suite's scored cases whose cause was called right; None when none was scored."""
    scored = [row for row in scores if row.outcome in SCORED]
    right = [row for row in scored if row.outcome in {CaseOutcome.RIGHT, CaseOutcome.WRONG_REASON}]
    return len(right) / len(scored) if scored else None


def confusion(scores: Sequence[CaseScore]) -> dict[str, dict[str, int]]:
    """Confusion matrix of a suite: scored cases by expected cause ("healthy" without a fault) and verdict."""
    matrix: dict[str, dict[str, int]] = {}
    for row in scores:
        if row.outcome in SCORED:
            wanted = HEALTHY if row.fault == HEALTHY else str(row.expected[0])
            called = "no verdict" if row.verdict is None else _called(row)
            line = matrix.setdefault(wanted, {})
            line[called] = line.get(called, 0) + 1
    return matrix


def _called(row: CaseScore) -> str:
    """A healthy run may be called by what bounds it; one with a fault that is called so alone passes for healthy."""
    is_healthy = row.fault == HEALTHY or (row.outcome is CaseOutcome.WRONG_CAUSE and row.verdict in row.expected)
    return HEALTHY if is_healthy and row.verdict in HEALTHY_CAUSES else str(row.verdict)


def expected_causes(case: SuiteCase) -> list[Cause]:
    """Causes that are right for a suite's case, the foremost first."""
    if case.injection is None:
        return [*sorted(HEALTHY_CAUSES), *([Cause.COMMUNICATION] if _exposes_all_reduces(case) else [])]
    return [case.injection.cause, *case.injection.also_right]


def expected_reasons(case: SuiteCase) -> dict[Cause, list[Reason]]:
    """Reasons that a suite's case expects with a cause; no entry where any will do."""
    if case.injection is None:
        return {Cause.COMMUNICATION: [Reason.NO_OVERLAP]} if _exposes_all_reduces(case) else {}
    # Another face of a fault has reasons of its own.
    reasons = list(case.injection.reasons_on(case.run.job.device_type))
    return {case.injection.cause: reasons} if reasons else {}


def _exposes_all_reduces(case: SuiteCase) -> bool:
    """Eager tensor parallelism: a layer's next product needs the sum that its all-reduce makes, so nothing hides it.

    Over NVLink that was 13.6 % of a step, more than a healthy job loses. On CPU layers sleep and little is sent.
    """
    job = case.run.job
    return job.plan.tp > 1 and job.device_type == "cuda" and not job.recipe.compiles


def _fault(case: SuiteCase) -> str:
    return HEALTHY if case.injection is None else case.injection.name


def _trains_same_model(case: SuiteCase) -> bool:
    return inject_faults(case.run.job).preset == case.control.job.preset


def _outcome(case: SuiteCase, result: SuiteRunResult | None, refusal: str | None) -> tuple[CaseOutcome, str]:
    if refusal is not None:
        return CaseOutcome.REFUSED, refusal
    if result is None:
        return CaseOutcome.NOT_RUN, "not run yet"
    failure = why_run_failed(case.run, result)
    if failure is not None:
        return CaseOutcome.FAILED, failure
    if case.injection is not None and case.injection.ends_run:
        return CaseOutcome.ENDED_AS_EXPECTED, f"{result.error}; verdict not scored"
    if result.cause is None:
        return CaseOutcome.FAILED, "no verdict"
    if result.cause not in expected_causes(case):
        return CaseOutcome.WRONG_CAUSE, result.summary or ""
    wanted = expected_reasons(case).get(result.cause, [])
    if wanted and not set(wanted) & set(result.reasons):
        named = ", ".join(result.reasons) or "none"
        # Healthy jobs are called by the same causes: only the reason tells that this one is not.
        is_missed = case.injection is not None and result.cause in HEALTHY_CAUSES
        outcome = CaseOutcome.WRONG_CAUSE if is_missed else CaseOutcome.WRONG_REASON
        return outcome, f"reasons named: {named}; expected one of {', '.join(wanted)}"
    return CaseOutcome.RIGHT, ""


def _prediction(case: SuiteCase, result: SuiteRunResult, control: SuiteRunResult) -> SuitePrediction | None:
    fix = None if case.injection is None else case.injection.fix
    if fix is None:
        return None
    predicted = result.fixes.get(fix)
    if predicted is None and result.cause is not fix:
        return None  # the verdict is wrong, which is counted there
    distortions = [result.distortion, control.distortion]
    distorted = any(value is not None and abs(value) > STRONG_DISTORTION for value in distortions)
    step_ms, calibrated_ms = (None, None) if predicted is None else (predicted.step_ms, predicted.calibrated_step_ms)
    return SuitePrediction(
        fix=fix,
        step_ms=step_ms,
        control_ms=control.captured_step_ms,
        error=_relative(step_ms, control.captured_step_ms),
        calibrated_ms=calibrated_ms,
        unprofiled_control_ms=control.step_ms,
        calibrated_error=_relative(calibrated_ms, control.step_ms),
        is_bound=predicted is not None and distorted and fix in _HOST_SIDE,
        why_none=result.no_fix or "there is no what-if prediction" if predicted is None else None,
    )


def _ratio(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else part / whole


def _relative(value: float | None, reference: float | None) -> float | None:
    ratio = _ratio(value, reference)
    return None if ratio is None else ratio - 1.0
