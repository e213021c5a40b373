"""Each measured figure is compared with the planned figure of the same rank."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepscope.cli.terminal.workload import print_against_plan
from stepscope.reference_workloads.estimate.estimate import Assumptions, compare_with_run, estimate, known_gpu
from stepscope.reference_workloads.job import TrainingJob, TrainingOutcome
from stepscope.reference_workloads.launch import WorkloadResult
from stepscope.reference_workloads.plan import ParallelPlan, find_preset
from stepscope.reference_workloads.recipe import Recipe


def test_ranks_of_a_stage_share_its_estimate(capsys: pytest.CaptureFixture[str]) -> None:
    plan, preset = ParallelPlan(pp=2, dp=2), find_preset("two-gpu")
    planned = estimate(plan, preset, Recipe(), Assumptions(known_gpu("NVIDIA H100 80GB HBM3")))
    first, second = (rank.peak_bytes for rank in planned.memory)
    outcomes = tuple(TrainingOutcome([1.0], [0.5], peak, peak) for peak in (first, 2 * first, second, None))
    job = TrainingJob(plan=plan, preset=preset, out="runs", run="r", num_steps=1, device_type="cuda")
    rows = compare_with_run(planned, WorkloadResult(Path("runs/r"), job, outcomes), flops_per_rank=None)
    assert [row.ratio for row in rows[:4]] == [1.0, 0.5, 1.0, None]
    assert rows[4].measured == pytest.approx(500)
    assert rows[4].planned == pytest.approx(planned.step.total * 1e3)
    assert (rows[5].planned, rows[5].measured) == (planned.flops.model / 4, None)
    print_against_plan([vars_of(row) for row in rows])
    assert "not measured" in capsys.readouterr().out


def vars_of(row: object) -> dict[str, object]:
    """The row as the command prints it."""
    return {name: getattr(row, name) for name in ("what", "unit", "planned", "measured", "ratio")}
