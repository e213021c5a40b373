"""Training job of a workload, the base class of the faults injected into it, its progress and outcome. Needs no torch.

An injection (a fault) is a small frozen dataclass of its severity. It states what the analysis must find (`cause`,
`shows`) and changes the run through the hooks below; the same job without it is its control.

`control` may ask for a job in which the fault matters at all: an exposed all-reduce costs nothing beside hours of
compute. Control and faulty run then differ in the fault alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from stepscope.core.errors import UsageError
from stepscope.core.vocabulary import Cause, Reason
from stepscope.reference_workloads.plan import ParallelPlan, Preset
from stepscope.reference_workloads.recipe import Recipe
from stepscope.training import Schedule

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh


@dataclass(frozen=True, slots=True)
class TrainingJob:
    """Training job of a workload: everything that a rank needs to train.

    Attributes:
        out, run: the run directory is out/run.
        device_type: "cpu" or "cuda".
        simulate_ms: time each block sleeps forwards, twice that backwards; 0 for none.
        schedule: which steps to capture; None for profile()'s default.
        timeout_seconds: how long a rank waits for another in a step before it gives up; the slowest honest wait is for
            traces to be written.
        linger_seconds: how long the other ranks may go on once one has failed, so that all leave what they know.
    """

    plan: ParallelPlan
    preset: Preset
    out: str
    run: str
    num_steps: int
    seed: int = 0
    device_type: str = "cpu"
    simulate_ms: float = 0.0
    profiled: bool = True
    schedule: Schedule | None = None
    recipe: Recipe = field(default_factory=Recipe)
    injections: tuple[Injection, ...] = ()
    timeout_seconds: float = 120.0
    linger_seconds: float = 0.5


@dataclass(frozen=True, slots=True)
class TrainingProgress:
    """One training step of a workload, reported by a rank that computes the loss."""

    step: int
    loss: float
    step_ms: float


@dataclass(frozen=True, slots=True)
class TrainingOutcome:
    """Outcome of a workload's training, as one rank knows it.

    Attributes:
        losses: of each step, over the whole batch; the same on every rank.
        step_seconds: of each step, from the wait for its batch to its optimizer's end: by the GPU's clock, or on CPU
            the host's. Captured steps are in it, writing their traces is not.
        peak_allocated_bytes, peak_reserved_bytes: most GPU memory that tensors, and torch's allocator with them, held
            at once since the process began; None on CPU.
        gradient_norms: of each step's gradients over all ranks before clipping; empty where nobody needs them.
        num_skipped_steps: steps not taken because float16 gradients overflowed.
        loss_scale: at the end; 1 unless float16.
        measured_as: name of the run directory that the measurements went to; None when nothing was measured.
    """

    losses: list[float]
    step_seconds: list[float]
    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    gradient_norms: list[float] = field(default_factory=list)
    num_skipped_steps: int = 0
    loss_scale: float = 1.0
    measured_as: str | None = None


_Number = TypeVar("_Number", int, float)
_ALLOWED = "allowed"


@dataclass(frozen=True, slots=True)
class Need:
    """What a job must have for an injected fault to mean anything; `text` completes "it needs"."""

    text: str
    met: Callable[[TrainingJob], bool]


@dataclass(frozen=True, slots=True)
class SeverityBounds:
    """Bounds of an injected fault's severity, which is always finite; None is no bound."""

    least: float | None = None
    above: float | None = None
    most: float | None = None
    below: float | None = None

    def holds(self, value: float) -> bool:
        return (
            math.isfinite(value)
            and (self.least is None or value >= self.least)
            and (self.above is None or value > self.above)
            and (self.most is None or value <= self.most)
            and (self.below is None or value < self.below)
        )

    def __str__(self) -> str:
        bounds = (("at least", self.least), ("above", self.above), ("at most", self.most), ("below", self.below))
        return " and ".join(f"{words} {bound:g}" for words, bound in bounds if bound is not None)


