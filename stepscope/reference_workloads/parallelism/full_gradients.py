"""Full gradients by parameter name, recorded and compared to prove that two layouts compute the same."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from stepscope.core.vocabulary import Cause
from stepscope.reference_workloads.job import Injection, Site

if TYPE_CHECKING:
    import torch
    from torch import nn

_WRAPPER_PARTS = {"module", "_checkpoint_wrapped_module", "_orig_mod"}


@dataclass(frozen=True, slots=True)
class GradientRecorder(Injection):
    """No fault: leaves the first step's whole gradients of each rank in `folder`, for `read_gradients`."""

    name: ClassVar[str] = "gradient_recorder"
    cause: ClassVar[Cause] = Cause.COMMUNICATION
    shows: ClassVar[str] = "gradients gathered after the first step's backward pass"

    folder: str = "."

    def prepare(self, site: Site) -> None:
        site.kept[self.name] = named_parameters(site.modules)

    def after_backward(self, site: Site, step: int) -> None:
        if step:
            return
        import torch

        gradients = {name: whole_gradient(parameter) for name, parameter in site.kept[self.name].items()}
        torch.save(gradients, Path(self.folder) / f"rank{site.rank}.pt")


def named_parameters(modules: Iterable[nn.Module]) -> dict[str, nn.Parameter]:
    """Name in the uncut model -> parameter, of all that this rank trains.

    To be asked before the first forward pass: DDP over tensor-parallel parameters takes them out of the module then.
    """
    found = (pair for module in modules for pair in module.named_parameters())
    return {uncut_name(name): parameter for name, parameter in found}


def whole_gradient(parameter: nn.Parameter) -> torch.Tensor:
    """On the CPU, nought where there is none. A sharded one is gathered, so all ranks must ask at the same time."""
    import torch
    from torch.distributed.tensor import DTensor

    # DDP trains local shards and keeps their layout beside them.
    layout = getattr(parameter, "_st_info", None)
    gradient = parameter.grad
    if gradient is None:
        return torch.zeros(parameter.shape if layout is None else layout.shape)
    if layout is not None:
        gradient = DTensor.from_local(gradient, layout.mesh, layout.placements, run_check=False)
    if isinstance(gradient, DTensor):
        gradient = gradient.full_tensor()
    return gradient.detach().cpu()


def read_gradients(folder: str | Path) -> dict[str, list[torch.Tensor]]:
    """Name in the uncut model -> the whole gradient as each rank that trains the parameter has it."""
    import torch

    found: dict[str, list[torch.Tensor]] = {}
    for path in sorted(Path(folder).glob("rank*.pt")):
        for name, gradient in torch.load(path).items():
            found.setdefault(name, []).append(gradient)
    return found


def largest_deviation(found: dict[str, list[torch.Tensor]], reference: dict[str, list[torch.Tensor]]) -> float:
    """Largest relative error of a parameter's gradient on any rank: norm of the difference / norm of the reference.

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


def uncut_name(name: str) -> str:
    """A parameter's name without what DDP, activation checkpointing and torch.compile put between."""
    return ".".join(part for part in name.split(".") if part not in _WRAPPER_PARTS)
