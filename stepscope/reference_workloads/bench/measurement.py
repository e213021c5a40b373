"""Measurement of a bench: every scale several times, in processes of its own, unprofiled and warmed up.

Checkpoints go into a folder of the current directory, deleted when the run has ended. Not into the system's folder for
temporary files: that is memory on many machines, where writing costs nothing.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from stepscope.core.errors import StepscopeError, UsageError, from_os_error
from stepscope.core.hardware.gpu_catalogue import find_gpu
from stepscope.core.text.numbers import counted
from stepscope.reference_workloads.bench import result as bench_result
from stepscope.reference_workloads.environment import describe_environment
from stepscope.reference_workloads.estimate.flops import step_flops
from stepscope.reference_workloads.launch import NUM_SETTLING_STEPS, WorkloadResult, run_workload
from stepscope.reference_workloads.placement import is_launched_rank
from stepscope.reference_workloads.plan import ParallelPlan, Preset
from stepscope.reference_workloads.recipe import Recipe
from stepscope.training.run.identity import choose_run_name, identify_process

DEFAULT_NUM_STEPS = 30
DEFAULT_NUM_WARMUP_STEPS = 10
"""More than set-up needs: a GPU's clock settles over the first seconds of full load."""

_OF_DATA_PARALLELISM = ("bucket_mb", "overlaps_reduction", "prefetches")

STEADY = 1.1
"""Where the 95th percentile is this much above the median, steps are reported as unsteady."""


