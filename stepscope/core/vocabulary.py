"""Vocabulary of verdicts: causes and the reasons that narrow them down, categories of GPU time, evidence and notices.

The reference page of causes is made from the strings below the members.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from stepscope.core.errors import printable


class Cause(StrEnum):
    """Why time (or a run) was lost; fleet classes and hang verdicts use the same words."""

    COMPUTE_BOUND = "compute_bound"
    """Arithmetic limits most of the time. Evidence: MFU, kernels table."""
    MEMORY_BOUND = "memory_bound"
    """Memory bandwidth limits most of the time. Evidence: kernels table."""
    LATENCY_BOUND = "latency_bound"
    """Low parallelism: kernels that are short, or have too few blocks to fill the GPU. Evidence: kernels table."""
    COMMUNICATION = "communication"
    """Transfers that no compute hides. Evidence: collectives table, with bus bandwidth and hidden share."""
    PIPELINE_BUBBLE = "pipeline_bubble"
    """The pipeline schedule leaves ranks without work. Evidence: structural part of the pipeline block."""
    DATA_LOADING = "data_loading"
    """The step waits for the data loader. Evidence: `data_loading` in the time breakdown."""
    HOST_BOUND = "host_bound"
    """The CPU launches kernels later than the GPU could run them. Evidence: time breakdown of the named rank."""
    SYNCHRONIZATION = "synchronization"
    """Blocking calls keep the CPU from running ahead of the GPU. Evidence: time breakdown."""
    STRAGGLER = "straggler"
    """The same rank computes longer than its peers in every step. Evidence: the named ranks."""
    IMBALANCE = "imbalance"
    """Some ranks (stages, larger or changing batches) have more work. Evidence: pipeline block, compute per rank."""
    CHECKPOINT = "checkpoint"
    """Saving a checkpoint stops training. Evidence: `checkpoint` in the time breakdown."""
    EVALUATION = "evaluation"
    """Evaluation between training steps. Evidence: phases of the step records."""
    WASTED_STEPS = "wasted_steps"
    """Steps whose work is thrown away: skipped updates, steps repeated after a restart. Evidence: step records."""
    CONTENTION = "contention"
    """Other processes take the GPU or the CPU away. Evidence: pauses inside kernels and in queued work, run delay."""
    COPY = "copy"
    """Copies that no compute hides. Evidence: time breakdown."""
    DEVICE_GAP = "device_gap"
    """The GPU starts queued kernels late. Evidence: time breakdown."""
    PROFILER = "profiler"
    """The profiler itself takes the time. Evidence: profiler distortion in the trace quality."""
    THROTTLED = "throttled"
    """The GPU runs below its highest clock. Fleet class, and cause of steps that are slow meanwhile; evidence: clocks,
    the driver's throttle reasons."""
    BEFORE_WINDOW = "before_window"
    """The delay began before the profiled steps. Evidence: time breakdown of the first step."""
    UNEXPLAINED = "unexplained"
    """Nothing in the traces explains the time. Evidence: trace quality."""
    HANG = "hang"
    """Ranks wait for each other and none goes on. Evidence: flight recorder dumps."""
    OUT_OF_MEMORY = "out_of_memory"
    """An allocation on the GPU failed. Evidence: memory snapshots."""
    IDLE = "idle"
    """No job works on the GPU. Fleet class."""
    INSUFFICIENT_EVIDENCE = "insufficient_evidence"
    """Not enough data for a verdict. Evidence: trace quality, warnings."""


