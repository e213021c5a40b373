"""Jobs into which faults go, and runs that they spoil."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stepscope.core.documents.analysis import Analysis
from stepscope.reference_workloads import ParallelPlan, run_workload
from stepscope.reference_workloads.injections.catalogue import parse_injection
from stepscope.reference_workloads.job import TrainingJob
from stepscope.reference_workloads.plan import find_preset
from stepscope.training import once
from stepscope.workflow.analyze import analyze

CAPTURE = once(wait=2, warmup=1, active=3)


@pytest.fixture
def job_of() -> Callable[..., TrainingJob]:
    """A job by its plan's sizes, on GPUs unless said otherwise; it is only looked at."""

    def build(preset: str = "two-gpu", device_type: str = "cuda", simulate_ms: float = 0.0, **plan: Any) -> TrainingJob:
        return TrainingJob(
            ParallelPlan(**plan),
            find_preset(preset),
            out="runs",
            run="r",
            num_steps=9,
            device_type=device_type,
            simulate_ms=simulate_ms,
        )

    return build


@pytest.fixture
def analysis_of(tmp_path: Path) -> Callable[..., Analysis]:
    """Train on CPU with a fault, and analyse what it leaves."""
    pytest.importorskip("torch")

    def train(fault: str, *, simulate_ms: float, num_steps: int = 6, as_control: bool = False, **plan: Any) -> Analysis:
        result = run_workload(
            ParallelPlan(**plan),
            out=tmp_path,
            run="control" if as_control else "faulty",
            num_steps=num_steps,
            simulate_compute_ms=simulate_ms,
            injections=[parse_injection(fault)],
            as_control=as_control,
            schedule=CAPTURE,
            device="cpu",
        )
        return analyze([str(result.run_dir)]).analysis

    return train
