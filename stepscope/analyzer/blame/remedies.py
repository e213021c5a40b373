"""Remedies: the first things to try for each cause and reason."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from stepscope.analyzer.blame.advice import Advice
from stepscope.core.vocabulary import Cause, Evidence, Reason


class Remedy(NamedTuple):
    """An action for a cause or a reason, as a template with knobs in braces.

    A part in brackets is left out where a knob in it is set already; elsewhere such a knob leaves out the remedy.

    Attributes:
        when: whether it is of any use to a job.
        is_general: it is of use where no reason is known.
    """

    text: str
    when: Callable[[Advice], bool] = bool
    is_general: bool = False


_WORKERS = (
    Remedy(
        "make the batches in a DataLoader(num_workers=4), or in a thread: now the training process does",
        lambda advice: advice.has_plain_iterable,
    ),
    Remedy(
        "take whole batches from the dataset, which lies in memory (batch_size=None and a BatchSampler as the sampler)",
        lambda advice: advice.has_default_batches,
    ),
    Remedy(
        "{num_workers}, each with its part of the stream (torch.utils.data.get_worker_info)",
        lambda advice: advice.loader is not None and advice.loader.kind == "iterable",
    ),
)
"""Of batches that come late where more workers alone are no remedy."""

_KEPT_ON_GPU = Remedy(
    "keep what .cpu(), .numpy() and .tolist() copy on the GPU, or copy it every N steps (non_blocking=True)",
    lambda advice: advice.copies_to_host,
)

ACTIONS: dict[Cause, str | tuple[Remedy, ...]] = {
    Cause.PIPELINE_BUBBLE: "{interleaving}, which leave a smaller bubble",
    Cause.IMBALANCE: (
        Remedy("re-cut the stages (or the batch) so that every rank computes for the same time", is_general=True),
    ),
    Cause.STRAGGLER: "take the node out of the job if it stays slower",
    Cause.COMMUNICATION: (
        Remedy("{no_sync}: each of them reduces all gradients now", lambda advice: advice.reduces_often),
        Remedy(
            "{no_unused_search}: all parameters are used, or static_graph=True",
            lambda advice: any(one.find_unused_parameters for one in advice.settings.ddp),
        ),
        Remedy(
            "{no_sync}, so that gradients are reduced once; {bucket_size}",
            lambda advice: not advice.settings.fsdp and not advice.reduces_often,
            is_general=True,
        ),
        Remedy("{fsdp_units}[, and {fsdp_prefetch}]", lambda advice: bool(advice.settings.fsdp)),
        Remedy(
            "check that traffic takes the fastest link (NCCL_DEBUG=INFO: P2P over NVLink, IB with GDRDMA)",
            lambda advice: advice.backend in {"", "nccl"},
        ),
        Remedy(
            "check which network gloo uses (GLOO_SOCKET_IFNAME): it sends over TCP, also inside of a machine",
            lambda advice: advice.backend == "gloo",
        ),
    ),
    Cause.DATA_LOADING: "move decoding or slow storage out of the step (cache, shard, local disk)",
    Cause.HOST_BOUND: (
        Remedy(
            "check that the training processes own enough CPU cores",
            lambda advice: not advice.affinity and not advice.has_free_cores,
        ),
        Remedy(
            "check that the cores that a training process may use ({affinity}) are its own",
            lambda advice: bool(advice.affinity) and not advice.has_free_cores,
        ),
    ),
    Cause.SYNCHRONIZATION: (
        Remedy("remove .item(), print(loss), nonzero and blocking copies from the step", is_general=True),
    ),
    Cause.CHECKPOINT: (
        Remedy(
            "{save_interval}, or save asynchronously", lambda advice: advice.library in {"transformers", "lightning"}
        ),
        Remedy("{save_interval}", lambda advice: advice.library not in {"transformers", "lightning"}),
    ),
    Cause.EVALUATION: "{eval_interval}, on fewer batches, or in a job of its own",
    Cause.WASTED_STEPS: "count useful steps, not steps: loss scale, non-finite losses, restarts",
    Cause.CONTENTION: (
        Remedy("find the other processes: top shows who uses the CPUs", lambda advice: advice.on_cpu),
        Remedy(
            "find the other processes: nvidia-smi and top show who uses the GPU and the CPUs",
            lambda advice: not advice.on_cpu,
        ),
    ),
    Cause.COPY: (
        Remedy(
            "pin host memory, copy with non_blocking=True on a side stream",
            lambda advice: not advice.copies_to_host,
            is_general=True,
        ),
    ),
    Cause.DEVICE_GAP: "look for cross-stream waits; CUDA graphs remove launch latency",
    Cause.LATENCY_BOUND: "see the kernels table for the operators and grids of these kernels",
    Cause.MEMORY_BOUND: (
        Remedy("{compile}, which fuses pointwise chains[; {fused_optimizer}]", lambda advice: not advice.is_compiled),
        Remedy(
            "{bf16}, which halves the bytes of activations",
            lambda advice: not advice.on_cpu and not advice.computes_in_16_bits,
        ),
    ),
    Cause.COMPUTE_BOUND: (
        Remedy(
            "see which operators take the most time, and whether more threads shorten them",
            lambda advice: advice.on_cpu,
        ),
        Remedy(
            "{bf16}, or less work per step (the GPU computes most of the time)",
            lambda advice: not advice.on_cpu and not advice.computes_in_16_bits,
        ),
        Remedy(
            "less work per step: the GPU computes most of the time, in 16 bits",
            lambda advice: not advice.on_cpu and advice.computes_in_16_bits,
        ),
    ),
    Cause.PROFILER: "profile fewer steps: the profiler itself takes this time",
    Cause.INSUFFICIENT_EVIDENCE: "profile every rank for at least two whole steps, with CPU and GPU activities",
}
"""Of each cause, those that are of use, in this order."""

REMEDIES: dict[Reason, str | tuple[Remedy, ...]] = {
    Reason.STARVED: (*_WORKERS, Remedy("{num_workers}, {prefetch_factor}")),
    Reason.BURSTY: (*_WORKERS, Remedy("{num_workers}, {prefetch_factor}: batches come in bursts, then none")),
    Reason.NO_WORKERS: (*_WORKERS, Remedy("{num_workers}: the training process makes every batch itself")),
    Reason.DISPATCH: (
        Remedy(
            "{compile}[, {fused_optimizer}], larger batches (fewer operators from Python)",
            lambda advice: advice.on_cpu and not advice.is_compiled,
        ),
        Remedy(
            "{fused_optimizer}: the optimizer launches {optimizer_launches} of the kernels[; then {cuda_graphs}]",
            lambda advice: advice.has_slow_optimizer and not advice.on_cpu,
        ),
        Remedy(
            "find the graph breaks (TORCH_LOGS=graph_breaks): parts of the step run uncompiled; larger batches",
            lambda advice: advice.on_cpu or advice.has_cuda_graphs,
        ),
        Remedy("{cuda_graphs}: CUDA graphs, of which the compiled step has none", lambda advice: advice.is_compiled),
        Remedy("{cuda_graphs} (CUDA graphs)[, {fused_optimizer}], or {batch_size}: fewer launches from Python"),
    ),
    Reason.PYTHON: (
        Remedy(
            "move Python between the operators out of the step (logging, metrics, tokenizing): see its functions",
            lambda advice: advice.with_stacks,
        ),
        Remedy("profile(with_stack=True) shows which Python runs between the operators"),
    ),
    Reason.OPERATORS_UNKNOWN: "profile with ProfilerActivity.CPU as well, to see what the CPU does between launches",
    Reason.GC: "{freeze_garbage}: garbage collection stops the step",
    Reason.ALLOCATOR: "{empty_cache}; PYTORCH_ALLOC_CONF=expandable_segments:True, or fixed sequence lengths",
    Reason.FIRST_LAUNCH: "warm up before profiling: modules load on first use (CUDA_MODULE_LOADING=EAGER: at start)",
    Reason.BLOCKED_LAUNCH: "find what holds launches up: cudaMalloc or cudaFree on other threads, too few CPU cores",
    Reason.COMPILE: "torch.compile(dynamic=True) for sizes that change; TORCH_LOGS=recompiles names them",
    Reason.GRAPH_CAPTURE: "profile replays of the CUDA graph instead of its capture, which happens once",
    Reason.CPU_OPTIMIZER: "{optimizer_on_gpu} (a higher ZeRO level instead of offloading), or overlap it",
    Reason.CPU_LIMITED: (
        Remedy(
            "give each training process cores of its own (taskset, --cpus-per-task): CPU affinity now {affinity}",
            lambda advice: bool(advice.affinity),
        ),
        Remedy("give each training process cores of its own (CPU affinity, --cpus-per-task, cgroup)"),
    ),
    Reason.SLOW_STORAGE: "put the data or the checkpoints on faster storage (local NVMe, cache, larger shards)",
    Reason.GPU_SHARED: "end the other process on this GPU, or give the job a GPU of its own (nvidia-smi lists them)",
    Reason.OVERFLOW: "{loss_scale}, a lower first loss scale[; or {bf16}, which needs none]",
    Reason.NON_FINITE: "find the first loss that is not finite (stepscope steps): batch, learning rate, clipping",
    Reason.REPEATED: "save checkpoints more often, so that a restart repeats fewer steps; find why it restarts",
    Reason.STEPS_GET_LONGER: "find what grows with the steps (lists, kept graphs, caches); profile early and late ones",
    Reason.READS_VALUE: (
        Remedy(
            "[{filter_of_losses}; ]call .item() on losses and norms every N steps only",
            lambda advice: advice.library == "transformers",
        ),
        Remedy("call .item() on losses and norms every N steps only; replace nonzero and masks by where()"),
    ),
    Reason.BLOCKING_COPY: (
        _KEPT_ON_GPU,
        Remedy("[{pin_memory}, and ]copy with .to(device, non_blocking=True)"),
    ),
    Reason.EXPLICIT_SYNCHRONIZE: "drop torch.cuda.synchronize() from the step; time with events that are read later",
    Reason.NOT_STARTED: "look for other processes on the GPU (nvidia-smi): queued kernels start 1 ms late and later",
    Reason.FEW_MICRO_BATCHES: "{micro_batches}: the bubble shrinks as (P-1)/(M+P-1)",
    Reason.UNEVEN_STAGES: "re-cut the stages: give the slowest one fewer layers",
    Reason.UNEVEN_BATCHES: "even out the batches: pack sequences, balance experts",
    Reason.EXTRA_WORK: "find the kernels that the named rank alone runs (kernels table)",
    Reason.LOW_CLOCK: "compare clocks, power cap and temperature of the named rank's GPU with its peers'",
    Reason.SLOWER_KERNELS: "look for other processes on that GPU, and for shapes that differ from the peers'",
    Reason.WRONG_TRANSPORT: "NCCL_DEBUG=INFO shows each channel's path: find why traffic leaves the fast link",
    Reason.SLOW_LINK: "look for a degraded link or shared bandwidth on these ranks (nvidia-smi nvlink -s, other jobs)",
    Reason.SHARED_NIC: "use a network card per GPU (NCCL_IB_HCA names them), or GPUs behind different switches",
    Reason.SMALL_MESSAGES: "{bucket_size}: fewer, larger messages; coalesced or fused collectives",
    Reason.NO_OVERLAP: "[{overlap_reduction}; ]hide tensor parallelism by async TP",
    Reason.NO_PREFETCH: "[{fsdp_prefetch}: ]gather weights ahead; limit_all_gathers off",
    Reason.ARRIVALS_UNKNOWN: "profile every rank in the same steps, so that waiting can be told from transfer",
    Reason.RECOMPUTE: "{no_recompute}, while memory allows",
    Reason.NO_TENSOR_CORES: (
        Remedy("{tf32} for TF32 (Ampere on)[, or {bf16}]"),
        Remedy("{bf16}"),
        Remedy("find the operators in 32 or 64 bits (kernels table), which TF32 or autocast leave out"),
    ),
    Reason.INEFFICIENT_KERNELS: "pad odd sizes to multiples of 8: see the kernels table for the shapes",
    Reason.UNFUSED: (
        Remedy("{attention}[, {compile} for element-wise chains]", lambda advice: advice.has_eager_attention),
        Remedy("[{fused_optimizer}; ]see the kernels table for chains left", lambda advice: advice.is_compiled),
        Remedy("{compile} for the element-wise chains[; {fused_optimizer}]"),
        Remedy("see the kernels table for chains left"),
    ),
    Reason.SHORT_KERNELS: "fuse them[ ({compile})], or give each more work ({batch_size}, several tensors at once)",
    Reason.FEW_BLOCKS: "see the kernels table: which operators launch fewer blocks than the GPU has multiprocessors",
    Reason.TINY_KERNELS: "[{cuda_graphs} (CUDA graphs), fusion, or ]{batch_size}",
    Reason.PAGEABLE_MEMORY: (
        _KEPT_ON_GPU,
        Remedy(
            "copy with .to(device, non_blocking=True) from pinned memory: the loader pins its batches, the copied "
            "tensors are others",
            lambda advice: advice.loader is not None and bool(advice.loader.pin_memory),
        ),
        Remedy("[{pin_memory} in the loader and ].to(device, non_blocking=True)"),
    ),
    Reason.LEAK: "find who keeps tensors over steps (memory snapshot): detach() what is collected, clear lists",
    Reason.FRAGMENTATION: "expandable_segments:True (PYTORCH_ALLOC_CONF), or fixed sequence lengths",
    Reason.CAPACITY: "smaller micro-batches, sharded state (ZeRO, FSDP) or recomputed activations",
    Reason.PRIVATE_POOLS: "one pool for all CUDA graphs (torch.cuda.graph(..., pool=...)), or fewer shapes",
    Reason.OTHER_PROCESS: "end the other processes on this GPU (nvidia-smi lists them)",
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
"""What to try first, by reason: the first that is of use."""


def templates_of(entry: str | tuple[Remedy, ...]) -> list[str]:
    """All texts of a remedy or of actions, with knobs in braces."""
    return [entry] if isinstance(entry, str) else [remedy.text for remedy in entry]


def _useful(entry: str | tuple[Remedy, ...], advice: Advice, *, has_reasons: bool = False) -> list[str]:
    """Texts of the remedies that are of use to a job, without what is set already."""
    remedies = (Remedy(entry),) if isinstance(entry, str) else entry
    used = [remedy.text for remedy in remedies if remedy.when(advice) and not (remedy.is_general and has_reasons)]
    texts = [_without_set(text, advice) for text in used]
    return [text for text in texts if not any(map(advice.is_set, _knobs_of(text)))]


_KNOB = re.compile(r"\{(\w+)\}")
_PART = re.compile(r"\[([^\]]*)\]")


def _without_set(template: str, advice: Advice) -> str:
    """A template without brackets, and without those parts in them whose knobs are set."""
    return _PART.sub(lambda part: "" if any(map(advice.is_set, _knobs_of(part[1]))) else part[1], template)


def _knobs_of(template: str) -> set[str]:
    return set(_KNOB.findall(template))


def remedy_text(reason: Reason, advice: Advice | None = None) -> str:
    """The remedy of a reason for a job; empty where what it says is done already."""
    advice = advice or Advice()
    return _template(reason, advice).format_map(advice.options)


def _template(reason: Reason, advice: Advice) -> str:
    return next(iter(_useful(REMEDIES[reason], advice)), "")


def functions_in(evidence: Iterable[Evidence]) -> list[Evidence]:
    """Evidence of functions in which the host was late or blocked, whose file, line and name follow the colon."""
    return [item for item in evidence if item.metric.partition(": ")[0].endswith("_in_function")]


def remedies_by_function(evidence: Iterable[Evidence]) -> dict[Reason, str]:
    """Remedies that name the function in which most of the host's time went, where stacks were recorded."""
    functions = functions_in(evidence)
    if not functions:
        return {}
    where = f"{functions[0].metric.partition(': ')[2]} ({functions[0].value:.0%} of this delay)"
    return {Reason.PYTHON: f"shorten {where}", Reason.READS_VALUE: f"{remedy_text(Reason.READS_VALUE)}: see {where}"}


