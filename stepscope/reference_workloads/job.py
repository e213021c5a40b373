"""Training job of a workload, its progress and its outcome. Needs no torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from stepscope.reference_workloads.plan import ParallelPlan, Preset
from stepscope.reference_workloads.recipe import Recipe
from stepscope.training import Schedule

if TYPE_CHECKING:
    from stepscope.reference_workloads.injections.faults import Injection


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
