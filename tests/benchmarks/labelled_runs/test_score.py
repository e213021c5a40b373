"""What of a verdict is right: cause, reasons, ranks, share, step after the fix, and both faults of a pair."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from benchmarks.labelled_runs.score import checks_of
from stepscope.core.documents.analysis import Headroom, NextCause, PredictedFix, SecondaryCause, Verdict
from stepscope.core.vocabulary import Cause, Reason

_FIX = PredictedFix("more workers", 60.0, 1.7, 0.1, "telemetry")
_VERDICT = Verdict(
    cause=Cause.DATA_LOADING,
    reasons=[Reason.STARVED],
    confidence=0.9,
    summary="",
    ranks=[2],
    evidence=[],
    actions=[],
    secondary=[],
    bottleneck=True,
    share=0.4,
    fix=_FIX,
)
_TRUTH: dict[str, Any] = {
    "cause": ["data_loading"],
    "reasons": ["bursty", "starved"],
    "ranks": [2],
    "bottleneck": True,
    "share": 0.46,
    "fixed_ms": 52.0,
    "max_confidence": 0.95,
}


def _wrong(verdict: Verdict, **truth: Any) -> set[str]:
    return {check for check, wrong in checks_of(verdict, _TRUTH | truth, 0.2).items() if wrong is not None}


def test_all_is_right() -> None:
    checks = checks_of(_VERDICT, _TRUTH, 0.2)
    assert checks == dict.fromkeys(["cause", "reasons", "ranks", "bottleneck", "share", "step", "confidence"])


@pytest.mark.parametrize(
    ("check", "truth"),
    [
        ("cause", {"cause": ["copy"]}),
        ("reasons", {"reasons": ["bursty"]}),
        ("ranks", {"ranks": [1]}),
        ("bottleneck", {"bottleneck": False}),
        ("share", {"share": 0.48}),
        ("share", {"share": None, "max_share": {"data_loading": 0.1}}),
        ("step", {"fixed_ms": 49.0}),
        ("confidence", {"max_confidence": 0.9}),
    ],
)
def test_one_thing_is_wrong(check: str, truth: dict[str, Any]) -> None:
    assert _wrong(_VERDICT, **truth) == {check}


def test_what_the_truth_leaves_open_is_not_asked() -> None:
    truth = {"cause": ["data_loading"], "reasons": [], "bottleneck": None, "fixed_ms": None}
    assert checks_of(_VERDICT, truth, 0.2).keys() == {"cause"}


@pytest.mark.parametrize(("interval", "is_right"), [((48.0, 60.0), True), ((70.0, 80.0), False), ((40.0, 80.0), False)])
def test_narrow_bounds_of_the_step_are_an_answer(interval: tuple[float, float], *, is_right: bool) -> None:
    fix = PredictedFix("more workers", None, None, None, "bound", interval)
    assert _wrong(replace(_VERDICT, fix=fix)) == (set() if is_right else {"step"})


def _pair(loader: float, checkpoint: float) -> dict[str, Any]:
    return {
        "data": {"cause": ["data_loading"], "reasons": [], "ranks": [2], "gain": loader, "fixed_ms": 60.0},
        "checkpoint": {"cause": ["checkpoint"], "reasons": [], "ranks": [0], "gain": checkpoint, "fixed_ms": 70.0},
    }


def test_both_faults_of_a_pair_are_named_with_their_costs() -> None:
    assert _wrong(_VERDICT, pair=_pair(0.42, 0.2)) == {"pair"}
    second = SecondaryCause(Cause.CHECKPOINT, 0.25, "")
    assert not _wrong(replace(_VERDICT, secondary=[second]), pair=_pair(0.42, 0.2))
    assert _wrong(replace(_VERDICT, secondary=[second]), pair=_pair(0.42, 0.1)) == {"pair"}
    assert not _wrong(replace(_VERDICT, next=NextCause(Cause.CHECKPOINT, 0.22)), pair=_pair(0.42, 0.2))


def test_the_fault_that_is_named_first_is_judged_by_its_own_truth() -> None:
    verdict = replace(
        _VERDICT,
        cause=Cause.CHECKPOINT,
        ranks=[0],
        share=0.38,
        fix=replace(_FIX, step_ms=70.0),
        secondary=[SecondaryCause(Cause.DATA_LOADING, 0.4, "")],
    )
    assert not _wrong(verdict, cause=["data_loading", "checkpoint"], pair=_pair(0.42, 0.38))
    assert _wrong(verdict, cause=["data_loading"], pair=_pair(0.42, 0.2)) >= {"cause", "pair"}


_CHANGES: dict[str, Any] = {
    "tf32": {"action": "tf32", "advice": "tf32|matmul_precision", "step_ms": 40.0, "gain": 0.6, "is_batch": False},
    "bf16": {"action": "autocast", "advice": "autocast", "step_ms": 30.0, "gain": 0.7, "is_batch": False},
    "batch": {"action": "batch size", "advice": "batch", "step_ms": 98.0, "gain": 0.02, "is_batch": True},
}


def _wrong_headroom(*headroom: Headroom, is_tuned: bool = False, main: str = "tf32") -> set[str]:
    healthy = replace(_VERDICT, cause=Cause.COMPUTE_BOUND, bottleneck=False, headroom=list(headroom))
    changes = {main: _CHANGES[main]} | _CHANGES
    truth = {"cause": ["compute_bound"], "reasons": [], "bottleneck": False, "bare_ms": 100.0, "headroom": changes}
    checks = checks_of(healthy, truth | {"is_tuned": is_tuned}, 0.2)
    return {check for check, wrong in checks.items() if wrong is not None}


def test_the_first_action_of_headroom_is_the_change_or_a_better_one() -> None:
    tf32 = Headroom('torch.set_float32_matmul_precision("high")', 45.0, 2.2)
    autocast = Headroom("torch.autocast(...)", 33.0, 3.0)
    assert _wrong_headroom(tf32, autocast) == _wrong_headroom(autocast) == set()
    assert _wrong_headroom(tf32, main="bf16") == {"action", "gain", "saving"}
    assert _wrong_headroom(Headroom("batch_size=64", 95.0, 1.05), tf32) == {"action", "gain", "saving"}
    assert _wrong_headroom() == {"action", "gain", "saving"}


def test_the_step_of_a_change_is_judged_and_its_saving() -> None:
    assert _wrong_headroom(replace(_TF32, step_ms=49.0, speedup=100 / 49)) == {"gain"}
    assert _wrong_headroom(replace(_TF32, step_ms=60.0, speedup=100 / 60)) == {"gain", "saving"}
    assert _wrong_headroom(replace(_TF32, step_ms=20.0, speedup=5.0)) == {"gain", "saving", "excess"}


def test_a_tuned_job_is_promised_no_more_than_was_measured() -> None:
    assert _wrong_headroom(Headroom("batch_size=64", 95.0, 1.05), is_tuned=True) == set()
    assert _wrong_headroom(Headroom("batch_size=64", 80.0, 1.25), is_tuned=True) == {"excess"}
    assert _wrong_headroom(Headroom("torch.compile(model)", 80.0, 1.25), is_tuned=True) == {"excess"}
    assert _wrong_headroom(_TF32, Headroom("torch.compile(model)", 80.0, 1.25)) == set()


_TF32 = Headroom('torch.set_float32_matmul_precision("high")', 40.0, 2.5)
