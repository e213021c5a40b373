"""What must a rank know to take part, and what does it tell while it trains? Needs no torch."""

from __future__ import annotations

from dataclasses import dataclass

from stepscope.reference_workloads.plan import ParallelPlan, Preset
from stepscope.training import Schedule


@dataclass(frozen=True, slots=True)
class TrainingJob:
    """Everything a rank must know.

    Attributes:
        out, run: the run directory is out/run.
        device_type: "cpu" or "cuda".
        simulate_ms: time each block sleeps forwards, twice that backwards; 0 for none.
        profiled: whether to measure and capture.
        schedule: which steps to capture; None for profile()'s default.
    """

    plan: ParallelPlan
    preset: Preset
    out: str
    run: str
    num_steps: int
    seed: int
    device_type: str
    simulate_ms: float
    profiled: bool
    schedule: Schedule | None


@dataclass(frozen=True, slots=True)
class Progress:
    """One step, told by the rank that knows the loss (of its own data-parallel part)."""

    step: int
    loss: float
    step_ms: float