@dataclass(frozen=True, slots=True)
class BenchRequest:
    """Request of a throughput benchmark: workload, layout, scales and repetitions. Checks itself.

    Attributes:
        plan: the layout; its dp is replaced by each of `scales`, and its zero level by 0 where dp is 1.
        recipe: what of it needs data parallelism is left out where dp is 1 beside larger scales.
        preset: its batch is that of the smallest scale under weak scaling, and of all scales under strong scaling.
        num_steps, num_warmup_steps: measured steps of each run, and those before them that are left out.

    Raises:
        UsageError: a number is out of its range.
    """

    workload: str
    plan: ParallelPlan
    preset: Preset
    recipe: Recipe
    scales: tuple[int, ...]
    scaling: str = bench_result.WEAK
    num_repeats: int = 1
    num_steps: int = DEFAULT_NUM_STEPS
    num_warmup_steps: int = DEFAULT_NUM_WARMUP_STEPS
    seed: int = 0
    device: str = "auto"
    simulate_compute_ms: float = 0.0

    def __post_init__(self) -> None:
        if self.scaling not in {bench_result.STRONG, bench_result.WEAK}:
            raise UsageError(f"scaling is {bench_result.STRONG} or {bench_result.WEAK}, not {self.scaling!r}")
        if not self.scales or min(self.scales) < 1 or len(set(self.scales)) != len(self.scales):
            raise UsageError("scales are different data-parallel sizes from 1 on", where="--scales")
        for option, given, least in (
            ("--repeat", self.num_repeats, 1),
            ("--steps", self.num_steps, 2),
            ("--warmup", self.num_warmup_steps, NUM_SETTLING_STEPS),
        ):
            if given < least:
                raise UsageError(f"{given} is too small for a bench", where=option, what_next=f"give {least} or more")
        if "WORLD_SIZE" in os.environ and (self.num_repeats > 1 or len(self.scales) > 1):
            raise UsageError(
                "a launcher's ranks measure one scale once", what_next="start one launch for each scale and repetition"
            )

    def plan_of(self, dp: int) -> ParallelPlan:
        """The layout at this scale; what only data parallelism has is left out at dp 1."""
        plan = self.plan
        if dp == 1:
            plan = replace(plan, dp=1, zero=0, replicate=False, cpu_offload=False)
        return replace(plan, dp=dp)

    def recipe_of(self, dp: int) -> Recipe:
        """How steps are made at this scale: what only data parallelism has is left out at dp 1 beside larger ones."""
        if dp > 1 or max(self.scales) == 1:
            return self.recipe
        return replace(self.recipe, bucket_mb=None, overlaps_reduction=True, prefetches=True)

    def left_out(self, dp: int) -> list[str]:
        """What was asked for and is not measured at this scale, by name; sharding apart, which every reader expects."""
        asked, plan = self.recipe, self.plan_of(dp)
        recipe = self.recipe_of(dp)
        parts = [name for name in ("replicate", "cpu_offload") if getattr(self.plan, name) != getattr(plan, name)]
        return parts + [name for name in _OF_DATA_PARALLELISM if getattr(asked, name) != getattr(recipe, name)]

    def preset_of(self, dp: int) -> Preset:
        if self.scaling == bench_result.STRONG:
            return self.preset
        smallest = min(self.scales)
        if self.preset.batch_size * dp % smallest:
            raise UsageError(f"a batch of {self.preset.batch_size} for dp {smallest} cannot grow to dp {dp}")
        return replace(self.preset, batch_size=self.preset.batch_size * dp // smallest)

    def work(self) -> bench_result.BenchedWork:
        """Description of what it measures, printed before the run."""
        presets = {dp: self.preset_of(dp) for dp in self.scales}
        sizes = {
            dp: {"batch_size": preset.batch_size, "num_items": _num_items(preset)} for dp, preset in presets.items()
        }
        return bench_result.make_benched_work(
            workload=self.workload,
            scaling=self.scaling,
            simulate_ms=self.simulate_compute_ms,
            model=asdict(self.preset),
            recipe=asdict(self.recipe),
            at={dp: sizes[dp] | asdict(self.plan_of(dp)) for dp in self.scales},
        )


@dataclass(frozen=True, slots=True)
class MeasuredBench:
    """A benchmark of the runs that ended, and the error that ended it early.

    Attributes:
        bench: of the runs that came to their end.
        ended_by: what kept the others from it; None when all did.
    """

    bench: bench_result.Bench
    ended_by: BaseException | None


def run_bench(request: BenchRequest, on_run: Callable[[str], None]) -> MeasuredBench:
    """Measure a workload's throughput at all scales; `on_run` is called with each run before it starts.

    Scales take turns, so that whatever drifts meanwhile touches all alike. A rank that dies and Ctrl-C end the bench;
    what was measured until then stays.

    Raises:
        UsageError: a scale cannot be laid out here.
        RankFailedError: a rank died in the first run.
    """
    scales = sorted(request.scales)
    for dp in scales:
        plan, preset = request.plan_of(dp), request.preset_of(dp)
        plan.check_preset(preset)
        request.recipe_of(dp).check(plan, preset, is_simulated=request.simulate_compute_ms > 0)
    results: dict[int, list[WorkloadResult]] = {dp: [] for dp in scales}
    ended_by: BaseException | None = None
    try:
        for repeat in range(request.num_repeats):
            for dp in scales:
                on_run(f"dp {dp}, run {repeat + 1} of {request.num_repeats}")
                results[dp].append(_run(request, dp))
    except (StepscopeError, OSError, KeyboardInterrupt) as error:
        if not any(results.values()):
            raise
        ended_by = error
    measured = {dp: results[dp] for dp in scales if results[dp]}
    environment = describe_environment(results[scales[0]][0].device_type)
    bench = summarise_bench(request, measured, environment)
    if ended_by is not None:
        bench = replace(bench, warnings=[*bench.warnings, _incomplete(request, measured, ended_by)])
    return MeasuredBench(bench, ended_by)


def _run(request: BenchRequest, dp: int) -> WorkloadResult:
    plan, recipe = request.plan_of(dp), request.recipe_of(dp)
    with bench_checkpoint_folder(plan, is_needed=recipe.checkpoint_every is not None) as out:
        return run_workload(
            plan,
            out=out,
            preset=request.preset_of(dp),
            recipe=recipe,
            num_steps=request.num_warmup_steps + request.num_steps,
            simulate_compute_ms=request.simulate_compute_ms,
            profiled=False,
            seed=request.seed,
            device=request.device,
        )


def _incomplete(
    request: BenchRequest, measured: dict[int, list[WorkloadResult]], why: BaseException
) -> bench_result.BenchWarning:
    num_made, num_asked = sum(map(len, measured.values())), len(request.scales) * request.num_repeats
    return bench_result.BenchWarning(
        "incomplete", f"{num_made} of {counted(num_asked, 'run')} came to the end: {str(why) or 'interrupted'}"
    )


def summarise_bench(
    request: BenchRequest, results: dict[int, list[WorkloadResult]], environment: dict[str, Any]
) -> bench_result.Bench:
    """Compute a benchmark's figures from its runs, by data-parallel size in rising order."""
    runs = {dp: [_bench_run(request, result) for result in results[dp]] for dp in results}
    smallest = min(runs)
    points = {dp: bench_result.scale_point(dp, [run.step_ms for run in runs[dp]]) for dp in runs}
    # Of one GPU, when all are of one known kind.
    names = {gpu["name"] for gpu in environment["gpus"]}
    model = find_gpu(names.pop()) if len(names) == 1 else None
    peak = model.peak_flops(request.preset.dtype) if model else None
    scales = [_scale(request, runs[dp], points[dp], points[smallest], peak=peak) for dp in sorted(runs)]
    device = results[smallest][0].device_type
    unfit = _unfit(request, len(scales))
    return bench_result.Bench(
        schema=bench_result.BENCH_SCHEMA,
        workload=request.workload,
        model=asdict(request.preset),
        plan=asdict(request.plan_of(smallest)),
        recipe=asdict(request.recipe),
        item="token" if request.preset.image is None else "image",
        scaling=request.scaling,
        device=device,
        seed=request.seed,
        num_warmup_steps=request.num_warmup_steps,
        environment=environment,
        scales=scales,
        fit=None if unfit else bench_result.fit_scaling([points[dp] for dp in sorted(points)], request.scaling),
        warnings=[*_left_out(request, list(runs)), *unfit, *_warnings(scales, device=device, peak=peak)],
        simulate_ms=request.simulate_compute_ms,
    )


def _bench_run(request: BenchRequest, result: WorkloadResult) -> bench_result.BenchRun:
    ranks = [outcome.step_seconds[request.num_warmup_steps :] for outcome in result.outcomes]
    peaks = [o.peak_allocated_bytes for o in result.outcomes if o.peak_allocated_bytes is not None]
    return bench_result.BenchRun(
        step_ms=[seconds * 1e3 for seconds in bench_result.median_over_ranks(ranks)],
        first_loss=result.first_loss,
        last_loss=result.last_loss,
        peak_allocated_bytes=max(peaks) if peaks else None,
    )


def _scale(
    request: BenchRequest,
    runs: list[bench_result.BenchRun],
    point: bench_result.ScalePoint,
    smallest: bench_result.ScalePoint,
    *,
    peak: float | None,
) -> bench_result.BenchScale:
    dp = round(point.scale)
    plan, preset = request.plan_of(dp), request.preset_of(dp)
    steps = [step for run in runs for step in run.step_ms]
    flops = _model_flops(preset, request.recipe)
    # The share of a rank's rate: at equal items for weak scaling, at equal work of all for strong scaling.
    work = 1.0 if request.scaling == bench_result.WEAK else smallest.scale / point.scale
    share, low, high = bench_result.scaling_efficiency(
        point, smallest, rate=work / point.step_ms, smallest_rate=1.0 / smallest.step_ms
    )
    p50 = median(steps)
    num_items = _num_items(preset)
    return bench_result.BenchScale(
        dp=dp,
        num_ranks=plan.world_size,
        batch_size=preset.batch_size,
        num_items=num_items,
        model_flops=flops,
        runs=runs,
        step_p50_ms=p50,
        step_p95_ms=bench_result.percentile_95(steps),
        items_per_second=num_items / p50 * 1e3,
        mfu=flops / (plan.world_size * peak * p50 / 1e3) if peak else None,
        efficiency=share,
        efficiency_interval=(low, high),
        plan=asdict(plan),
    )


def _num_items(preset: Preset) -> int:
    return preset.batch_size * preset.sequence_length


def _model_flops(preset: Preset, recipe: Recipe) -> float:
    """Of a whole batch, for training."""
    if preset.image is None:
        return step_flops(preset, recipe).model
    from stepscope.reference_workloads.models.resnet import training_flops

    return preset.batch_size * training_flops(preset)


def _unfit(request: BenchRequest, num_scales: int) -> list[bench_result.BenchWarning]:
    """Why no law is fitted where there are scales enough; nothing when one is."""
    if request.scaling == bench_result.WEAK or not request.simulate_compute_ms or num_scales < 2:
        return []
    why = "simulated layers sleep as long for a part of the batch as for all of it: no fit of strong scaling"
    return [bench_result.BenchWarning("no_fit", why)]


def _left_out(request: BenchRequest, scales: Sequence[int]) -> list[bench_result.BenchWarning]:
    parts = {dp: ", ".join(request.left_out(dp)) for dp in sorted(scales)}
    return [
        bench_result.BenchWarning("left_out", f"dp {dp} is measured without {names}, which need data parallelism")
        for dp, names in parts.items()
        if names
    ]


def _warnings(
    scales: Sequence[bench_result.BenchScale], *, device: str, peak: float | None
) -> list[bench_result.BenchWarning]:
    found = []
    if device == "cuda" and peak is None:
        found.append(bench_result.BenchWarning("unknown_peak", "the catalogue has no peak of these GPUs: no MFU"))
    for scale in scales:
        if scale.step_p95_ms > STEADY * scale.step_p50_ms:
            slower = scale.step_p95_ms / scale.step_p50_ms - 1
            found.append(
                bench_result.BenchWarning(
                    "unsteady", f"dp {scale.dp}: one step in twenty takes {slower:.0%} longer than the median"
                )
            )
        if any(run.last_loss >= run.first_loss for run in scale.runs):
            found.append(bench_result.BenchWarning("loss_not_falling", f"dp {scale.dp}: the loss did not fall"))
    return found


_PREFIX = ".stepscope-bench-"


@contextmanager
def bench_checkpoint_folder(plan: ParallelPlan, *, is_needed: bool) -> Iterator[Path]:
    """Folder for a benchmark's checkpoints, deleted afterwards; none is made where none are written.

    Raises:
        DataError: it cannot be made.
    """
    if not is_needed:
        yield Path()
    elif is_launched_rank(plan):
        with _of_all_ranks() as folder:
            yield folder
    else:
        with _made() as folder:
            yield Path(folder)


def _made() -> tempfile.TemporaryDirectory[str]:
    try:
        return tempfile.TemporaryDirectory(prefix=_PREFIX, dir=Path.cwd(), ignore_cleanup_errors=True)
    except OSError as error:
        raise from_os_error(error, "no checkpoint can be written", where=os.getcwd()) from error


@contextmanager
def _of_all_ranks() -> Iterator[Path]:
    """A launcher's ranks write into one folder, which each node's first one deletes: all end a checkpoint at once."""
    identity = identify_process()
    folder = Path(f"{_PREFIX}{choose_run_name(None, identity)}")
    try:
        yield folder
    finally:
        if identity.local_rank == 0:
            shutil.rmtree(folder, ignore_errors=True)
