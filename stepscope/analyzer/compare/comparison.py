"""Comparison of two sides of runs: differences of the step and its parts, gates, and a one-line summary."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

import numpy as np

from stepscope.analyzer.compare import parts, recorded, run_record, statistics
from stepscope.analyzer.compare.gates import GateCondition, judge_gate
from stepscope.analyzer.compare.setting_differences import compare_settings
from stepscope.core.documents import comparison
from stepscope.core.text.comparison import recorded_title
from stepscope.core.text.numbers import counted, form
from stepscope.core.text.wording import cause_phrase
from stepscope.core.vocabulary import HEALTHY_CAUSES, Cause, Notice

FEW_STEPS = 10
"""Fewest whole steps per run from which the noise within a run is well known."""

MORE_MICRO_BATCHES = 1.5
"""Ratio of micro-batches from which a smaller pipeline bubble is expected."""

SHARE_OF_GAIN = 1 / 3
"""Share of the promised gain below which the bubble did not limit the job."""

MAX_CAUSES_SHOWN, MAX_SETTINGS_SHOWN = 3, 2

LIKELY_SHARE = 1 / 3
"""Share of a significant step change from which a cause is named although its own change is not significant."""

_CHANGED = (comparison.Change.SLOWER, comparison.Change.FASTER)
_NOT_NAMED = frozenset({recorded.REST, recorded.RUN_DELAY})
"""Recorded parts that no summary names as what changed: all that is left, and the machine's own share."""


def _summarise(
    step: comparison.Difference,
    causes: Sequence[comparison.CauseDifference],
    of_records: Sequence[comparison.RecordedDifference],
    settings: Sequence[comparison.SettingDifference],
    *,
    on_cpu: bool,
) -> str:
    """One line: how much slower or faster the step is, which causes and recorded parts changed, which settings."""
    figures = f"{step.a:,.1f} -> {step.b:,.1f} ms a step"
    low, high = step.interval or (0.0, 0.0)
    size = f"{step.change or 0.0:+,.1f} ms, {step.relative or 0.0:+.1%}, 95% interval {low:+,.1f} to {high:+,.1f} ms"
    moved = [row for row in causes if row.ms.state in _CHANGED]
    if step.state not in _CHANGED:
        in_records = [row for row in of_records if row.name not in _NOT_NAMED and row.ms.state in _CHANGED]
        others = (
            f"; but {_list_recorded(in_records) or _list_causes(moved, on_cpu=on_cpu)}" if in_records or moved else ""
        )
        if abs(step.relative or 0.0) >= statistics.MIN_EFFECT:
            return f"not certain: {figures} ({size}): this may be noise{others}"
        return f"no change seen: {figures}{others}"
    differ = [f"{row.name} {_value(row.a)} -> {_value(row.b)}" for row in settings[:MAX_SETTINGS_SHOWN]]
    ends = f"; differs: {', '.join(differ)}" if differ else ""
    # what all steps tell comes before the profiled ones, if it is a fair part of the change
    same_way = [row for row in of_records if row.ms.state is step.state]
    named = [row for row in same_way if row.name not in _NOT_NAMED]
    if named and _is_fair_part(sum(row.ms.change or 0.0 for row in named), step):
        return f"b is {step.state}: {figures} ({size}): {_list_recorded(named)}{ends}"
    sure = [row for row in moved if row.ms.state is step.state]
    return f"b is {step.state}: {figures} ({size}){_because(sure, causes, step, on_cpu=on_cpu)}{ends}"


def _value(value: str | None) -> str:
    return "unset" if value is None else value or "none"


def _is_fair_part(change_ms: float, step: comparison.Difference) -> bool:
    return abs(change_ms) >= LIKELY_SHARE * abs(step.change or 0.0)


def _list_recorded(rows: Sequence[comparison.RecordedDifference]) -> str:
    """Recorded parts in a sentence, with their changes."""
    return ", ".join(f"{recorded_title(row.name)} {row.ms.change:+,.1f} ms" for row in rows[:MAX_CAUSES_SHOWN])


