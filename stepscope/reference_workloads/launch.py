"""How does a workload start, on which processes, and what does it leave behind?"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from stepscope.core.errors import UsageError
from stepscope.core.run_layout import RUN_FILE
from stepscope.reference_workloads.job import Progress, TrainingJob
from stepscope.reference_workloads.plan import ParallelPlan, Preset, find_preset
from stepscope.reference_workloads.processes import run_ranks
from stepscope.training import Schedule
from stepscope.training.identity import identify
from stepscope.training.run_naming import check_run_name, run_name

DEFAULT_NUM_STEPS = 9
"""Three to settle, one to warm the profiler up, three captured, and two after."""

_KINETO_SILENT = "99"


@dataclass(frozen=True, slots=True)
class WorkloadResult:
    """What a workload's run left behind.

    Attributes:
        run_dir: the run directory; it exists only when the run was profiled.
        losses: loss of each step over the whole batch.
        device_type: "cpu" or "cuda".
    """

    run_dir: Path
    losses: list[float]
    device_type: str

    @property
    def first_loss(self) -> float:
        """Loss of the first step."""
        return self.losses[0]

    @property
    def last_loss(self) -> float:
        """Loss of the last step."""
        return self.losses[-1]


def run_gpt(
    plan: ParallelPlan,
    *,
    out: str | os.PathLike[str] = "runs",
    run: str | None = None,
    preset: str | Preset = "tiny",
    num_steps: int = DEFAULT_NUM_STEPS,
    simulate_compute_ms: float = 0.0,
    profiled: bool = True,
    schedule: Schedule | None = None,
    seed: int = 0,
    device: str = "auto",
    on_progress: Callable[[Progress], None] | None = None,
) -> WorkloadResult:
    """Train a small GPT under the plan; returns when all ranks have ended.

    With RANK and WORLD_SIZE set (torchrun, srun) this process is one rank, else it starts plan.world_size processes.

    Args:
        run: folder inside `out`; by default made of the preset, the plan and the time.
        simulate_compute_ms: each block sleeps so long forwards and twice that backwards (CPU only).
        schedule: which steps to capture; by default profile()'s.
        device: "cpu", "cuda", or "auto": CUDA where there is one.
        on_progress: called in this process once a step.

    Raises:
        UsageError: the plan, preset, device and options do not fit together.
        RankFailedError: a rank died.
    """
    model = find_preset(preset) if isinstance(preset, str) else preset
    plan.check_preset(model)
    if num_steps < 1 or simulate_compute_ms < 0:
        raise UsageError("a run has at least one step, and a layer's simulated time is not negative")
    is_rank = "RANK" in os.environ and "WORLD_SIZE" in os.environ
    if is_rank:
        plan.check_world(int(os.environ["WORLD_SIZE"]))
    job = TrainingJob(
        plan=plan,
        preset=model,
        out=os.fspath(out),
        run=run or _default_run(plan, model, is_rank=is_rank),
        num_steps=num_steps,
        seed=seed,
        device_type=_device_type(device, plan, simulate_compute_ms, is_rank=is_rank),
        simulate_ms=simulate_compute_ms,
        profiled=profiled,
        schedule=schedule,
    )
    tell = on_progress or _say_nothing
    if is_rank:
        from stepscope.reference_workloads.train import train_rank

        losses = train_rank(job, tell)
    else:
        if profiled and (Path(job.out) / job.run / RUN_FILE).exists():
            raise UsageError(
                "the run directory is in use", where=str(Path(job.out) / job.run), what_next="choose another name"
            )
        losses = run_ranks(job, tell)
    return WorkloadResult(Path(job.out) / job.run, losses, job.device_type)


def _default_run(plan: ParallelPlan, preset: Preset, *, is_rank: bool) -> str:
    if is_rank:  # the same name on all ranks
        return f"gpt-{preset.name}-{run_name(None, identify())}"
    layout = f"tp{plan.tp}-pp{plan.pp}-dp{plan.dp}"
    return f"gpt-{preset.name}-{layout}-{time.strftime('%Y%m%d-%H%M%S')}"


def _device_type(device: str, plan: ParallelPlan, simulate_compute_ms: float, *, is_rank: bool) -> str:
    if device not in {"auto", "cpu", "cuda"}:
        raise UsageError(f'a device is "auto", "cpu" or "cuda", not {device!r}')
    # From 2.13 on torch's profiler writes two lines a capture and rank into the progress on stderr.
    os.environ.setdefault("KINETO_LOG_LEVEL", _KINETO_SILENT)
    import torch

    if device == "cpu" or (device == "auto" and not torch.cuda.is_available()):
        return "cpu"
    if not torch.cuda.is_available():
        raise UsageError("torch finds no CUDA device here", what_next="use --device cpu")
    if simulate_compute_ms:
        raise UsageError(
            "simulated compute lets CPU ranks stand for devices; this machine has GPUs", what_next="use --device cpu"
        )
    if not is_rank and plan.world_size > torch.cuda.device_count():
        raise UsageError(
            f"the plan needs {plan.world_size} GPUs, this machine has {torch.cuda.device_count()}",
            what_next="use --device cpu or smaller sizes",
        )
    return "cuda"


def _say_nothing(_: Progress) -> None:
    pass
