"""Are the faults of data loading named for what they are?"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stepscope.core.causes import Cause
from stepscope.reference_workloads import ParallelPlan, run_gpt
from stepscope.reference_workloads.injections.data import SlowLoader
from stepscope.training import once
from stepscope.workflow.analyze import analyze

pytest.importorskip("torch")


def test_a_slow_loader_is_data_loading_and_leaves_its_truth(tmp_path: Path) -> None:
    result = run_gpt(
        ParallelPlan(dp=2),
        out=tmp_path,
        run="slow",
        num_steps=6,
        simulate_compute_ms=5,
        injections=[SlowLoader(milliseconds_per_item=40)],
        schedule=once(wait=2, warmup=1, active=3),
        device="cpu",
    )
    truth = json.loads((result.run_dir / "truth" / "injected.json").read_text())
    assert [(fault["name"], fault["cause"], fault["severity"]) for fault in truth] == [
        ("slow_loader", "data_loading", {"milliseconds_per_item": 40.0})
    ]
    assert analyze([str(result.run_dir)]).analysis.verdict.cause == Cause.DATA_LOADING