def _because(
    sure: Sequence[comparison.CauseDifference],
    causes: Sequence[comparison.CauseDifference],
    step: comparison.Difference,
    *,
    on_cpu: bool,
) -> str:
    """The causes with a significant change and the sum of the others (so that the line adds up); else the likeliest.

    Causes are of profiled steps. Where these changed by something else than the step, which is of all steps, the line
    says by how much.
    """
    way = 1.0 if step.state is comparison.Change.SLOWER else -1.0
    likely = [row for row in causes if way * (row.ms.change or 0.0) > 0 and _is_fair_part(row.ms.change or 0.0, step)]
    if not sure and not likely:
        return "; no single cause accounts for it"
    profiled_ms = sum(row.ms.change or 0.0 for row in causes)
    is_same = not _is_fair_part(profiled_ms - (step.change or 0.0), step)
    where = "" if is_same else f"; in profiled steps, which changed by {profiled_ms:+,.1f} ms"
    if not sure:
        begin = f"{where}: " if where else "; "
        return f"{begin}likely {_list_causes(likely, on_cpu=on_cpu)}, but no single cause is certain"
    named = _losses_first(sure)[:MAX_CAUSES_SHOWN]
    rest = profiled_ms - sum(row.ms.change or 0.0 for row in named)
    is_worth = abs(rest) >= statistics.MIN_EFFECT * (step.a or 0.0)
    others = f", other causes together {rest:+,.1f} ms" if is_worth else ""
    return f"{where}: {_list_causes(sure, on_cpu=on_cpu)}{others}"


def _evidence_notice(
    sides: parts.Sides, step: comparison.Difference, *, spread: float, source: str, num_steps: Sequence[int]
) -> Notice:
    """How much was measured, and what would make the verdict more certain."""
    few = min(num_steps) < FEW_STEPS
    steps = f"{min(num_steps)} to {max(num_steps)}" if min(num_steps) != max(num_steps) else f"{num_steps[0]}"
    runs = "one run" if len(sides[0]) == len(sides[1]) == 1 else f"{len(sides[0])} and {len(sides[1])} runs"
    steps += f" {form(max(num_steps), f'{_SOURCE_WORDS.get(source, source)} step')}"
    basis = f"{runs}{' a side' if runs == 'one run' else ''} of {steps} each"
    visible = f"changes under {(step.smallest_visible or 0.0) / (step.a or 1.0):.1%} cannot be seen"
    if len(sides[0]) + len(sides[1]) >= statistics.MIN_RUNS_TO_MEASURE:
        return Notice("evidence", f"evidence: {basis}; runs of a side differ by {spread:.1%} (measured); {visible}")
    advice = "give 3 or more runs a side to measure it"
    if few and source == "captured":
        advice += ", or runs whose telemetry (steps/rank0.jsonl) has hundreds of unprofiled steps"
    assumed = f"that runs of the same code differ by {spread:.1%} is assumed, not measured; {visible}; {advice}"
    if few:
        return Notice("little_known", f"very little is known: {basis}; {assumed}")
    return Notice("evidence", f"evidence: {basis}; {assumed}")


def _shared_machine_notice(sides: parts.Sides) -> list[Notice]:
    """Notice of a machine that others use, whose share of the steps is not counted."""
    if not recorded.is_machine_shared(sides):
        return []
    delays = [np.mean([np.mean(run.parts_ms.get(recorded.RUN_DELAY, [0.0])) for run in side]) for side in sides]
    text = (
        f"step times are without the time for which threads waited for a CPU ({delays[0]:,.1f} and {delays[1]:,.1f} ms "
        "a step): other processes, or threads of the job itself, took it"
    )
    return [Notice("shared_machine", text)]


def _stall_notice(step: comparison.Difference, mean: comparison.Difference) -> list[Notice]:
    """Notice of rare slow steps, which change the mean but not the median."""
    if mean.state not in _CHANGED or step.state in _CHANGED:
        return []
    text = (
        f"the median step did not change, the mean did ({mean.a:,.1f} -> {mean.b:,.1f} ms): "
        "a few steps are much slower (checkpoint, evaluation, data, GC); gate on step_time_mean to catch it"
    )
    return [Notice("rare_stalls", text)]


def _micro_batch_notice(sides: parts.Sides, step: comparison.Difference, *, on_cpu: bool) -> list[Notice]:
    """Notice of more micro-batches that did not raise throughput as the smaller bubble promises: CPU-bound."""
    few, many, gain = _micro_batches(sides[0]), _micro_batches(sides[1]), _throughput_gain(sides, step)
    if few is None or many is None or gain is None:
        return []
    if many < few:
        few, many, gain = many, few, 1 / gain
    stages = max(run.analysis.pipeline.stages for side in sides for run in side if run.analysis.pipeline)
    if many < MORE_MICRO_BATCHES * few or stages < 2:
        return []
    promised = _busy_share(stages, many) / _busy_share(stages, few)
    if gain - 1 >= SHARE_OF_GAIN * (promised - 1):
        return []
    text = (
        f"{few:.0f} and {counted(many, 'micro-batch')}: the schedule promises "
        f"{promised - 1:+.0%} throughput for more of "
        f"them, measured {gain - 1:+.0%}: the job is bound by the host, not by the pipeline's bubble; fewer, larger "
        f"{'operators (torch.compile)' if on_cpu else 'launches (torch.compile, CUDA graphs)'} help, more "
        "micro-batches do not"
    )
    return [Notice("host_bound_not_bubble", text)]


