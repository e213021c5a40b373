"""Result of a bench, the typed form of `stepscope.bench/1`: how it scales, and with which other it can be compared.

Times are milliseconds, None means unknown or not applicable. A scale is one data-parallel size.
Work is known from a request already: what does not fit is refused before anything is measured.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median, variance
from typing import Any

from stepscope.analyzer.compare.comparison import RUN_SPREAD
from stepscope.analyzer.compare.statistics import LEVEL, summarise_steps, two_sided_t
from stepscope.core.documents.comparison import Difference, Gate
from stepscope.core.errors import DataError

BENCH_SCHEMA = "stepscope.bench/1"
STRONG, WEAK = "strong", "weak"


@dataclass(frozen=True, slots=True)
class BenchRun:
    """One benchmark run of one scale, in processes of its own.

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
    """All benchmark runs of one data-parallel size, and their figures.

    Attributes:
        batch_size: items of a step, over all ranks.
        num_items: tokens, or images, of a step.
        step_p50_ms, step_p95_ms: over the steps of all runs.
        items_per_second: of the whole job at the median step.
        mfu: model FLOPs of a step / (ranks x the GPU's dense peak x the median step).
        efficiency: items per second and rank, against those of the smallest scale.
        efficiency_interval: 95% confidence interval of it.
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
    """Fit of Amdahl's or Gustafson's law to a benchmark's scales.

    Attributes:
        law: "amdahl" for a batch of fixed size (step = serial + parallel / n), "gustafson" for one that grows with n
            (rate of a rank = 1 - s + s / n).
        serial_fraction: s; below 0 when larger scales were faster than in proportion.
        interval: 95% confidence interval of it.
        misfit: largest distance of a measured scale from the law, as a share; None with two scales, which any line
            meets.
    """

    law: str
    serial_fraction: float
    interval: tuple[float, float]
    misfit: float | None


@dataclass(frozen=True, slots=True)
class BaselineRow:
    """Comparison of one benchmark scale with the same scale of an earlier benchmark."""

    dp: int
    step: Difference
    gates: list[Gate]


@dataclass(frozen=True, slots=True)
class BenchWarning:
    """Warning of a benchmark: what to know before its figures are trusted or compared."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Bench:
    """Throughput benchmark of a workload.

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
class BenchedWork:
    """What a benchmark trained, by name, as JSON has it.

    Attributes:
        everywhere: what must be alike at all scales.
        at: what must be alike at one, by its data-parallel size.
    """

    everywhere: Mapping[str, Any]
    at: Mapping[int, Mapping[str, Any]]


def make_benched_work(
    *,
    workload: str,
    scaling: str,
    simulate_ms: float,
    model: Mapping[str, Any],
    recipe: Mapping[str, Any],
    at: Mapping[int, Mapping[str, Any]],
) -> BenchedWork:
    """What a benchmark trains, from these parts; tuples become lists, as in a JSON document."""
    parts = {"workload": workload, "scaling": scaling, "simulate_ms": simulate_ms} | _as_json(model) | _as_json(recipe)
    del parts[_OF_A_SCALE]
    return BenchedWork(parts, {dp: _as_json(sizes) for dp, sizes in at.items()})


def benched_work_of(bench: Bench) -> BenchedWork:
    """What a finished benchmark trained."""
    return make_benched_work(
        workload=bench.workload,
        scaling=bench.scaling,
        simulate_ms=bench.simulate_ms,
        model=bench.model,
        recipe=bench.recipe,
        at={scale.dp: _at(scale, bench) for scale in bench.scales},
    )


def check_same_work(ours: BenchedWork, theirs: BenchedWork, name: str) -> None:
    """Check that two benchmarks trained the same work and share a scale.

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


MIN_RUNS = 3
"""With fewer runs of a scale their spread is not measured but assumed, as `stepscope compare` has it."""


_RESOLUTION = 1e-6
"""Of a clock that counts nanoseconds, in a step of a millisecond."""


