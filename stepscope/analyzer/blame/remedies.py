"""Remedies: the first things to try for each cause and reason."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from stepscope.core.vocabulary import Cause, Evidence, Reason

ACTIONS: dict[Cause, tuple[str, ...]] = {
    Cause.PIPELINE_BUBBLE: ("give each rank several smaller stages (interleaving)",),
    Cause.IMBALANCE: ("re-cut the stages (or the batch) so that every rank computes for the same time",),
    Cause.STRAGGLER: ("take the node out of the job if it stays slower",),
    Cause.COMMUNICATION: (
        "check that traffic takes the fastest link (NCCL_DEBUG=INFO: P2P over NVLink, IB with GDRDMA)",
        "overlap it with compute: larger buckets, prefetch, fewer small messages",
    ),
    Cause.DATA_LOADING: ("move decoding or slow storage out of the step (cache, shard, local disk)",),
    Cause.HOST_BOUND: ("check that the training processes own enough CPU cores",),
    Cause.SYNCHRONIZATION: ("remove .item(), print(loss), nonzero and blocking copies from the step",),
    Cause.CHECKPOINT: ("save asynchronously (torch.distributed.checkpoint.async_save) or less often",),
    Cause.EVALUATION: ("evaluate less often, on fewer batches, or in a job of its own",),
    Cause.WASTED_STEPS: ("count useful steps, not steps: loss scale, non-finite losses, restarts",),
    Cause.CONTENTION: ("find the other processes: nvidia-smi and top show who uses the GPU and the CPUs",),
    Cause.COPY: ("pin host memory, copy with non_blocking=True on a side stream",),
    Cause.DEVICE_GAP: ("look for cross-stream waits; CUDA graphs remove launch latency",),
    Cause.LATENCY_BOUND: ("see the kernels table for the operators and grids of these kernels",),
    Cause.MEMORY_BOUND: ("fuse pointwise chains (torch.compile, fused norm and optimizer), use a smaller dtype",),
    Cause.COMPUTE_BOUND: ("lower precision or less work per step (the GPU computes most of the time)",),
    Cause.PROFILER: ("profile fewer steps: the profiler itself takes this time",),
    Cause.INSUFFICIENT_EVIDENCE: ("profile every rank for at least two whole steps, with CPU and GPU activities",),
}

ACTIONS_ON_CPU: dict[Cause, tuple[str, ...]] = {
    Cause.COMPUTE_BOUND: ("see which operators take the most time, and whether more threads shorten them",),
    Cause.CONTENTION: ("find the other processes: top shows who uses the CPUs",),
}
"""Instead of those above for a job without a GPU."""

REMEDIES: dict[Reason, str] = {
    Reason.STARVED: "raise num_workers and prefetch_factor",
    Reason.BURSTY: "raise num_workers and prefetch_factor: batches come in bursts, one a worker, then none",
    Reason.NO_WORKERS: "num_workers=4 or more (now 0, so that the training process makes every batch)",
    Reason.DISPATCH: "torch.compile or CUDA graphs, fused optimizer, larger batches (fewer launches from Python)",
    Reason.PYTHON: "profile with with_stack=True to see which Python runs between the operators",
    Reason.OPERATORS_UNKNOWN: "profile with ProfilerActivity.CPU as well, to see what the CPU does between launches",
    Reason.GC: "gc.freeze() after set-up, gc.disable() in the loop and collect every few hundred steps on all ranks",
    Reason.ALLOCATOR: "avoid empty_cache() in the loop; expandable_segments:True, or fixed sequence lengths",
    Reason.FIRST_LAUNCH: "warm up before profiling: modules load on first use (CUDA_MODULE_LOADING=EAGER: at start)",
    Reason.BLOCKED_LAUNCH: "find what holds launches up: cudaMalloc or cudaFree on other threads, too few CPU cores",
    Reason.COMPILE: "find out what recompiles (TORCH_LOGS=recompiles); mark changing sizes as dynamic",
    Reason.GRAPH_CAPTURE: "profile replays of the CUDA graph instead of its capture, which happens once",
    Reason.CPU_OPTIMIZER: "keep the optimizer on the GPU (a higher ZeRO level instead of offloading) or overlap it",
    Reason.CPU_LIMITED: "give every training process its own cores (cgroup, --cpus-per-task, bind cores to ranks)",
    Reason.GPU_SHARED: "end the other process on this GPU, or give the job a GPU of its own (nvidia-smi lists them)",
    Reason.OVERFLOW: "lower the first loss scale (GradScaler init_scale=2.0**16), or use bfloat16, which needs none",
    Reason.NON_FINITE: "find the first loss that is not finite (stepscope steps): batch, learning rate, clipping",
    Reason.REPEATED: "save checkpoints more often, so that a restart repeats fewer steps; find why it restarts",
    Reason.STEPS_GET_LONGER: "find what grows with the steps (lists, kept graphs, caches); profile early and late ones",
    Reason.READS_VALUE: "call .item() on losses and norms every N steps only; replace nonzero and masks by where()",
    Reason.BLOCKING_COPY: "pin host memory and copy with non_blocking=True",
    Reason.EXPLICIT_SYNCHRONIZE: "drop torch.cuda.synchronize() from the step; time with events that are read later",
    Reason.NOT_STARTED: "look for other processes on the GPU (nvidia-smi): queued kernels start 1 ms late and later",
    Reason.FEW_MICRO_BATCHES: "raise the number of micro-batches (the bubble shrinks as (P-1)/(M+P-1))",
    Reason.UNEVEN_STAGES: "re-cut the stages: give the slowest one fewer layers",
    Reason.UNEVEN_BATCHES: "even out the batches: pack sequences, balance experts",
    Reason.EXTRA_WORK: "find the kernels that the named rank alone runs (kernels table)",
    Reason.LOW_CLOCK: "compare clocks, power cap and temperature of the named rank's GPU with its peers'",
    Reason.SLOWER_KERNELS: "look for other processes on that GPU, and for shapes that differ from the peers'",
    Reason.WRONG_TRANSPORT: "NCCL_DEBUG=INFO shows each channel's path: find why traffic leaves the fast link",
    Reason.SLOW_LINK: "look for a degraded link or shared bandwidth on these ranks (nvidia-smi nvlink -s, other jobs)",
    Reason.SMALL_MESSAGES: "send fewer, larger messages: larger bucket_cap_mb, coalesced or fused collectives",
    Reason.NO_OVERLAP: "reduce gradients during backward (DDP buckets, FSDP); hide tensor parallelism by async TP",
    Reason.NO_PREFETCH: "prefetch weights: FSDP's forward and backward prefetch, limit_all_gathers off",
    Reason.ARRIVALS_UNKNOWN: "profile every rank in the same steps, so that waiting can be told from transfer",
    Reason.RECOMPUTE: "checkpoint fewer activations (selective, or none) while memory allows",
    Reason.NO_TENSOR_CORES: "autocast to a 16-bit type, or set_float32_matmul_precision('high') for TF32 (Ampere on)",
    Reason.INEFFICIENT_KERNELS: "see the kernels table for the shapes: pad odd sizes to multiples of 8",
    Reason.UNFUSED: "torch.compile the element-wise chains; foreach or fused=True for the optimizer",
    Reason.SHORT_KERNELS: "fuse them (torch.compile), or give each more work (larger batches, several tensors at once)",
    Reason.FEW_BLOCKS: "see the kernels table: which operators launch fewer blocks than the GPU has multiprocessors",
    Reason.TINY_KERNELS: "CUDA graphs (torch.compile mode='reduce-overhead'), fusion, or larger batches",
    Reason.PAGEABLE_MEMORY: "pin_memory=True in the loader and .to(device, non_blocking=True)",
    Reason.LEAK: "find who keeps tensors over steps (memory snapshot): detach() what is collected, clear lists",
    Reason.FRAGMENTATION: "expandable_segments:True (PYTORCH_ALLOC_CONF), or fixed sequence lengths",
    Reason.HOST: "look at what their Python does: py-spy dump --pid, or flight/rank<r>.stacks.txt of the run",
    Reason.DEVICE: "look for XIDs of their GPUs (dmesg, stepscope agent check); start again without these nodes",
    Reason.DESYNC: "find the branch on which these ranks part: data that runs out, a condition on the rank",
    Reason.MISSING_RANK: "look at these ranks' own logs, their nodes' kernel logs and who ended them",
    Reason.HELD: "give the GPU back: end the session that holds it",
    Reason.HEAT: "look at fans, air or water flow, and the temperature of the room",
    Reason.POWER_CAP: "raise the power limit where that is allowed (nvidia-smi -pl); a limit alone is not a fault",
    Reason.HARDWARE_SLOWDOWN: "look at power supply and cables: the hardware itself slows the GPU down",
    Reason.CLOCK_SETTING: "take the clock setting back: nvidia-smi -rgc, -rac",
}
"""What to try first, by reason."""


def functions_in(evidence: Iterable[Evidence]) -> list[Evidence]:
    """Evidence of functions in which the host was late or blocked, whose file, line and name follow the colon."""
    return [item for item in evidence if item.metric.partition(": ")[0].endswith("_in_function")]


def remedies_by_function(evidence: Iterable[Evidence]) -> dict[Reason, str]:
    """Remedies that name the function in which most of the host's time went, where stacks were recorded."""
    functions = functions_in(evidence)
    if not functions:
        return {}
    where = f"{functions[0].metric.partition(': ')[2]} ({functions[0].value:.0%} of this delay)"
    return {Reason.PYTHON: f"shorten {where}", Reason.READS_VALUE: f"{REMEDIES[Reason.READS_VALUE]}: see {where}"}