class Reason(StrEnum):
    """Kind of a cause. Below each: the causes it narrows down, and its evidence."""

    STARVED = "starved"
    """`data_loading`: most batches are waited for, or too few are seen to find a period."""
    BURSTY = "bursty"
    """`data_loading`: waits come in bursts, every `period_of_waits` batches. With the number of workers as the
    period the workers are a little too slow; prefetching hides the rest."""
    NO_WORKERS = "no_workers"
    """`data_loading`: the training process makes the batches itself (`num_workers=0`)."""
    DISPATCH = "dispatch"
    """`host_bound`: operators or launches are open while the GPU idles until the next launch."""
    PYTHON = "python"
    """`host_bound`: nothing is open, Python runs between the operators. With recorded stacks the verdict names the
    function with most of that time, its file and line."""
    OPERATORS_UNKNOWN = "operators_unknown"
    """`host_bound`: the trace holds no operators (`activities=[CUDA]`), so what the CPU did between launches is not
    known."""
    GC = "gc"
    """`host_bound`: Python collects garbage (`Python GC` rows, `gc.collect()`, `prof.phase("gc")`)."""
    ALLOCATOR = "allocator"
    """`host_bound`: `cudaMalloc`, `cudaFree` or the like is open: the caching allocator asks the driver."""
    FIRST_LAUNCH = "first_launch"
    """`host_bound`: the first launch of a kernel in the trace takes 20 us or longer, as its module is loaded then."""
    BLOCKED_LAUNCH = "blocked_launch"
    """`host_bound`: calls that launch a kernel again take 20 us or longer: a lock of the driver, or no CPU core."""
    COMPILE = "compile"
    """`host_bound`: dynamo compiles or autotunes inside the step."""
    GRAPH_CAPTURE = "graph_capture"
    """`host_bound`: capture of a CUDA graph, whose kernels do not run meanwhile."""
    CPU_OPTIMIZER = "cpu_optimizer"
    """`host_bound`: the optimizer's step launches nothing, its parameters are offloaded."""
    CPU_LIMITED = "cpu_limited"
    """`host_bound`, `contention`, `data_loading`: more runnable ranks than cores, one core for all threads of a rank,
    threads that are ready to run and have no CPU (`run_delay_ns`), or by the agent's counters a cgroup whose CPU limit
    stops it, or whose threads wait for a CPU, for half of the loss or more."""
    SLOW_STORAGE = "slow_storage"
    """`data_loading`, `checkpoint`: by the agent's counters threads wait for storage (PSI of the cgroup, else of the
    machine, else I/O wait), for half of the loss or more and at the same time."""
    GPU_SHARED = "gpu_shared"
    """`contention`: kernels pause for milliseconds and queued work does not start: another process has the GPU. The
    agent's counters name it, or tell its memory."""
    OVERFLOW = "overflow"
    """`wasted_steps`: gradients overflow and the update is skipped (`overflow` in the step records)."""
    NON_FINITE = "non_finite"
    """`wasted_steps`: the loss is NaN or infinite, without a recorded overflow."""
    REPEATED = "repeated"
    """`wasted_steps`: a restart repeats steps that were done."""
    STEPS_GET_LONGER = "steps_get_longer"
    """`unexplained`: later steps take longer than earlier ones, and no step was profiled (`job_time.trend`)."""
    READS_VALUE = "reads_value"
    """`synchronization`: `.item()`, `nonzero`, boolean masks: the CPU reads what the GPU computed."""
    BLOCKING_COPY = "blocking_copy"
    """`synchronization`: `.to()` or `.cpu()` of unpinned memory, or without `non_blocking`."""
    EXPLICIT_SYNCHRONIZE = "explicit_synchronize"
    """`synchronization`: `torch.cuda.synchronize()`, event and stream synchronization."""
    NOT_STARTED = "not_started"
    """`device_gap`: most of it is gaps of 1 ms and longer in which queued work does not start: another process uses the
    GPU, or the trace does not hold what it runs. Confidence is at most 0.5."""
    FEW_MICRO_BATCHES = "few_micro_batches"
    """`pipeline_bubble`: structural part of the replay."""
    UNEVEN_STAGES = "uneven_stages"
    """`imbalance`: imbalance part of the replay."""
    UNEVEN_BATCHES = "uneven_batches"
    """`imbalance`: the slowest rank changes from step to step, or always works on larger tensors than its peers."""
    EXTRA_WORK = "extra_work"
    """`straggler`: most of the difference is kernels that the peers do not run."""
    LOW_CLOCK = "low_clock"
    """`straggler`: the same kernels, all slower by about the same factor: clock, power cap, heat. `straggler`,
    `throttled`: by the agent's counters the SM clock is as much lower as the loss needs, without a throttle reason."""
    SLOWER_KERNELS = "slower_kernels"
    """`straggler`: the same kernels, some of them slower."""
    ARRIVALS_UNKNOWN = "arrivals_unknown"
    """`communication`: a member's trace is missing or does not match, so waiting cannot be separated from transfer.
    From half of the communication time on, confidence is at most 0.5 and no gain is predicted."""
    WRONG_TRANSPORT = "wrong_transport"
    """`communication`: bus bandwidth of large messages is under a third of the fast link's and no more than PCIe's; or
    by the agent's counters hosts with InfiniBand send over Ethernet; or by the run's NCCL log a transport is slower
    than the expected one."""
    SLOW_LINK = "slow_link"
    """`communication`: bus bandwidth is under a third of the link's, but more than a slower transport would give; or by
    the run's NCCL log or topology NVLinks are fewer or slower than those of an equal pair."""
    SHARED_NIC = "shared_nic"
    """`communication`: by the run's NCCL log or topology more GPUs than network cards behind one switch."""
    SMALL_MESSAGES = "small_messages"
    """`communication`: half of the exposed transfer time is in messages that latency limits, not bandwidth."""
    NO_OVERLAP = "no_overlap"
    """`communication`: compute hides less than a tenth of gradient reductions or of tensor-parallel transfers."""
    NO_PREFETCH = "no_prefetch"
    """`communication`: compute hides less than a tenth of data-parallel gathers of weights."""
    RECOMPUTE = "recompute"
    """`compute_bound`: 15% or more of the executed FLOPs repeat forward work (HFU above MFU)."""
    NO_TENSOR_CORES = "no_tensor_cores"
    """`compute_bound`: matrix kernels outside the tensor cores (by name) of a GPU that has them take 5% of the
    time or more."""
    INEFFICIENT_KERNELS = "inefficient_kernels"
    """`compute_bound`, `memory_bound`: kernels over 20 us that reach under 40% of their roofline."""
    UNFUSED = "unfused"
    """`memory_bound`: three or more element-wise kernels in a row on a stream."""
    SHORT_KERNELS = "short_kernels"
    """`latency_bound`: kernels under 20 us, far from what the GPU could do in that time."""
    FEW_BLOCKS = "few_blocks"
    """`latency_bound`: longer kernels with fewer blocks than the GPU has multiprocessors."""
    TINY_KERNELS = "tiny_kernels"
    """`latency_bound`, `host_bound`, `device_gap`: at least half of the kernels take under 10 us."""
    PAGEABLE_MEMORY = "pageable_memory"
    """`copy`: most time of copies between CPU and GPU is from or to pageable memory."""
    LEAK = "leak"
    """`out_of_memory`: allocated memory grows by about the same amount in each step."""
    FRAGMENTATION = "fragmentation"
    """`out_of_memory`: the request is smaller than the memory that is reserved and not allocated."""
    CAPACITY = "capacity"
    """`out_of_memory`: more is needed at once than the GPU has."""
    PRIVATE_POOLS = "private_pools"
    """`out_of_memory`: enough is free, but in private pools (CUDA graphs), of which other tensors get nothing."""
    OTHER_PROCESS = "other_process"
    """`out_of_memory`: more than 15% of the GPU's memory is neither torch's nor free."""
    HOST = "host"
    """`hang`: the rank has called less than its peers and has nothing open: Python, data, a lock."""
    DEVICE = "device"
    """`hang`: the rank has called what its peers have finished, and its GPU does not finish it."""
    DESYNC = "desync"
    """`hang`: the rank called something else than the others, or waits in another group."""
    MISSING_RANK = "missing_rank"
    """`hang`: the rank left no flight recorder dump, and its last collective is behind its peers'."""
    HELD = "held"
    """`idle`: a process holds the GPU and runs nothing on it."""
    HEAT = "heat"
    """`throttled`, `straggler`: thermal slowdown, with the clock well below its highest, or its peers'."""
    POWER_CAP = "power_cap"
    """`throttled`, `straggler`: the power limit, with the clock well below its highest, or its peers'."""
    HARDWARE_SLOWDOWN = "hardware_slowdown"
    """`throttled`, `straggler`: a hardware slowdown or power brake, with the clock well below its highest, or its
    peers'."""
    CLOCK_SETTING = "clock_setting"
    """`throttled`, `straggler`: an application clock setting, with the clock well below its highest, or its peers'."""


