"""One real 3D-parallel run, trained once for all tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepscope.reference_workloads import ParallelPlan, WorkloadResult, run_workload
from stepscope.training import once


@pytest.fixture(autouse=True)
def _not_a_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "STEPSCOPE_DISABLE"):
        monkeypatch.delenv(variable, raising=False)


@pytest.fixture(scope="session")
def run_2x2x2(tmp_path_factory: pytest.TempPathFactory) -> WorkloadResult:
    """TP2 x PP2 x DP2 under ZeRO 2 and 1F1B with two micro-batches; layers sleep 10 ms; steps 3 and 4 captured."""
    pytest.importorskip("torch")
    out: Path = tmp_path_factory.mktemp("runs")
    return run_workload(
        ParallelPlan(tp=2, pp=2, dp=2),
        out=out,
        run="3d",
        num_steps=6,
        simulate_compute_ms=10,
        schedule=once(wait=2, warmup=1, active=2),
        device="cpu",
    )
