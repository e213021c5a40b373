"""Full gradients of a parallel run, to prove that two layouts compute the same."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from stepscope.core.vocabulary import Cause
from stepscope.reference_workloads.job import FaultSite, Injection
from stepscope.reference_workloads.parallelism.gradients import named_parameters


@dataclass(frozen=True, slots=True)
class GradientRecorder(Injection):
    """Records each rank's whole gradients of the first parallel step in `folder`, for `read_gradients`."""

    name: ClassVar[str] = "gradient_recorder"
    cause: ClassVar[Cause] = Cause.COMMUNICATION
    shows: ClassVar[str] = "gradients gathered after the first step's backward pass"

    folder: str = "."

    def prepare(self, site: FaultSite) -> None:
        site.kept[self.name] = named_parameters(site.modules)

    def after_backward(self, site: FaultSite, step: int) -> None:
        if step:
            return
        gradients = {name: _whole_gradient(parameter) for name, parameter in site.kept[self.name].items()}
        torch.save(gradients, Path(self.folder) / f"rank{site.rank}.pt")


def _whole_gradient(parameter: nn.Parameter) -> torch.Tensor:
    """On the CPU, nought where there is none. A sharded one is gathered, so all ranks must ask at the same time."""
    layout = getattr(parameter, "_st_info", None)  # as `layout_of` has it; FSDP's gradients know theirs
    gradient = parameter.grad
    if gradient is None:
        return torch.zeros(parameter.shape if layout is None else layout.shape)
    if layout is not None:
        gradient = DTensor.from_local(gradient, layout.mesh, layout.placements, run_check=False)
    if isinstance(gradient, DTensor):
        gradient = gradient.full_tensor()
    return gradient.detach().cpu()


def read_gradients(folder: str | Path) -> dict[str, list[torch.Tensor]]:
    """Read recorded gradients of a parallel run: name in the uncut model -> gradient on each rank."""
    found: dict[str, list[torch.Tensor]] = {}
    for path in sorted(Path(folder).glob("rank*.pt")):
        for name, gradient in torch.load(path).items():
            found.setdefault(name, []).append(gradient)
    return found


def largest_deviation(found: dict[str, list[torch.Tensor]], reference: dict[str, list[torch.Tensor]]) -> float:
    """Largest relative error of a parallel run's gradients against a reference, over parameters and ranks.

    Raises:
        ValueError: a parameter is missing, or is not of the reference.
    """
    if set(found) != set(reference):
        raise ValueError(f"other parameters than the reference: {sorted(set(found) ^ set(reference))}")
    worst = 0.0
    for name, (expected, *_) in reference.items():
        for gradient in found[name]:
            if gradient.shape != expected.shape:
                raise ValueError(f"{name} is {tuple(gradient.shape)}, in the reference {tuple(expected.shape)}")
            difference = (gradient.double() - expected.double()).norm() / expected.double().norm()
            worst = max(worst, difference.item())
    return worst
