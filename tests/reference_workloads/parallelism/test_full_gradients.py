"""Every layout computes the gradients of one process, parameter by parameter, and learns the same."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from benchmarks.accuracy.gradients import (  # noqa: E402
    GradientRecorder,
    largest_deviation,
    read_gradients,
)
from stepscope.reference_workloads import ParallelPlan, run_workload  # noqa: E402  # needs torch
from stepscope.reference_workloads.plan import find_preset  # noqa: E402

_TOLERANCE = 1e-5  # relative; another order of addition makes 1e-6 of it
_CUBE: dict[str, Any] = {"tp": 2, "pp": 2, "dp": 2}
_CUT: dict[str, Any] = {"sequence_parallel": True, "loss_parallel": True}


def _train(folder: Path, plan: ParallelPlan, architecture: str) -> tuple[list[float], dict[str, list[Any]]]:
    preset = replace(find_preset("tiny"), architecture=architecture)
    recorder = GradientRecorder(str(folder))
    result = run_workload(plan, preset=preset, injections=[recorder], profiled=False, num_steps=3, device="cpu")
    return result.losses, read_gradients(folder)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Losses and gradients of one process, by architecture."""

    @cache
    def of(architecture: str) -> tuple[list[float], dict[str, list[Any]]]:
        return _train(tmp_path_factory.mktemp(architecture), ParallelPlan(), architecture)

    return of


@pytest.mark.parametrize(
    ("architecture", "plan"),
    [
        ("gpt", ParallelPlan(tp=2, dp=2, zero=0, loss_parallel=True, micro_batches=2)),
        ("gpt", ParallelPlan(tp=2, dp=2, zero=1, sequence_parallel=True)),
        ("gpt", ParallelPlan(pp=2, dp=2, zero=3, schedule="gpipe", micro_batches=4)),
        ("gpt", ParallelPlan(pp=2, dp=2, zero=3, schedule="interleaved", micro_batches=4)),
        ("gpt", ParallelPlan(pp=2, dp=2, zero=0, replicate=True, schedule="zero-bubble", micro_batches=4)),
        ("gpt", ParallelPlan(pp=2, dp=2, schedule="looped-bfs")),
        ("gpt", ParallelPlan(pp=2, dp=2, schedule="zbv", micro_batches=4)),
        ("gpt", ParallelPlan(pp=2, schedule="dualpipe-v")),
        ("gpt", ParallelPlan(pp=2, stage_layers=(1, 3), micro_batches=4)),
        ("gpt", ParallelPlan(**_CUBE, zero=0)),
        ("gpt", ParallelPlan(dp=2, zero=3, cpu_offload=True, micro_batches=2)),
        ("gpt", ParallelPlan(**_CUBE, **_CUT, schedule="zero-bubble")),
        ("llama", ParallelPlan(**_CUBE, **_CUT)),
        ("llama", ParallelPlan(tp=2, pp=2)),
    ],
    ids=str,
)
def test_a_layout_computes_what_one_process_computes(
    tmp_path: Path, reference: Any, architecture: str, plan: ParallelPlan
) -> None:
    expected_losses, expected = reference(architecture)
    losses, gradients = _train(tmp_path, plan, architecture)
    assert largest_deviation(gradients, expected) < _TOLERANCE
    assert losses == pytest.approx(expected_losses, abs=1e-4)


def test_a_missing_or_wrong_gradient_is_seen() -> None:
    one = {"a": [torch.tensor([3.0, 4.0])]}
    assert largest_deviation({"a": [torch.tensor([3.0, 4.0]), torch.tensor([3.0, 4.5])]}, one) == pytest.approx(0.1)
    with pytest.raises(ValueError, match=r"\['b'\]"):
        largest_deviation({**one, "b": [torch.ones(1)]}, one)
    with pytest.raises(ValueError, match="a is"):
        largest_deviation({"a": [torch.ones(1)]}, one)
