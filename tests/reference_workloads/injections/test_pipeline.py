"""Bubble and uneven stages are distinguished, and what-if predicts the control."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from stepscope.core.documents.analysis import Analysis
from stepscope.core.vocabulary import Cause, Reason
from stepscope.reference_workloads.injections.compute import FewMicroBatches, UnevenStages
from stepscope.reference_workloads.job import TrainingJob

Jobs = Callable[..., TrainingJob]


def test_few_micro_batches_are_a_bubble(analysis_of: Callable[..., Analysis]) -> None:
    analysis = analysis_of("few_micro_batches", simulate_ms=10, pp=2)
    assert analysis.verdict.cause == Cause.PIPELINE_BUBBLE
    assert analysis.verdict.reasons == [Reason.FEW_MICRO_BATCHES]
    assert analysis.pipeline is not None
    assert analysis.pipeline.micro_batches == 2


def test_layers_moved_to_the_last_stage_are_an_imbalance_of_that_rank(analysis_of: Callable[..., Analysis]) -> None:
    verdict = analysis_of("uneven_stages", simulate_ms=10, pp=2).verdict
    assert verdict.cause == Cause.IMBALANCE
    assert verdict.reasons == [Reason.UNEVEN_STAGES]
    assert verdict.ranks == [1]


def test_half_the_micro_batches_are_twice_as_long(job_of: Jobs) -> None:
    job = job_of("tiny", "cpu", simulate_ms=5, pp=2)
    control = FewMicroBatches().control(job)
    faulty = FewMicroBatches().change(control)
    assert (control.plan.micro_batches, faulty.plan.micro_batches) == (4, 2)
    assert faulty.simulate_ms == 2 * control.simulate_ms


@pytest.mark.parametrize(
    ("sizes", "moved_ratio", "layers"),
    [({"pp": 2}, 0.5, (2, 6)), ({"pp": 4}, 0.1, (1, 2, 2, 3)), ({"pp": 2}, 1.0, (1, 7))],
)
def test_no_layer_is_lost_on_its_way(
    job_of: Jobs, sizes: dict[str, int], moved_ratio: float, layers: tuple[int, ...]
) -> None:
    fault = UnevenStages(moved_ratio=moved_ratio)
    control = fault.control(job_of(**sizes))
    assert control.plan.num_micro_batches == min(16, 4 * sizes["pp"])
    assert fault.change(control).plan.stage_layers == layers


@pytest.mark.parametrize(
    ("kind", "arguments", "reason"),
    [
        (FewMicroBatches, {}, "pp > 1"),
        (FewMicroBatches, {"pp": 2, "device_type": "cpu"}, "simulated compute"),
        (UnevenStages, {"pp": 2, "stage_layers": (2, 6)}, "stages of equal size"),
        (UnevenStages, {"preset": "tiny", "pp": 4}, "two layers a stage"),
    ],
)
def test_what_cannot_be_seen_is_refused(job_of: Jobs, kind: Any, arguments: dict[str, Any], reason: str) -> None:
    assert reason in (kind().refusal(job_of(**arguments)) or "")
