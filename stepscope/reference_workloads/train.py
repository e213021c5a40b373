"""Training of one rank, from its process group's start to the last step, with step times and flight recorder dumps."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as recorder
from torch.distributed import distributed_c10d
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from stepscope.core.documents.run_directory import CHECKPOINT_FOLDER, RankFile
from stepscope.reference_workloads.checkpoint import Checkpointer
from stepscope.reference_workloads.data_loading import batches, make_loader
from stepscope.reference_workloads.injections.faults import write_injections
from stepscope.reference_workloads.job import FaultSite, TrainingJob, TrainingOutcome, TrainingProgress
from stepscope.reference_workloads.models.mixed_precision import LossScale
from stepscope.reference_workloads.models.simulated_compute import TruthLog
from stepscope.reference_workloads.parallelism.gradients import WeightUpdate, forget_first_reductions, reduce_gradients
from stepscope.reference_workloads.parallelism.pipeline import Executor, make_executor
from stepscope.reference_workloads.parallelism.sharding import make_optimizer
from stepscope.training import Profile, profile
from stepscope.training.captures.schedule import DEFAULT_SCHEDULE

logger = logging.getLogger(__name__)

_START_TIMEOUT = timedelta(seconds=120)
"""For all ranks to be there; spawned ones must import torch and start CUDA first."""


def train_rank(
    job: TrainingJob, on_progress: Callable[[TrainingProgress], None], *, init_method: str = "env://"
) -> list[TrainingOutcome]:
    """Train a workload on this rank (RANK, WORLD_SIZE, LOCAL_RANK are set); returns all ranks' outcomes."""
    for injection in job.injections:
        os.environ.update(injection.environment(job))
    if job.device_type == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    else:
        torch.set_num_threads(1)  # ranks share the processors; threads of one would steal from another
    dist.init_process_group(
        _backend(job),
        init_method=init_method,
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
        timeout=_START_TIMEOUT,
        device_id=_own_device(job) if job.device_type == "cuda" else None,
    )
    try:
        plan = job.plan
        mesh = init_device_mesh(job.device_type, (plan.pp, plan.dp, plan.tp), mesh_dim_names=("pp", "dp", "tp"))
        # The group in which all ranks say at the end what they know; None for the default one, in which a mesh
        # dimension that is the whole world communicates: a rank that ends early would meet its peers' next gradients
        # there, and exchange nonsense with them instead of waiting for them.
        is_shared = max(plan.pp, plan.dp, plan.tp) == plan.world_size > 1
        ending = dist.new_group() if is_shared else None
        set_timeout([*mesh.get_all_groups(), ending, None], job.timeout_seconds)
        return _of_all_ranks(_train(job, mesh, ending, on_progress), ending)
    except BaseException:
        _dump_flight(job, dist.get_rank())
        raise
    finally:
        dist.destroy_process_group()


def _backend(job: TrainingJob) -> str:
    if job.device_type == "cpu":
        return "gloo"
    # Tensors in host memory are gathered and counted there.
    return "cpu:gloo,cuda:nccl" if job.plan.cpu_offload else "nccl"


def _own_device(job: TrainingJob) -> torch.device:
    return torch.device("cuda", torch.cuda.current_device()) if job.device_type == "cuda" else torch.device("cpu")


@dataclass(slots=True)
class _Parts:
    """What a rank's training is made of, before the first step."""

    executor: Executor
    update: WeightUpdate
    loss_scale: LossScale
    checkpointer: Checkpointer | None
    loader: Iterable[Any]
    site: FaultSite
    first_step: int


