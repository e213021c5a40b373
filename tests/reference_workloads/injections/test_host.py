"""Is a checkpoint that stops training named?"""

from __future__ import annotations

from collections.abc import Callable

from stepscope.core.analysis import Analysis
from stepscope.core.causes import Cause
from stepscope.reference_workloads.injections.host import CheckpointStall
from stepscope.reference_workloads.job import TrainingJob


def test_a_synchronous_checkpoint_stops_training(analysis_of: Callable[..., Analysis]) -> None:
    analysis = analysis_of("checkpoint_stall:every_steps=1", simulate_ms=2, dp=2, zero=0)
    assert analysis.verdict.cause == Cause.CHECKPOINT


def test_a_gpus_model_is_cut_so_that_disks_are_not_what_is_waited_for(job_of: Callable[..., TrainingJob]) -> None:
    job = job_of(dp=2, zero=0)
    control = CheckpointStall().control(job)
    assert control.preset.num_layers == job.preset.num_layers // 4
    assert CheckpointStall().change(control).recipe.checkpoint_every == 3
    assert CheckpointStall().control(job_of("tiny", "cpu", dp=2)).preset == job_of("tiny", "cpu", dp=2).preset
