"""A checkpoint that stops training is diagnosed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from stepscope.core.documents.analysis import Analysis
from stepscope.core.vocabulary import Cause
from stepscope.reference_workloads.injections.host import CheckpointStall
from stepscope.reference_workloads.job import TrainingJob
from stepscope.reference_workloads.recipe import Recipe


def test_a_synchronous_checkpoint_stops_training(analysis_of: Callable[..., Analysis]) -> None:
    analysis = analysis_of("checkpoint_stall:every_steps=1", simulate_ms=2, dp=2, zero=0)
    assert analysis.verdict.cause == Cause.CHECKPOINT


def test_a_gpus_model_is_cut_so_that_disks_are_not_what_is_waited_for(job_of: Callable[..., TrainingJob]) -> None:
    job = job_of(dp=2, zero=0)
    control = CheckpointStall().control(job)
    assert control.preset.num_layers == job.preset.num_layers // 4
    assert CheckpointStall().change(control).recipe.checkpoint_every == 3
    assert CheckpointStall().control(job_of("tiny", "cpu", dp=2)).preset == job_of("tiny", "cpu", dp=2).preset


def test_a_checkpoint_that_never_comes_is_refused(job_of: Callable[..., TrainingJob]) -> None:
    job = job_of()
    assert CheckpointStall(every_steps=job.num_steps).refusal(job) is None
    late = CheckpointStall(every_steps=job.num_steps + 1)
    assert late.refusal(job) == "of 9 steps none is followed by a checkpoint every 10"
    assert late.refusal(replace(job, recipe=Recipe(resume_from="checkpoints/step8"))) is None