class Change(StrEnum):
    """A known change to the same work that takes less time; what headroom is of."""

    TF32_PRODUCTS = "tf32_products"
    """Matrix products of float32 on the tensor cores, as TF32."""
    TF32_CONVOLUTIONS = "tf32_convolutions"
    """Convolutions of float32 on the tensor cores, as TF32."""
    AUTOCAST = "autocast"
    """bf16 autocast of work in float32."""
    FUSED_ATTENTION = "fused_attention"
    """Attention in one kernel that never stores the scores, instead of products, mask, softmax and dropout."""
    CHANNELS_LAST = "channels_last"
    """Images with the channels last in memory, as convolutions on tensor cores need them."""
    ALIGNED_SIZES = "aligned_sizes"
    """Sizes (vocabulary, hidden, channels) that tensor-core kernels fit."""
    FUSED_OPTIMIZER = "fused_optimizer"
    """The optimizer's update in one pass over the parameters."""
    FUSED_KERNELS = "fused_kernels"
    """Chains of element-wise kernels and norms generated as one kernel each."""
    NO_RECOMPUTATION = "no_recomputation"
    """Activations kept in memory that is free, instead of a second forward pass."""
    LARGER_BATCH = "larger_batch"
    """More samples a step in memory that is free, where kernels do not fill the GPU."""
    NO_SYNC = "no_sync"
    """Gradients of several micro-batches reduced once."""
    UNUSED_PARAMETERS = "unused_parameters"
    """Gradients reduced without a search for unused parameters."""
    LARGER_BUCKETS = "larger_buckets"
    """Gradients reduced in larger buckets."""
    REDUCED_PRECISION_GRADIENTS = "reduced_precision_gradients"
    """Gradients reduced in 16 bits."""
    SHARDING_UNITS = "sharding_units"
    """FSDP units of a layer's size each, whose parameters are gathered ahead."""