_INSTEAD_OF_ACTIONS = frozenset({Reason.NOT_STARTED})
"""Reasons for which the cause's own remedies are wrong."""

MAX_ACTIONS = 3

_REMAINING_SHARE = 0.05
"""Share of training time that checkpoints or evaluations may take after the change of their interval."""


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
    advice: Advice | None = None,
    share: float | None = None,
    interval: int | None = None,
) -> list[str]:
    """The remedies of the reasons, the strongest first, then the cause's own; `own_remedies` are of this job.

    Args:
        share: of training time that the cause takes; None where unknown.
        interval: present number of steps between two checkpoints or evaluations; None where unknown.
    """
    advice, own = advice or Advice(), own_remedies or {}
    if Reason.NO_WORKERS in reasons:  # more of none are none
        reasons = [reason for reason in reasons if reason not in (Reason.STARVED, Reason.BURSTY)]
    longer = None if share is None or share >= 1 else math.ceil(share / (1 - share) / _REMAINING_SHARE)
    taken, of_reasons = set[str](), []
    for reason in reasons:
        knobs = _knobs_of(_template(reason, advice))
        if not knobs or not knobs <= taken:
            of_reasons.append(own.get(reason) or remedy_text(reason, advice))
        taken |= knobs
    rest = () if _INSTEAD_OF_ACTIONS.intersection(reasons) else ACTIONS.get(cause, ())
    options = advice.options.less_often(longer, interval)
    useful = _useful(rest, advice, has_reasons=bool(reasons))
    of_cause = [text.format_map(options) for text in useful if not _knobs_of(text) or not _knobs_of(text) <= taken]
    return list(dict.fromkeys(filter(None, (*of_reasons, *of_cause))))[:MAX_ACTIONS]


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
    Cause.PROFILER: "the profiler itself takes",
}
COSTS_ON_CPU: dict[Cause, str] = {
    Cause.HOST_BOUND: "Python and framework code between operators takes",
}
"""Instead of those above for a job without a GPU."""
