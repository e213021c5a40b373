"""A rank that computes longer than its peers is diagnosed, whatever transports their gradients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from stepscope.core.documents.analysis import Analysis
from stepscope.core.vocabulary import Cause
from stepscope.reference_workloads.injections.compute import Straggler, rank_flops
from stepscope.reference_workloads.job import TrainingJob
from stepscope.reference_workloads.plan import find_preset


@pytest.mark.parametrize("zero", [0, 2])
def test_the_slow_rank_is_named(analysis_of: Callable[..., Analysis], zero: int) -> None:
    verdict = analysis_of("straggler", simulate_ms=10, dp=2, zero=zero).verdict
    assert (verdict.cause, verdict.ranks) == (Cause.STRAGGLER, [1])


def test_its_peers_must_have_the_same_work(job_of: Callable[..., TrainingJob]) -> None:
    assert "same work" in (Straggler().refusal(job_of(pp=2)) or "")
    assert Straggler().refusal(job_of(pp=2, tp=2)) is None
    assert "no rank 2" in (Straggler(rank=2).refusal(job_of(dp=2)) or "")


def test_a_trace_without_kernels_need_not_tell_how() -> None:
    assert Straggler().reasons_on("cpu") == ()
    assert Straggler().reasons_on("cuda")


@pytest.mark.parametrize(
    "plan", [{}, {"tp": 2, "dp": 2, "zero": 0}, {"pp": 2, "schedule": "interleaved", "micro_batches": 4}], ids=str
)
def test_extra_work_is_measured_by_the_matrices_of_the_ranks_own_layers(
    job_of: Callable[..., TrainingJob], plan: dict[str, Any]
) -> None:
    torch = pytest.importorskip("torch")
    from stepscope.reference_workloads.models.transformer import Stage

    job = job_of("tiny", "cpu", **plan)
    for pp_rank in range(job.plan.pp):
        num_weights = sum(
            part.weight.numel()
            for stage in job.plan.stages_of(pp_rank)
            for part in Stage(job.preset, job.plan.layers_of(stage, 4)).blocks.modules()
            if isinstance(part, torch.nn.Linear)
        )
        num_tokens = 8 // job.plan.dp * 16
        assert rank_flops(job, pp_rank) == 6 * num_weights / job.plan.tp * num_tokens


def test_a_convolution_uses_its_weights_at_every_pixel(job_of: Callable[..., TrainingJob]) -> None:
    pytest.importorskip("torch")
    job = replace(job_of(dp=2, zero=0), preset=find_preset("two-gpu", "resnet50"))
    # 4.1 billion multiplications an image forwards (He et al. 2016 count 3.8 for v1), each two FLOPs, thrice.
    assert rank_flops(job, 0) == pytest.approx(256 * 3 * 2 * 4.09e9, rel=0.01)