def _busy_share(stages: int, micro_batches: float) -> float:
    """Share of a step in which a stage works by the textbook formula M / (M + P - 1)."""
    return micro_batches / (micro_batches + stages - 1)


def _micro_batches(side: Sequence[run_record.RunRecord]) -> float | None:
    known = {run.analysis.pipeline.micro_batches for run in side if run.analysis.pipeline}
    return float(known.pop()) if len(known) == 1 else None


def _throughput_gain(sides: parts.Sides, step: comparison.Difference) -> float | None:
    """Throughput of b over a: from tokens, else from MFU, else from step times of equal work."""
    tokens = [_mean([run.tokens for run in side]) for side in sides]
    if step.a and step.b and tokens[0] and tokens[1]:
        return (tokens[1] / step.b) / (tokens[0] / step.a)
    used = [_mean([run.analysis.job.mfu for run in side]) for side in sides]
    if used[0] and used[1]:
        return used[1] / used[0]
    return step.a / step.b if step.a and step.b else None


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known and len(known) == len(values) else None


def _list_causes(rows: Sequence[comparison.CauseDifference], *, on_cpu: bool) -> str:
    texts = []
    for row in _losses_first(rows)[:MAX_CAUSES_SHOWN]:
        ranks = row.ranks_b if (row.ms.change or 0.0) > 0 else row.ranks_a
        where = f" ({form(len(ranks), 'rank')} {', '.join(map(str, sorted(ranks)[:8]))})" if ranks else ""
        texts.append(f"{cause_phrase(row.cause, on_cpu=on_cpu)} {row.ms.change:+,.1f} ms{where}")
    return ", ".join(texts)


def _losses_first(rows: Sequence[comparison.CauseDifference]) -> list[comparison.CauseDifference]:
    """Losses first, because a straggler or a slower clock mostly shows as more compute time too."""
    return sorted(rows, key=lambda row: (row.cause in HEALTHY_CAUSES | {Cause.UNEXPLAINED}, -abs(row.ms.change or 0)))


RUN_SPREAD = 0.015
"""Assumed relative standard deviation of the step time between runs of the same code on the same kind of node.

Six runs of a host-bound GPT on one node of 2 x H100 differed by 1.9 % beyond their own noise
(docs/explanation/accuracy.md); kernels that keep the GPU busy differ less, other nodes more."""

CPU_RUN_SPREAD = 0.06
"""The same of jobs without a GPU: neighbouring runs of the same code on two cores of a virtual machine differed by
5.8 % beyond the time that they had no CPU (benchmarks/accuracy/compare_pairs.py)."""

UNPROFILED, CAPTURED = "unprofiled", "captured"
_SOURCE_WORDS = {CAPTURED: "profiled"}


