"""Launch of a workload: checks of what is asked, the run directory, the ranks, and the result."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from stepscope.core.documents.run_directory import CHECKPOINT_FOLDER, RUN_FILE, STEPS_FOLDER
from stepscope.core.errors import DataError, UsageError
from stepscope.reference_workloads import placement
from stepscope.reference_workloads.injections.faults import control_of, inject_faults
from stepscope.reference_workloads.job import Injection, TrainingJob, TrainingOutcome, TrainingProgress
from stepscope.reference_workloads.plan import ParallelPlan, Preset, find_preset
from stepscope.reference_workloads.processes import run_ranks
from stepscope.reference_workloads.recipe import Recipe
from stepscope.training import Schedule
from stepscope.training.captures.schedule import DEFAULT_SCHEDULE, ProfilerState
from stepscope.training.run.identity import check_run_name, choose_run_name, identify_process

DEFAULT_NUM_STEPS = 9
"""Three to settle, one to warm the profiler up, three captured, and two after."""

NUM_SETTLING_STEPS = 3
"""The first steps set communicators up, fill the allocator's cache and tune kernels."""

_MAX_SEED = 2**32 - 1


@dataclass(frozen=True, slots=True)
class WorkloadResult:
    """Result of a workload's run: its job, run directory, losses and step times.

    Attributes:
        run_dir: the run directory; it exists only when the run was profiled.
        job: what was trained, as its injections changed it.
        outcomes: what each rank knows, by rank.
    """

    run_dir: Path
    job: TrainingJob
    outcomes: tuple[TrainingOutcome, ...]

    @property
    def device_type(self) -> str:
        return self.job.device_type

    @property
    def losses(self) -> list[float]:
        """Loss of each step over the whole batch."""
        return self.outcomes[0].losses

    @property
    def first_loss(self) -> float:
        return self.losses[0]

    @property
    def last_loss(self) -> float:
        return self.losses[-1]

    @property
    def settled_step_seconds(self) -> list[float]:
        """Rank 0's steps that nothing distorts; all of them when none is left.

        Left out are the first ones, captured ones, and those after a capture, which wait for other ranks' export.
        """
        seconds = self.outcomes[0].step_seconds
        captures = self.job.schedule or DEFAULT_SCHEDULE
        settled = [
            seconds[step]
            for step in range(NUM_SETTLING_STEPS, len(seconds))
            if not self.job.profiled or captures.state(step) is captures.state(step - 1) is ProfilerState.WAIT
        ]
        return settled or seconds

    @property
    def step_seconds(self) -> float:
        """Median of the settled steps."""
        return median(self.settled_step_seconds)

    @property
    def tokens_per_second(self) -> float:
        """Of all ranks together, in the median settled step."""
        preset = self.job.preset
        return preset.batch_size * preset.sequence_length / self.step_seconds


def run_workload(
    plan: ParallelPlan,
    *,
    out: str | os.PathLike[str] = "runs",
    run: str | None = None,
    preset: str | Preset = "tiny",
    recipe: Recipe | None = None,
    injections: Sequence[Injection] = (),
    as_control: bool = False,
    num_steps: int = DEFAULT_NUM_STEPS,
    simulate_compute_ms: float = 0.0,
    profiled: bool = True,
    schedule: Schedule | None = None,
    seed: int = 0,
    device: str = "auto",
    on_progress: Callable[[TrainingProgress], None] | None = None,
) -> WorkloadResult:
    """Train a workload: the preset's model under the plan; returns when all ranks have ended.

    With RANK and WORLD_SIZE set (torchrun, srun) this process is one rank, else it starts plan.world_size processes.

    Args:
        seed: decides weights and data; 0 to 2**32 - 1.
        run: folder inside `out`; by default made of preset, plan and time, and a number where that is taken.
        simulate_compute_ms: each block sleeps so long forwards and twice that backwards (CPU only).
        schedule: which steps to capture; by default profile()'s.
        recipe: how steps are made; by default plainly.
        injections: faults that the run has, in this order.
        as_control: train the job that the faults would go into, without them.
        device: "cpu", "cuda", or "auto": CUDA where there is one.
        on_progress: called in this process once a step.

    Raises:
        UsageError: the plan, preset, device, environment and options do not fit together, or are too much for this
            machine; or another run has the run directory.
        DataError: the run directory cannot be written, or training ended and profiling left nothing in it.
        RankFailedError: a rank died.
    """
    model = find_preset(preset) if isinstance(preset, str) else preset
    plan.check_preset(model)
    if num_steps < 1:
        raise UsageError(f"a run has at least one step, not {num_steps}")
    if not math.isfinite(simulate_compute_ms) or simulate_compute_ms < 0:
        raise UsageError(f"a layer's simulated time is finite and not negative, not {simulate_compute_ms}")
    if not 0 <= seed <= _MAX_SEED:
        raise UsageError(f"a seed is a whole number from 0 to {_MAX_SEED}, not {seed}")
    is_rank = placement.is_launched_rank(plan)
    job = TrainingJob(
        plan=plan,
        preset=model,
        out=os.fspath(out),
        run=_run_name(run, plan, model, is_rank=is_rank),
        num_steps=num_steps,
        seed=seed,
        device_type=placement.device_type_of(device, plan, simulate_compute_ms, is_rank=is_rank),
        simulate_ms=simulate_compute_ms,
        profiled=profiled,
        schedule=schedule,
        recipe=recipe or Recipe(),
        injections=tuple(injections),
    )
    if as_control and not injections:
        raise UsageError(
            "a control is the job of a fault, and none is injected", what_next="name the fault, or drop it"
        )
    faulty = inject_faults(job)  # the control of a fault that is refused would be of no use
    job = control_of(job) if as_control else faulty
    job.plan.check_preset(job.preset)
    job.recipe.check(job.plan, job.preset, is_simulated=job.simulate_ms > 0)
    placement.refuse_on_processors(job, is_asked_for=device == "cpu", is_rank=is_rank)
    return _train(job, on_progress or (lambda _: None), is_rank=is_rank, may_be_numbered=run is None)


