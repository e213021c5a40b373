"""Recorded pipelines, two on GPUs and two on CPUs, show the schedule that they ran."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepscope.workflow.analyze import analyze

pytestmark = pytest.mark.shared


@pytest.mark.parametrize(
    ("case", "schedule", "micro_batches", "chunks"),
    [
        ("h100x2/pp_few", "1f1b", 2, 1),
        ("h100x2/pp_many", "1f1b", 8, 1),
        ("public/cpu3d/fsdp_1f1b", "1f1b", 4, 1),
        ("public/cpu3d/fsdp_i1f1b", "interleaved_1f1b", 4, 2),
    ],
)
def test_the_schedule_is_told(case: str, schedule: str, micro_batches: int, chunks: int, shared_traces: Path) -> None:
    found = analyze([str(shared_traces / case)], keep=False).analysis.pipeline
    assert found is not None
    assert (found.schedule, found.stages, found.micro_batches, found.chunks) == (schedule, 2, micro_batches, chunks)
    assert found.structural + found.imbalance + found.variance == pytest.approx(found.measured)
    assert found.textbook == pytest.approx(1 / (chunks * micro_batches + 1))
    if case == "h100x2/pp_few":
        # rank 1 computes 12 % more (the head), so the textbook's third is not what the schedule costs
        assert found.structural == pytest.approx(0.311, abs=0.005)
        assert found.imbalance == pytest.approx(0.045, abs=0.005)
