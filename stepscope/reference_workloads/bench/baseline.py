"""Comparison of a bench with an earlier one, scale by scale, by the statistics of `stepscope compare`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from stepscope.analyzer.compare import statistics
from stepscope.analyzer.compare.comparison import RUN_SPREAD
from stepscope.analyzer.compare.gates import GateCondition, judge_gate, parse_gate_conditions
from stepscope.analyzer.compare.parts import ComparisonBasis
from stepscope.core.documents.comparison import Change, GateOutcome
from stepscope.core.errors import DataError, UsageError
from stepscope.reference_workloads.bench import result as bench_result
from stepscope.store.files import read_whole


@dataclass(frozen=True, slots=True)
class _NamedGpu:
    name: str


@dataclass(frozen=True, slots=True)
class _Place:
    gpus: list[_NamedGpu] = field(default_factory=list)
    versions: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Model:
    name: str
    batch_size: int


@dataclass(frozen=True, slots=True)
class _InnerParts:
    """What is read of a document's open parts: those are as wide as what they tell of."""

    model: _Model
    environment: _Place


_GATED = ("step_time", "step_time_mean")


def read_bench(path: Path) -> bench_result.Bench:
    """Read the JSON document of an earlier throughput benchmark (`workload bench -o`).

    Raises:
        DataError: it does not exist or is not such a document.
    """
    import msgspec

    content = read_whole(path)
    try:
        bench = msgspec.json.decode(content, type=bench_result.Bench)
        msgspec.json.decode(content, type=_InnerParts)
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError) as error:
        raise DataError(f"is not a {bench_result.BENCH_SCHEMA} document ({error})", where=str(path)) from error
    if (
        bench.schema != bench_result.BENCH_SCHEMA
        or not bench.scales
        or not all(_is_sound(scale) for scale in bench.scales)
    ):
        raise DataError(f"is not a {bench_result.BENCH_SCHEMA} document with steps in it", where=str(path))
    return bench


def _is_sound(scale: bench_result.BenchScale) -> bool:
    steps = [step for run in scale.runs for step in run.step_ms]
    return all(run.step_ms for run in scale.runs) and bool(steps) and all(0 < step < float("inf") for step in steps)


def parse_bench_gates(texts: Sequence[str]) -> list[GateCondition]:
    """Bench of workloads: parse the conditions of `--gate` on its throughput.

    Raises:
        UsageError: it is malformed, or asks for what a bench does not measure.
    """
    conditions = [condition for text in texts for condition in parse_gate_conditions(text, option="--gate")]
    for condition in conditions:
        if condition.metric not in _GATED:
            raise UsageError(
                f"a bench measures {' and '.join(_GATED)}, not {condition.metric}",
                where="--gate",
                what_next="profile both and use `stepscope compare`",
            )
    return conditions


def compare_with_baseline(
    bench: bench_result.Bench, baseline: bench_result.Bench, conditions: Sequence[GateCondition], *, name: str
) -> bench_result.Bench:
    """Compare each scale of a benchmark with the same scale of an earlier benchmark.

    Raises:
        DataError: the baseline trained something else, or shares no scale.
    """
    bench_result.check_same_work(bench_result.benched_work_of(bench), bench_result.benched_work_of(baseline), name)
    earlier = {scale.dp: scale for scale in baseline.scales}
    rows = [_row(scale, earlier[scale.dp], conditions) for scale in bench.scales if scale.dp in earlier]
    warnings = [*bench.warnings, *_other_places(bench.environment, baseline.environment)]
    missing = [str(scale.dp) for scale in bench.scales if scale.dp not in earlier]
    if missing:
        warnings.append(bench_result.BenchWarning("not_in_baseline", f"{name} has no dp {', '.join(missing)}"))
    return replace(bench, baseline=rows, warnings=warnings)


def with_no_baseline(bench: bench_result.Bench, why: DataError) -> bench_result.Bench:
    """The benchmark with a warning why it was not compared with its baseline."""
    return replace(bench, warnings=[*bench.warnings, bench_result.BenchWarning("not_compared", str(why))])


def has_failed_gate(bench: bench_result.Bench) -> bool:
    """Whether a gate of the benchmark failed."""
    return any(gate.outcome is GateOutcome.FAILED for row in bench.baseline for gate in row.gates)


def _row(
    scale: bench_result.BenchScale, earlier: bench_result.BenchScale, conditions: Sequence[GateCondition]
) -> bench_result.BaselineRow:
    found, mean = _estimate(earlier, scale, np.median), _estimate(earlier, scale, np.mean)
    difference = statistics.judge_difference(found, smallest=statistics.MIN_EFFECT * found.a)
    ground = ComparisonBasis(found.a, difference.state is not Change.NOT_SEEN, RUN_SPREAD)
    gates = [judge_gate(condition, ((), ()), ground, found, mean) for condition in conditions]
    return bench_result.BaselineRow(scale.dp, difference, gates)


def _estimate(
    earlier: bench_result.BenchScale, scale: bench_result.BenchScale, average: statistics.Average
) -> statistics.Effect:
    a, b = ([statistics.summarise_steps(run.step_ms, average) for run in side.runs] for side in (earlier, scale))
    return statistics.estimate_difference(a, b, assumed_spread=RUN_SPREAD * float(np.mean([run.value for run in a])))


def _other_places(ours: dict[str, Any], theirs: dict[str, Any]) -> list[bench_result.BenchWarning]:
    """What besides the code may have made the difference."""
    pairs = {name: (theirs.get(name), ours.get(name)) for name in ("cpu", "num_usable_cpus", "variables")}
    pairs["gpus"] = (theirs.get("gpus"), ours.get("gpus"))
    versions = [place.get("versions") or {} for place in (theirs, ours)]
    for name in sorted(versions[0].keys() | versions[1].keys()):
        if name != "stepscope":
            pairs[name] = (versions[0].get(name), versions[1].get(name))
    return [
        bench_result.BenchWarning("other_place", f"{name}: {before} in the baseline, {now} here")
        for name, (before, now) in pairs.items()
        if before != now
    ]