REMEDIES_ON_CPU: dict[Reason, str] = {
    Reason.DISPATCH: "torch.compile, fused optimizer, larger batches (fewer operators from Python)",
}
"""Instead of those above for a job without a GPU."""

_INSTEAD_OF_ACTIONS = frozenset({Reason.NOT_STARTED})
"""Reasons for which the cause's own remedies are wrong."""

MAX_ACTIONS = 3


def profiler_action(*, is_unmarked: bool, with_shapes: bool, with_stacks: bool) -> str:
    """The remedy of the profiler's own overhead: in a trace without steps most of it is of the profiler's start."""
    if is_unmarked:
        return "warm up before recording (schedule(warmup=1)) and record longer: most of it is the profiler's start"
    recorded = " and ".join(name for name, is_on in (("shapes", with_shapes), ("stacks", with_stacks)) if is_on)
    without = f" or without {recorded}" if recorded else ""
    return f"profile fewer steps{without}; the profiler itself takes this time"


def actions_for(
    cause: Cause,
    reasons: Sequence[Reason],
    own_remedies: Mapping[Reason, str] | None = None,
    *,
    on_cpu: bool = False,
) -> list[str]:
    """The remedies of the reasons, the strongest first, then the cause's own; `own_remedies` are of this job.

    Args:
        on_cpu: the job has no GPU.
    """
    remedies = {**REMEDIES, **(REMEDIES_ON_CPU if on_cpu else {}), **(own_remedies or {})}
    actions = {**ACTIONS, **ACTIONS_ON_CPU} if on_cpu else ACTIONS
    if Reason.NO_WORKERS in reasons:  # more of none are none
        reasons = [reason for reason in reasons if reason not in (Reason.STARVED, Reason.BURSTY)]
    own = () if _INSTEAD_OF_ACTIONS.intersection(reasons) else actions.get(cause, ())
    return list(dict.fromkeys((*(remedies[reason] for reason in reasons), *own)))[:MAX_ACTIONS]


