"""Verdicts on the training time of recorded runs meet their known truth."""

from __future__ import annotations

import json
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
    assert sum(job_time.breakdown.values()) == pytest.approx(1)
    assert job_time.wall_ms == pytest.approx(sum(getattr(job_time.goodput, name) for name in Goodput.__slots__))
