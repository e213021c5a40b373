"""Loss scale: shrinks at overflows, and grows after enough steps without one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from stepscope.reference_workloads.plan import find_preset
from stepscope.reference_workloads.recipe import Recipe

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402  # needs torch

from stepscope.reference_workloads.models.mixed_precision import LossScale  # noqa: E402


@pytest.fixture
def _alone(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("_alone")
def test_halves_at_once_and_doubles_after_the_interval_as_torchs_own() -> None:
    preset = replace(find_preset("tiny"), dtype="float16")
    scale = LossScale(preset, Recipe(initial_loss_scale=1024.0, loss_scale_growth_interval=3))
    reference = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)
    weight = torch.nn.Parameter(torch.ones(()))
    optimizer = torch.optim.SGD([weight])
    for norm in (1.0, 1.0, float("inf"), 1.0, 1.0, 1.0, float("nan"), float("inf"), 2.0):
        reference.scale(weight.detach())
        weight.grad = torch.tensor(norm)
        reference.step(optimizer)
        reference.update()
        assert scale.accepts(torch.tensor(norm)) == (norm in {1.0, 2.0})
        assert scale.value == reference.get_scale()
    assert scale.num_skipped_steps == 3
    assert scale.unscaled(scale.scaled(torch.tensor(3.0))).item() == 3.0


def test_other_dtypes_are_left_alone_and_need_no_other_rank() -> None:
    scale = LossScale(find_preset("tiny"), Recipe())
    loss = torch.tensor(3.0)
    assert scale.scaled(loss) is loss
    assert scale.accepts(torch.tensor(float("inf")))
    assert scale.value == 1.0