COSTS: dict[Cause, str] = {
    Cause.PIPELINE_BUBBLE: "the pipeline bubble takes",
    Cause.IMBALANCE: "uneven work takes",
    Cause.STRAGGLER: "a straggler takes",
    Cause.COMMUNICATION: "exposed communication takes",
    Cause.DATA_LOADING: "waiting for data takes",
    Cause.HOST_BOUND: "CPU launch delays take",
    Cause.SYNCHRONIZATION: "host synchronization takes",
    Cause.CHECKPOINT: "saving checkpoints takes",
    Cause.COPY: "exposed copies take",
    Cause.DEVICE_GAP: "GPU launch gaps take",
    Cause.LATENCY_BOUND: "kernels that leave most of the GPU empty take",
    Cause.PROFILER: "the profiler itself takes",
}
COSTS_ON_CPU: dict[Cause, str] = {
    Cause.HOST_BOUND: "Python and framework code between operators takes",
}
"""Instead of those above for a job without a GPU."""

COSTS_OF_REASON: dict[Reason, str] = {
    Reason.SHORT_KERNELS: "kernels under 20 us, too short to fill the GPU, take",
    Reason.FEW_BLOCKS: "kernels with too few blocks to fill the GPU take",
}
"""Instead of the cause's words where this is its first reason."""