def compare_runs(
    a: Sequence[run_record.RunRecord],
    b: Sequence[run_record.RunRecord],
    *,
    names: tuple[str, str],
    conditions: Sequence[GateCondition] = (),
    assumed_spread: float | None = None,
    notices: Sequence[Notice] = (),
) -> comparison.Comparison:
    """Compare two sides of runs: step time, its parts, and gates.

    Args:
        a, b: at least one run each.
        conditions: gates of `--fail-on`.
        assumed_spread: relative standard deviation of the step between runs, used with fewer than 4 runs; None: that
            of jobs with a GPU, or without.
        notices: warnings from reading the runs.
    """
    sides: parts.Sides = (a, b)
    kinds = {run.analysis.job.device_kind for run in (*a, *b)}
    if assumed_spread is None:
        assumed_spread = CPU_RUN_SPREAD if kinds == {"cpu"} else RUN_SPREAD
    source = UNPROFILED if all(run.unprofiled_ms for run in (*a, *b)) else CAPTURED
    steps = [
        [run.unprofiled_ms if source == UNPROFILED else run_record.captured_steps(run.analysis) for run in side]
        for side in sides
    ]
    median, mean = _step_effects(sides, steps, source, assumed_spread)
    step_time, step_time_mean = (
        statistics.judge_difference(found, smallest=statistics.MIN_EFFECT * found.a) for found in (median, mean)
    )
    changed = (
        step_time.state is not comparison.Change.NOT_SEEN or step_time_mean.state is not comparison.Change.NOT_SEEN
    )
    basis = parts.ComparisonBasis(float(np.mean([run.step_ms for run in a])), changed, assumed_spread)
    is_traced = all(run.analysis.ranks for run in (*a, *b))
    causes = parts.compare_causes(sides, basis) if is_traced else []
    of_records = recorded.compare_recorded(sides, assumed_spread=assumed_spread)
    surest = _surest(step_time, step_time_mean, of_records)
    spread = median.run_spread / median.a if median.is_measured else assumed_spread
    counts = [len(run) for side in steps for run in side]
    largest_a, largest_b = (_largest_memory(side) for side in sides)
    settings = compare_settings(sides, of_records, causes, is_faster=surest.state is comparison.Change.FASTER)
    known = _evidence_notice(sides, step_time, spread=spread, source=source, num_steps=counts)
    on_cpu = kinds == {"cpu"}
    return comparison.Comparison(
        a=_side(names[0], a, source, steps[0]),
        b=_side(names[1], b, source, steps[1]),
        summary=_summarise(surest, causes, of_records, settings, on_cpu=on_cpu),
        step_time=step_time,
        step_time_mean=step_time_mean,
        run_spread=spread,
        run_spread_source="measured" if median.is_measured else "assumed",
        mfu=parts.compare_rates(sides, run_record.mfu_figure, assumed_spread),
        busbw_gbs=parts.compare_rates(sides, run_record.bandwidth_figure, parts.COLLECTIVE_SPREAD),
        headings=parts.compare_categories(sides, basis) if is_traced else [],
        causes=causes,
        kernels=parts.compare_kernels(sides, basis),
        calls=parts.compare_calls(sides, basis),
        collectives=parts.compare_collectives(sides, basis),
        memory=[
            comparison.MemoryDifference(name, largest_a[name], largest_b[name])
            for name in sorted({*largest_a} & {*largest_b})
        ],
        gates=[judge_gate(condition, sides, basis, median, mean) for condition in conditions],
        findings=[
            known,
            *_shared_machine_notice(sides),
            *_stall_notice(step_time, step_time_mean),
            *_micro_batch_notice(sides, step_time, on_cpu=on_cpu),
        ],
        warnings=[*notices, *run_record.comparability_notices(a, b)],
        device_kind=kinds.pop() if len(kinds) == 1 else None,
        recorded=of_records,
        settings=settings,
    )


def _step_effects(
    sides: parts.Sides, steps: list[list[Sequence[float]]], source: str, assumed_spread: float
) -> tuple[statistics.Effect, statistics.Effect]:
    """Differences of the median and of the mean step.

    What threads waited for a CPU is added to the uncertainty: other processes took it, and took caches and clocks too.
    """
    if source == UNPROFILED and recorded.is_machine_shared(sides):
        steps = [[recorded.undelayed_steps(run).tolist() for run in side] for side in sides]
    usual_ms = float(np.mean([np.median(run) for run in steps[0]]))
    median = statistics.estimate_steps(steps[0], steps[1], np.median, assumed_spread=assumed_spread * usual_ms)
    if source != UNPROFILED:
        mean_ms = float(np.mean([np.mean(run) for run in steps[0]]))
        return median, statistics.estimate_steps(steps[0], steps[1], np.mean, assumed_spread=assumed_spread * mean_ms)
    mean = recorded.mean_step(sides, assumed_spread=assumed_spread * usual_ms)
    return (
        median.less_certain(recorded.error_of_machine_ms(sides, np.median)),
        mean.less_certain(recorded.error_of_machine_ms(sides, np.mean)),
    )


def _surest(
    median: comparison.Difference, mean: comparison.Difference, of_records: Sequence[comparison.RecordedDifference]
) -> comparison.Difference:
    """The median step, or the mean one where it alone changed, or its recorded parts did."""
    moved = any(row.name not in _NOT_NAMED and row.ms.state is mean.state for row in of_records)
    return mean if mean.state in _CHANGED and (median.state not in _CHANGED or moved) else median


def _side(
    name: str, runs: Sequence[run_record.RunRecord], source: str, steps: Sequence[Sequence[float]]
) -> comparison.ComparedSide:
    every = np.concatenate([np.asarray(run, dtype=float) for run in steps])
    return comparison.ComparedSide(
        name=name,
        runs=[run.name for run in runs],
        step_source=source,
        num_steps=[len(run) for run in steps],
        median_ms=float(np.median(every)),
        mean_ms=float(np.mean(every)),
        p95_ms=float(np.quantile(every, 0.95)),
    )


def _largest_memory(side: Sequence[run_record.RunRecord]) -> dict[str, float]:
    """Bytes by name of the figure: the maximum over all runs of a side."""
    names = {name for run in side for name in run.memory_bytes}
    return {name: max(run.memory_bytes.get(name, 0.0) for run in side) for name in names}