HEALTHY_CAUSES = frozenset({Cause.COMPUTE_BOUND, Cause.MEMORY_BOUND, Cause.LATENCY_BOUND})
"""Causes that are the job's own work: a verdict names them only where no loss is large."""


class TimeCategory(StrEnum):
    """What a rank's GPU time is spent on; mutually exclusive, and together the whole window."""

    COMPUTE_BOUND = "compute_bound"
    MEMORY_BOUND = "memory_bound"
    LATENCY_BOUND = "latency_bound"
    COMPUTE_OTHER = "compute_other"
    COMMUNICATION = "communication"
    WAIT = "wait"
    BUBBLE = "bubble"
    COMMUNICATION_UNSPLIT = "communication_unsplit"
    COPY = "copy"
    DATA_LOADING = "data_loading"
    CHECKPOINT = "checkpoint"
    SYNCHRONIZATION = "synchronization"
    HOST_BOUND = "host_bound"
    DEVICE_GAP = "device_gap"
    PROFILER = "profiler"
    IDLE_OTHER = "idle_other"


COMPUTE_CATEGORIES = (
    TimeCategory.COMPUTE_BOUND,
    TimeCategory.MEMORY_BOUND,
    TimeCategory.LATENCY_BOUND,
    TimeCategory.COMPUTE_OTHER,
)
"""Time in which a compute kernel runs."""

EXPOSED_COMMUNICATION_CATEGORIES = (
    TimeCategory.COMMUNICATION,
    TimeCategory.WAIT,
    TimeCategory.BUBBLE,
    TimeCategory.COMMUNICATION_UNSPLIT,
)
"""Time in which only communication runs."""

IDLE_CATEGORIES = (
    TimeCategory.DATA_LOADING,
    TimeCategory.CHECKPOINT,
    TimeCategory.SYNCHRONIZATION,
    TimeCategory.HOST_BOUND,
    TimeCategory.DEVICE_GAP,
    TimeCategory.PROFILER,
    TimeCategory.IDLE_OTHER,
)
"""Time in which nothing runs on the device."""

CATEGORY_ORDER: tuple[TimeCategory, ...] = tuple(TimeCategory)
"""The code of a segment is the index of its category in this tuple."""

CATEGORY_CODE = {category: code for code, category in enumerate(CATEGORY_ORDER)}


class GoodputClass(StrEnum):
    """What the GPU-time of a job went to, from first start to end; mutually exclusive, and together all of it."""

    PRODUCTIVE_TRAINING = "productive_training"
    """Steps whose result the job kept, without what the classes below take of them. Where a restart repeats steps, the
    repetition counts here and the first execution as lost."""
    START_UP = "start_up"
    """From the first start to the first step, and what the first steps take longer than later ones (compilation)."""
    NO_ATTEMPT = "no_attempt"
    """From the end of an attempt to the start of the next: the launcher restarts it, or it waits in a queue. From the
    last step on where the attempt was killed before it could record its end."""
    RESTART = "restart"
    """Start-up of a later attempt, with the loading of the checkpoint."""
    LOST_STEPS = "lost_steps"
    """Steps that were trained and not kept: a later attempt resumed from an earlier step."""
    SKIPPED_STEPS = "skipped_steps"
    """Steps without an update: gradients overflowed, or the loss is not finite."""
    CHECKPOINT = "checkpoint"
    """Writing of checkpoints, as far as training waits for it."""
    EVALUATION = "evaluation"
    """Evaluation between training steps."""
    DATA_LOADING = "data_loading"
    """Waits for batches that no queued work hides."""
    STALLS = "stalls"
    """What slow steps take longer than ordinary ones, without a record of why, and compilation later on."""
    PROFILING = "profiling"
    """What profiled steps take longer than others, and the writing of traces."""
    SHUT_DOWN = "shut_down"
    """From the last step of an attempt to its recorded end: the last checkpoint, an unfinished step."""
    UNKNOWN = "unknown"
    """No record says what the job did: lines of steps are missing, records overlap, or an attempt left none."""


@dataclass(frozen=True, slots=True)
class Notice:
    """A note on the input or the numbers.

    Attributes:
        code: its kind, for programs.
        message: one line for people.
    """

    code: str
    message: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "message", printable(self.message))


@dataclass(frozen=True, slots=True)
class Evidence:
    """One number that supports a statement.

    Attributes:
        metric: what the number is.
        value: in `unit`.
        unit: of `value` and `threshold`.
        threshold: from which the statement is made; None without one.
        ranks: that it is of; empty: all.
        span: (start ns, end ns) on the job's clock; None: all of the profiled time.
    """

    metric: str
    value: float
    unit: str
    threshold: float | None = None
    ranks: list[int] = field(default_factory=list)
    span: tuple[int, int] | None = None
