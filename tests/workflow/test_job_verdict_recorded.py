"""Verdicts on the training time of recorded runs meet their known truth."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from stepscope.core.documents.analysis import Goodput
from stepscope.core.vocabulary import Cause
from stepscope.workflow.analyze import analyze

pytestmark = pytest.mark.shared

_TOLERANCE = {"h200x1": 0.2, "cpu4": 0.15}
"""Of the step after the fix; virtual hosts differ by a third."""


@pytest.mark.parametrize(
    "run",
    [
        "h200x1/slow_workers",
        "h200x1/gc_churn",
        "h200x1/small_batch",
        "h200x1/fp16_overflow",
        "h200x1/item_control",
        "h200x1/item_norms",
        "h200x1/neighbour",
        "h200x1/z_hf_trainer",
        "cpu4/gc_rank3",
        "cpu4/loader_rank1",
        "cpu4/eval_rank0",
        "cpu4/l_val",
        "cpu4/healthy",
        "cpu4/drift",
    ],
)
def test_a_recorded_run_meets_its_truth(run: str, shared_traces: Path) -> None:
    folder, name = run.split("/")
    truth = json.loads((shared_traces / folder / "truth.json").read_text())[name]
    analysis = analyze([str(shared_traces / run)], keep=False).analysis
    verdict, job_time = analysis.verdict, analysis.job_time
    assert verdict.cause in [Cause(cause) for cause in truth["cause"]]
    assert not truth["reasons"] or set(truth["reasons"]) & set(verdict.reasons)
    if "share" in truth:
        assert verdict.share == pytest.approx(truth["share"], abs=0.1)
    if "ranks" in truth:
        assert sorted(verdict.ranks) == truth["ranks"]
    if "bottleneck" in truth:
        assert verdict.bottleneck is truth["bottleneck"]
    assert verdict.confidence < truth.get("max_confidence", 1.01)
    if truth["fixed_ms"] is not None:
        assert verdict.fix is not None
        low, high = verdict.fix.interval_ms or (verdict.fix.step_ms, verdict.fix.step_ms)
        assert low is not None
        assert high is not None
        tolerance = _TOLERANCE[folder] if verdict.fix.step_ms else 0.0
        assert low * (1 - tolerance) <= truth["fixed_ms"] <= high * (1 + tolerance)
    assert job_time is not None
    assert job_time.basis == "telemetry+trace"
    if verdict.cause is not Cause.UNEXPLAINED:
        assert verdict.share is not None
        assert verdict.share >= job_time.breakdown.get(verdict.cause, 0.0) - 1e-9
    assert sum(job_time.breakdown.values()) == pytest.approx(1)
    assert job_time.wall_ms == pytest.approx(sum(getattr(job_time.goodput, name) for name in Goodput.__slots__))


@pytest.mark.parametrize("folder", ["h200x1", "cpu4"])
def test_without_its_traces_a_run_has_the_same_cause_or_none(folder: str, shared_traces: Path, tmp_path: Path) -> None:
    truths = json.loads((shared_traces / folder / "truth.json").read_text())
    named = {}
    for name, truth in truths.items():
        run = tmp_path / name
        shutil.copytree(shared_traces / folder / name / "steps", run / "steps")
        shutil.copy(shared_traces / folder / name / "run.json", run)
        verdict = analyze([str(run)], keep=False).analysis.verdict
        if verdict.cause not in (Cause.INSUFFICIENT_EVIDENCE, Cause.UNEXPLAINED):
            named[name] = verdict
            assert verdict.cause in truth["cause"]
            assert verdict.share == pytest.approx(truth["share"], abs=0.1)
            assert sorted(verdict.ranks) == truth.get("ranks", sorted(verdict.ranks))
            if truth["fixed_ms"] is not None:
                assert verdict.fix is not None
                assert verdict.fix.step_ms == pytest.approx(truth["fixed_ms"], rel=_TOLERANCE[folder])
        else:
            assert verdict.confidence < 0.9
    assert sorted(named) == _NAMED_BY_RECORDS[folder]


_NAMED_BY_RECORDS = {
    "h200x1": ["fp16_overflow", "gc_churn", "pair_gc_item", "slow_workers", "z_hf_trainer"],
    "cpu4": ["drift", "gc_rank3", "l_val", "loader_rank1"],
}
