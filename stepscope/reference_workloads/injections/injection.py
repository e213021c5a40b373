"""What is an injected fault, and where in a training run can it take hold?

A fault is a small frozen dataclass of its severity. It says what the analysis must find (`cause`, `shows`) and changes
the run through the hooks below; the same job without it is its control. The classes need no torch to be listed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from stepscope.core.causes import Cause, Reason

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh

    from stepscope.reference_workloads.job import TrainingJob


@dataclass(slots=True)
class Site:
    """The rank on which a fault acts, once its model is built.

    Attributes:
        rank: of the whole job.
        modules: the model parts this rank trains, sharded.
        kept: whatever faults must hold on to until the run ends.
    """

    job: TrainingJob
    rank: int
    mesh: DeviceMesh
    device: torch.device
    modules: list[nn.Module]
    optimizer: torch.optim.Optimizer
    kept: list[Any] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Injection:
    """One fault. Fields of subclasses are its severity, with units in their names; hooks do nothing by default.

    Attributes:
        name: of the case, as `--inject` takes it.
        cause: what the verdict must say; HANG and OUT_OF_MEMORY end the run.
        reasons: one of them must be named with the cause; empty when any will do.
        shows: what the trace (or what the run leaves) must show.
        fix: what `whatif` is to remove so that its prediction meets the control's step; None where the fix is no
            removal.
    """

    name: ClassVar[str]
    cause: ClassVar[Cause]
    reasons: ClassVar[tuple[Reason, ...]] = ()
    shows: ClassVar[str]
    fix: ClassVar[Cause | None] = None

    def refusal(self, job: TrainingJob) -> str | None:
        """Why the fault means nothing for this job (one GPU has no link to slow down); None when it does."""
        return None

    def change(self, job: TrainingJob) -> TrainingJob:
        """The job with the fault, for those that lie in its layout, model or recipe."""
        return job

    def environment(self) -> Mapping[str, str]:
        """Variables that each rank sets before its process group is made."""
        return {}

    def dataset(self, dataset: Any, *, dp_rank: int) -> Any:
        """The map-style dataset that this data-parallel rank reads."""
        return dataset

    def prepare(self, site: Site) -> None:
        """The model and optimizer are there; the first step has not begun."""

    def before_step(self, site: Site, step: int) -> None:
        """The batch is there; nothing of step `step` has been computed."""

    def after_backward(self, site: Site, step: int) -> None:
        """The gradients are there; the optimizer has not run."""

    def after_step(self, site: Site, step: int) -> None:
        """The optimizer has run; the step is still open."""
