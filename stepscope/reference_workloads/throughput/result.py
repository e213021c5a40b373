"""What does a bench tell? The typed form of `stepscope.bench/1`.

Times are milliseconds, None means unknown or not applicable. A scale is one data-parallel size.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from stepscope.core.comparison import Difference, Gate

BENCH_SCHEMA = "stepscope.bench/1"
STRONG, WEAK = "strong", "weak"


@dataclass(frozen=True, slots=True)
class BenchRun:
    """One run of one scale in processes of its own.

    Attributes:
        step_ms: of each step after the warm-up, in order: the median over ranks, from the wait for a batch to the
            optimizer's end.
        last_loss: of the last step, so that a bench which trained wrongly is seen.
        peak_allocated_bytes: most that tensors held on any GPU; None on CPU.
    """

    step_ms: list[float]
    first_loss: float
    last_loss: float
    peak_allocated_bytes: int | None


@dataclass(frozen=True, slots=True)
class BenchScale:
    """All runs of one data-parallel size.

    Attributes:
        batch_size: items of a step, over all ranks.
        num_items: tokens, or images, of a step.
        step_p50_ms, step_p95_ms: over the steps of all runs.
        items_per_second: of the whole job at the median step.
        mfu: model FLOPs of a step / (ranks x the GPU's dense peak x the median step).
        efficiency: items per second and rank, against those of the smallest scale.
        efficiency_interval: 95 % confidence interval of it.
        plan: the layout at this scale, fields of ParallelPlan; None in documents that did not tell it yet.
    """

    dp: int
    num_ranks: int
    batch_size: int
    num_items: int
    model_flops: float
    runs: list[BenchRun]
    step_p50_ms: float
    step_p95_ms: float
    items_per_second: float
    mfu: float | None
    efficiency: float
    efficiency_interval: tuple[float, float]
    plan: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class ScalingFit:
    """How much of the work does not scale.

    Attributes:
        law: "amdahl" for a batch of fixed size (step = serial + parallel / n), "gustafson" for one that grows with n
            (rate of a rank = 1 - s + s / n).
        serial_fraction: s; below 0 when larger scales were faster than in proportion.
        interval: 95 % confidence interval of it.
        misfit: largest distance of a measured scale from the law, as a share; None with two scales, which any line
            meets.
    """

    law: str
    serial_fraction: float
    interval: tuple[float, float]
    misfit: float | None


@dataclass(frozen=True, slots=True)
class BaselineRow:
    """One scale held against the same scale of an earlier bench."""

    dp: int
    step: Difference
    gates: list[Gate]


@dataclass(frozen=True, slots=True)
class BenchWarning:
    """What a reader should know before the figures are trusted or compared."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Bench:
    """One bench.

    Attributes:
        model, plan, recipe: what was trained: fields of Preset, ParallelPlan (of the smallest scale) and Recipe.
        item: "token" or "image".
        scaling: "strong" (one batch for all scales) or "weak" (a batch that grows with the ranks).
        environment: where: GPUs and their limits, versions, commit, processors, variables.
        fit: None with a single scale, and of simulated layers under strong scaling.
        simulate_ms: how long layers slept forwards, and half as long as backwards; 0 when they computed.
        baseline: empty without one.
    """

    schema: str
    workload: str
    model: dict[str, Any]
    plan: dict[str, Any]
    recipe: dict[str, Any]
    item: str
    scaling: str
    device: str
    seed: int
    num_warmup_steps: int
    environment: dict[str, Any]
    scales: list[BenchScale]
    fit: ScalingFit | None
    baseline: list[BaselineRow] = field(default_factory=list)
    warnings: list[BenchWarning] = field(default_factory=list)
    simulate_ms: float = 0.0