@dataclass(frozen=True, slots=True)
class ScalePoint:
    """Median step of a benchmark scale in milliseconds, with its variance and degrees of freedom."""

    scale: float
    step_ms: float
    variance: float
    freedom: float

    @property
    def relative_error(self) -> float:
        """Standard error as a share of the step; what repeats to the last digit is as sure as a clock tells."""
        return max(math.sqrt(self.variance) / self.step_ms, _RESOLUTION)


def scale_point(scale: float, runs: Sequence[Sequence[float]]) -> ScalePoint:
    """Median step of a benchmark scale from its runs' steps."""
    figures = [summarise_steps(run) for run in runs]
    step = median(value for run in runs for value in run)
    if len(figures) >= MIN_RUNS:
        between = variance([figure.value for figure in figures])
        return ScalePoint(scale, step, between / len(figures), len(figures) - 1.0)
    within = fmean(figure.variance for figure in figures)
    return ScalePoint(scale, step, (within + (RUN_SPREAD * step) ** 2) / len(figures), math.inf)


def scaling_efficiency(
    point: ScalePoint, smallest: ScalePoint, *, rate: float, smallest_rate: float
) -> tuple[float, float, float]:
    """Scaling efficiency: items per second and rank against the smallest scale's, with its 95 % interval."""
    share = rate / smallest_rate
    if point is smallest:
        return share, share, share
    error = share * math.hypot(point.relative_error, smallest.relative_error)
    half = two_sided_t(LEVEL, min(point.freedom, smallest.freedom)) * error
    return share, share - half, share + half


def fit_scaling(points: Sequence[ScalePoint], scaling: str) -> ScalingFit | None:
    """Fit Amdahl's or Gustafson's law to a benchmark's scales; None with fewer than two."""
    if len(points) < 2:
        return None
    is_strong = scaling == STRONG
    figures = [point.step_ms if is_strong else 1.0 / point.step_ms for point in points]
    weights = [(1.0 / (figure * point.relative_error)) ** 2 for figure, point in zip(figures, points, strict=True)]
    a, b, covariance = _line([1.0 / point.scale for point in points], figures, weights)
    fitted = [a + b / point.scale for point in points]
    misfits = [abs(found - figure) / figure for found, figure in zip(fitted, figures, strict=True)]
    spare = len(points) - 2
    excess = sum(w * (f - y) ** 2 for w, f, y in zip(weights, fitted, figures, strict=True)) / spare if spare else 1.0
    serial = a / (a + b) if is_strong else b / (a + b)
    var_a, var_b, both = covariance
    # The share's derivatives by a and b are b / (a+b)^2 and -a / (a+b)^2, with the opposite signs under Gustafson.
    error = math.sqrt(max(0.0, b * b * var_a + a * a * var_b - 2 * a * b * both) * max(1.0, excess)) / (a + b) ** 2
    half = two_sided_t(LEVEL, min(point.freedom for point in points)) * error
    law = "amdahl" if is_strong else "gustafson"
    return ScalingFit(law, serial, (serial - half, serial + half), max(misfits) if spare else None)


def _line(
    places: Sequence[float], figures: Sequence[float], weights: Sequence[float]
) -> tuple[float, float, tuple[float, float, float]]:
    """Weighted least squares a + b x: a, b, and the variances of both with their covariance."""
    total = sum(weights)
    first = sum(w * x for w, x in zip(weights, places, strict=True))
    second = sum(w * x * x for w, x in zip(weights, places, strict=True))
    mean = sum(w * y for w, y in zip(weights, figures, strict=True))
    cross = sum(w * x * y for w, x, y in zip(weights, places, figures, strict=True))
    determinant = total * second - first * first
    a = (second * mean - first * cross) / determinant
    b = (total * cross - first * mean) / determinant
    return a, b, (second / determinant, total / determinant, -first / determinant)


def percentile_95(values: Sequence[float]) -> float:
    """The 95th percentile of a benchmark's steps, interpolated between neighbours."""
    ordered = sorted(values)
    place = 0.95 * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def median_over_ranks(ranks: Sequence[Sequence[float]]) -> list[float]:
    """Median over ranks of each step of a benchmark run."""
    return [median(step) for step in zip(*ranks, strict=True)]