def _build(job: TrainingJob, mesh: DeviceMesh) -> _Parts:
    plan, preset, recipe = job.plan, job.preset, job.recipe
    device = _own_device(job)
    loss_scale = LossScale(preset, recipe)
    executor = make_executor(
        plan,
        preset,
        mesh,
        device=device,
        recipe=recipe,
        loss_scale=loss_scale,
        seed=job.seed,
        simulate_milliseconds=job.simulate_ms,
    )
    optimizer = make_optimizer(executor.modules, plan, preset, mesh)
    checkpointer = None
    first_step = 0
    if recipe.checkpoint_every is not None or recipe.resume_from is not None:
        folder = Path(job.out) / job.run / CHECKPOINT_FOLDER
        checkpointer = Checkpointer(executor.modules, optimizer, loss_scale, folder)
    if checkpointer is not None and recipe.resume_from is not None:
        first_step = checkpointer.load(Path(recipe.resume_from))
    loader = make_loader(job, dp_rank=mesh.get_local_rank("dp"), first_step=first_step)
    site = FaultSite(job, dist.get_rank(), mesh, device, executor.modules, optimizer)
    update = WeightUpdate(optimizer, mesh, device, recipe, loss_scale)
    return _Parts(executor, update, loss_scale, checkpointer, loader, site, first_step)


def _train(
    job: TrainingJob,
    mesh: DeviceMesh,
    ending: dist.ProcessGroup | None,
    on_progress: Callable[[TrainingProgress], None],
) -> TrainingOutcome:
    parts = _build(job, mesh)
    site, device = parts.site, parts.site.device
    for injection in job.injections:
        injection.prepare(site)
    # One rank of the last stage, where the loss is known.
    reports = (
        mesh.get_local_rank("pp") == job.plan.rank_with_loss
        and mesh.get_local_rank("dp") == 0
        and mesh.get_local_rank("tp") == 0
    )
    losses: list[torch.Tensor | None] = []
    truth = TruthLog(site.optimizer)
    with _profile(job, mesh) as prof:
        run_directory = prof.run_directory  # the profiler's own choice; it forgets it at its end
        if run_directory is not None and dist.get_rank() == 0:
            write_injections(run_directory, job.injections)
        clock = _StepClock(device)
        started = time.monotonic()
        for step, (inputs, targets) in enumerate(prof.data(batches(parts.loader))):
            for injection in job.injections:
                injection.before_step(site, step)
            site.optimizer.zero_grad()
            loss = parts.executor.run(inputs.to(device, non_blocking=True), targets.to(device, non_blocking=True))
            _reduce(job, site)
            for injection in job.injections:
                injection.after_backward(site, step)
            parts.update.take()
            for injection in job.injections:
                injection.after_step(site, step)
            losses.append(loss)
            # On a GPU reading the loss would make the host wait for the device, so the run tells it at its end.
            if reports and loss is not None and job.device_type == "cpu":
                on_progress(TrainingProgress(parts.first_step + step, loss.item(), (time.monotonic() - started) * 1e3))
            _save(job, parts, prof, parts.first_step + step + 1)
            clock.end()
            truth.end()
            if step == 0:
                forget_first_reductions(site.modules, device)
            prof.step()
            truth.begin()
            clock.begin()
            started = time.monotonic()
        if parts.checkpointer is not None:
            parts.checkpointer.wait()
    if job.simulate_ms and run_directory is not None:
        truth.write(run_directory, dist.get_rank())
    measured_as = None if run_directory is None else run_directory.name
    return replace(_outcome(job, parts, losses, clock, ending), measured_as=measured_as)


def _reduce(job: TrainingJob, site: FaultSite) -> None:
    """What DDP would have done during the backward pass."""
    if not job.recipe.overlaps_reduction and job.plan.zero in {0, 1}:
        reduce_gradients(site.modules, site.mesh.get_group("dp"), job.recipe.bucket_mb)


def _save(job: TrainingJob, parts: _Parts, prof: Profile, num_steps_done: int) -> None:
    """A checkpoint, if it is time for one."""
    every = job.recipe.checkpoint_every
    if parts.checkpointer is not None and every is not None and num_steps_done % every == 0:
        with prof.phase("checkpoint"):
            parts.checkpointer.save(num_steps_done, asynchronously=job.recipe.checkpoint_mode == "async")


