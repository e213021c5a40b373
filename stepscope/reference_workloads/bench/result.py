"""Result of a bench, the typed form of `stepscope.bench/1`, and the work by which two benches can be compared.

Times are milliseconds, None means unknown or not applicable. A scale is one data-parallel size.
Work is known from a request already: what does not fit is refused before anything is measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from stepscope.core.documents.comparison import Difference, Gate
from stepscope.core.errors import DataError

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


_OF_A_SCALE = "batch_size"
"""A preset's own is that of the smallest scale alone."""


@dataclass(frozen=True, slots=True)
class Work:
    """What was trained, by name, as JSON has it.

    Attributes:
        everywhere: what must be alike at all scales.
        at: what must be alike at one, by its data-parallel size.
    """

    everywhere: Mapping[str, Any]
    at: Mapping[int, Mapping[str, Any]]


def as_work(
    *,
    workload: str,
    scaling: str,
    simulate_ms: float,
    model: Mapping[str, Any],
    recipe: Mapping[str, Any],
    at: Mapping[int, Mapping[str, Any]],
) -> Work:
    """The work of these parts, tuples as the lists that a document has."""
    parts = {"workload": workload, "scaling": scaling, "simulate_ms": simulate_ms} | _as_json(model) | _as_json(recipe)
    del parts[_OF_A_SCALE]
    return Work(parts, {dp: _as_json(sizes) for dp, sizes in at.items()})


def work_of(bench: Bench) -> Work:
    """What a bench measured."""
    return as_work(
        workload=bench.workload,
        scaling=bench.scaling,
        simulate_ms=bench.simulate_ms,
        model=bench.model,
        recipe=bench.recipe,
        at={scale.dp: _at(scale, bench) for scale in bench.scales},
    )


def check_same_work(ours: Work, theirs: Work, name: str) -> None:
    """Whether a scale of ours can be held against one of theirs.

    Args:
        name: of the file that theirs is from.

    Raises:
        DataError: it did other work, or shares no scale.
    """
    _refuse_other(ours.everywhere, theirs.everywhere, name)
    shared = ours.at.keys() & theirs.at.keys()
    if not shared:
        raise DataError("shares no scale with this bench", where=name, what_next="measure the same --scales")
    for dp in sorted(shared):
        shared_keys = ours.at[dp].keys() & theirs.at[dp].keys()
        here, there = ({key: side.at[dp][key] for key in shared_keys} for side in (ours, theirs))
        _refuse_other(here, there, name, at=f" at dp {dp}")


def _at(scale: BenchScale, bench: Bench) -> dict[str, Any]:
    """An older document tells the smallest scale's layout alone, with its own zero."""
    plan = scale.plan or {key: value for key, value in bench.plan.items() if key not in {"dp", "zero"}}
    return {"batch_size": scale.batch_size, "num_items": scale.num_items} | plan


def _refuse_other(ours: Mapping[str, Any], theirs: Mapping[str, Any], name: str, *, at: str = "") -> None:
    differ = sorted(key for key in ours.keys() | theirs.keys() if ours.get(key) != theirs.get(key))
    if differ:
        key = differ[0]
        raise DataError(
            f"measured other work{at}: {key} {theirs.get(key)!r} instead of {ours.get(key)!r}",
            where=name,
            what_next="measure the same model, layout and batch",
        )


def _as_json(parts: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _value_as_json(value) for key, value in parts.items()}


def _value_as_json(value: Any) -> Any:
    if isinstance(value, Mapping):
        return _as_json(value)
    return [_value_as_json(part) for part in value] if isinstance(value, (list, tuple)) else value