def severity(default: _Number, **bounds: float) -> _Number:
    """A field of an injected fault: one severity, with its `SeverityBounds`."""
    allowed: _Number = field(default=default, metadata={_ALLOWED: SeverityBounds(**bounds)})
    return allowed


@dataclass(frozen=True, slots=True)
class FaultyRunEnding:
    """How a run with an injected fault failed: the error line, and the files it left in its run directory."""

    error: str
    left: frozenset[str]


@dataclass(slots=True)
class FaultSite:
    """The rank on which an injected fault acts, once its model is built.

    Attributes:
        rank: of the whole job.
        modules: the model parts this rank trains, sharded.
        kept: whatever faults must hold on to until the run ends, by the fault's name.
    """

    job: TrainingJob
    rank: int
    mesh: DeviceMesh
    device: torch.device
    modules: list[nn.Module]
    optimizer: torch.optim.Optimizer
    kept: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Injection:
    """One injected fault. Fields of subclasses are its severity; hooks do nothing by default.

    Attributes:
        name: of the case, as `--inject` takes it.
        cause: what the verdict must say; HANG and OUT_OF_MEMORY end the run.
        reasons: one of them must be named with the cause; empty when any will do.
        also_right: causes that are as right, where one fault has two faces.
        needs: what a job must have for the fault to mean anything.
        shows: what the trace (or what the run leaves) must show.
        fix: what `whatif` is to remove so that its prediction meets the control's step; None where the fix is no
            removal.

    Raises:
        UsageError: a severity is out of its bounds.
    """

    name: ClassVar[str]
    cause: ClassVar[Cause]
    reasons: ClassVar[tuple[Reason, ...]] = ()
    also_right: ClassVar[tuple[Cause, ...]] = ()
    needs: ClassVar[tuple[Need, ...]] = ()
    shows: ClassVar[str]
    fix: ClassVar[Cause | None] = None

    def __post_init__(self) -> None:
        for each in fields(self):
            allowed = each.metadata.get(_ALLOWED)
            value = getattr(self, each.name)
            if allowed is not None and not allowed.holds(value):
                raise UsageError(f"{each.name} of injection {self.name} is {allowed}, not {value}")

    @property
    def ends_run(self) -> bool:
        """Whether the run fails: RankFailedError is then what is expected."""
        return self.cause in {Cause.HANG, Cause.OUT_OF_MEMORY}

    def reasons_on(self, device_type: str) -> tuple[Reason, ...]:
        """Those of `reasons` that a trace of this kind of device ("cpu", "cuda") can tell."""
        return self.reasons

    def unexpected_ending(self, job: TrainingJob, ending: FaultyRunEnding) -> str | None:
        """Difference between how a failed run ended and what this fault causes; None where they agree."""
        return None

    def refusal(self, job: TrainingJob) -> str | None:
        """Why the fault means nothing for this job (one GPU has no link to slow down); None when it does."""
        missing = [need.text for need in self.needs if not need.met(job)]
        return f"it needs {missing[0]}" if missing else None

    def control(self, job: TrainingJob) -> TrainingJob:
        """The job that the fault goes into, and that alone is its control: by default the job as it is."""
        return job

    def change(self, job: TrainingJob) -> TrainingJob:
        """The control with the fault, for faults of the layout, model or recipe."""
        return job

    def environment(self, job: TrainingJob) -> Mapping[str, str]:
        """Variables that each rank sets before its process group is made."""
        return {}

    def dataset(self, dataset: Any, *, job: TrainingJob, dp_rank: int) -> Any:
        """The map-style dataset that this data-parallel rank reads."""
        return dataset

    def prepare(self, site: FaultSite) -> None:
        """The model and optimizer are there; the first step has not begun."""

    def before_step(self, site: FaultSite, step: int) -> None:
        """The batch is there; nothing of step `step` has been computed."""

    def after_backward(self, site: FaultSite, step: int) -> None:
        """The gradients are there; the optimizer has not run."""

    def after_step(self, site: FaultSite, step: int) -> None:
        """The optimizer has run; the step is still open."""