def _run_name(run: str | None, plan: ParallelPlan, preset: Preset, *, is_rank: bool) -> str:
    if run is None:
        return _default_run(plan, preset, is_rank=is_rank)
    try:
        check_run_name(run)
    except ValueError as error:
        raise UsageError(str(error), what_next="choose a plain name") from error
    if any(letter.isspace() for letter in run):
        raise UsageError(f"a workload's run name has no blanks: {run!r}", what_next="choose a plain name")
    return run


def _train(
    job: TrainingJob, tell: Callable[[TrainingProgress], None], *, is_rank: bool, may_be_numbered: bool
) -> WorkloadResult:
    if job.recipe.resume_from is not None:
        from stepscope.reference_workloads.checkpoint import check_checkpoint

        check_checkpoint(Path(job.recipe.resume_from), job.preset)
    if job.recipe.data_dir is not None:
        from stepscope.reference_workloads.data_loading import check_images

        check_images(job.preset, Path(job.recipe.data_dir))
    with _folder(job, is_rank=is_rank, may_be_numbered=may_be_numbered) as run_directory:
        job = replace(job, run=run_directory.name)
        if is_rank:
            from stepscope.reference_workloads.train import train_rank

            outcomes = train_rank(job, tell)
        else:
            outcomes = run_ranks(job, tell)
    measured_as = outcomes[0].measured_as
    is_measured = measured_as is not None and (run_directory.with_name(measured_as) / RUN_FILE).is_file()
    if job.profiled and (not is_rank or int(os.environ["RANK"]) == 0) and not is_measured:
        raise DataError(
            f"training ended, but profiling left no {RUN_FILE}",
            where=str(run_directory),
            what_next="see the warnings above, and whether STEPSCOPE_DISABLE is set",
        )
    return WorkloadResult(run_directory.with_name(measured_as or job.run), job, tuple(outcomes))


@contextmanager
def _folder(job: TrainingJob, *, is_rank: bool, may_be_numbered: bool) -> Iterator[Path]:
    """The run directory, where one is written."""
    wanted = Path(job.out) / job.run
    if not job.profiled and job.recipe.checkpoint_every is None:
        yield wanted
    elif is_rank:
        placement.share_run_directory(wanted)
        yield wanted
    else:
        first_folder = STEPS_FOLDER if job.profiled else CHECKPOINT_FOLDER
        with placement.claimed_run_directory(wanted, first_folder, may_be_numbered=may_be_numbered) as run_directory:
            yield run_directory


def _default_run(plan: ParallelPlan, preset: Preset, *, is_rank: bool) -> str:
    if is_rank:  # the same name on all ranks
        return f"{preset.architecture}-{preset.name}-{choose_run_name(None, identify_process())}"
    layout = f"tp{plan.tp}-pp{plan.pp}-dp{plan.dp}"
    return f"{preset.architecture}-{preset.name}-{layout}-{time.strftime('%Y%m%d-%H%M%S')}"
