"""Causes that a verdict names, and the reasons that narrow them down."""

from __future__ import annotations

from enum import StrEnum


class Cause(StrEnum):
    """Why time (or a run) was lost; fleet classes and hang verdicts use the same words."""

    COMPUTE_BOUND = "compute_bound"
    MEMORY_BOUND = "memory_bound"
    LATENCY_BOUND = "latency_bound"
    COMMUNICATION = "communication"
    PIPELINE_BUBBLE = "pipeline_bubble"
    DATA_LOADING = "data_loading"
    HOST_BOUND = "host_bound"
    SYNCHRONIZATION = "synchronization"
    STRAGGLER = "straggler"
    IMBALANCE = "imbalance"
    CHECKPOINT = "checkpoint"
    COPY = "copy"
    DEVICE_GAP = "device_gap"
    PROFILER = "profiler"
    THROTTLED = "throttled"
    BEFORE_WINDOW = "before_window"
    UNEXPLAINED = "unexplained"
    HANG = "hang"
    OUT_OF_MEMORY = "out_of_memory"
    IDLE = "idle"
    INSUFFICIENT_EVIDENCE = "insufficient_evidence"


class Reason(StrEnum):
    """Which kind of a cause it is; docs/guides/verdicts.md tells the evidence and first remedy of each."""

    # data_loading
    STARVED = "starved"
    BURSTY = "bursty"
    NO_WORKERS = "no_workers"
    # host_bound
    DISPATCH = "dispatch"
    PYTHON = "python"
    GC = "gc"
    ALLOCATOR = "allocator"
    COMPILE = "compile"
    CPU_OPTIMIZER = "cpu_optimizer"
    CPU_LIMITED = "cpu_limited"
    # synchronization
    READS_VALUE = "reads_value"
    BLOCKING_COPY = "blocking_copy"
    EXPLICIT_SYNCHRONIZE = "explicit_synchronize"
    # pipeline_bubble, imbalance, straggler
    FEW_MICRO_BATCHES = "few_micro_batches"
    UNEVEN_STAGES = "uneven_stages"
    UNEVEN_BATCHES = "uneven_batches"
    EXTRA_WORK = "extra_work"
    LOW_CLOCK = "low_clock"
    SLOWER_KERNELS = "slower_kernels"
    # communication
    ARRIVALS_UNKNOWN = "arrivals_unknown"
    WRONG_TRANSPORT = "wrong_transport"
    SLOW_LINK = "slow_link"
    SMALL_MESSAGES = "small_messages"
    NO_OVERLAP = "no_overlap"
    NO_PREFETCH = "no_prefetch"
    # compute_bound, memory_bound, latency_bound, copy
    RECOMPUTE = "recompute"
    NO_TENSOR_CORES = "no_tensor_cores"
    INEFFICIENT_KERNELS = "inefficient_kernels"
    UNFUSED = "unfused"
    TINY_KERNELS = "tiny_kernels"
    PAGEABLE_MEMORY = "pageable_memory"
    # out_of_memory
    LEAK = "leak"
    FRAGMENTATION = "fragmentation"
    # hang
    HOST = "host"
    DEVICE = "device"
    DESYNC = "desync"
    MISSING_RANK = "missing_rank"
    # idle
    HELD = "held"
    # throttled
    HEAT = "heat"
    POWER_CAP = "power_cap"
    HARDWARE_SLOWDOWN = "hardware_slowdown"
    CLOCK_SETTING = "clock_setting"


HEALTHY_CAUSES = frozenset({Cause.COMPUTE_BOUND, Cause.MEMORY_BOUND})
"""Time under these is the job's own work: they are named only when no loss is large."""