def _profile(job: TrainingJob, mesh: DeviceMesh) -> Profile:
    return profile(
        run=job.run,
        out=job.out,
        schedule=job.schedule or DEFAULT_SCHEDULE,  # also on GPUs: the job is short
        mesh=mesh,
        enabled=job.profiled,
        labels={"workload": job.preset.architecture, "preset": job.preset.name, "schedule": job.plan.schedule},
        simulated_compute=job.simulate_ms > 0,
    )


def _outcome(
    job: TrainingJob,
    parts: _Parts,
    losses: list[torch.Tensor | None],
    clock: _StepClock,
    ending: dist.ProcessGroup | None,
) -> TrainingOutcome:
    """Runs after training, so that no step is touched."""
    on_gpu = job.device_type == "cuda"
    step_seconds = clock.seconds()
    # Read before the losses are gathered, which takes memory too.
    peaks = (torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()) if on_gpu else (None, None)
    # Mean over all data-parallel ranks, on every rank.
    device = torch.device(job.device_type)
    sums = torch.zeros(2, len(losses), dtype=torch.float64, device=device)
    for step, loss in enumerate(losses):
        if loss is not None:
            sums[0, step] = loss.double()
            sums[1, step] = 1.0
    dist.all_reduce(sums, group=ending)
    means: list[float] = (sums[0] / sums[1]).tolist()
    return TrainingOutcome(
        losses=means,
        step_seconds=step_seconds,
        peak_allocated_bytes=peaks[0],
        peak_reserved_bytes=peaks[1],
        gradient_norms=parts.update.norms(),
        num_skipped_steps=parts.loss_scale.num_skipped_steps,
        loss_scale=parts.loss_scale.value,
    )


def _of_all_ranks(mine: TrainingOutcome, group: dist.ProcessGroup | None) -> list[TrainingOutcome]:
    outcomes: list[TrainingOutcome] = [mine] * dist.get_world_size()
    dist.all_gather_object(outcomes, mine, group=group)
    return outcomes


class _StepClock:
    """Times steps by the device, whose events are read when training is over: asking earlier would make the host wait.

    What happens between `end` and `begin`, as writing a trace, is in no step. On CPU it is the host's clock.
    """

    def __init__(self, device: torch.device) -> None:
        self._on_device = device.type == "cuda"
        self._marks: list[tuple[torch.cuda.Event | float, torch.cuda.Event | float]] = []
        self.begin()

    def begin(self) -> None:
        self._started = self._mark()

    def end(self) -> None:
        self._marks.append((self._started, self._mark()))

    def seconds(self) -> list[float]:
        """Of each step that has ended; waits for the device."""
        if self._on_device:
            torch.cuda.synchronize()
        return [_seconds_between(*marks) for marks in self._marks]

    def _mark(self) -> torch.cuda.Event | float:
        if not self._on_device:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch leaves it so
        event.record()
        return event


def _seconds_between(first: torch.cuda.Event | float, last: torch.cuda.Event | float) -> float:
    if isinstance(first, float) or isinstance(last, float):
        assert isinstance(first, float)
        assert isinstance(last, float)
        return last - first
    milliseconds: float = first.elapsed_time(last)
    return milliseconds / 1e3


def set_timeout(groups: Iterable[dist.ProcessGroup | None], seconds: float) -> None:
    """Reference workload: set how long a rank waits in these process groups (None: the default one)."""
    for group in groups:
        distributed_c10d._set_pg_timeout(timedelta(seconds=seconds), group)


def _dump_flight(job: TrainingJob, rank: int) -> None:
    """Write gloo's flight recorder; NCCL's watchdog writes its own. Does nothing where recording is off."""
    if job.device_type != "cpu" or not os.environ.get("TORCH_FR_DUMP_TEMP_FILE"):
        return
    try:
        content = recorder._dump_fr_trace()  # type: ignore[attr-defined]  # torch's stubs lack it
        Path(job.out, job.run, RankFile.FLIGHT_RECORDER.path(rank)).write_bytes(content)
    except (AttributeError, OSError, RuntimeError) as error:  # the failure itself matters more
        logger.warning("no flight recorder of rank %d: %s", rank, error)
