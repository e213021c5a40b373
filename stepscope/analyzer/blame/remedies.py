"""How is each cause said in words, and what should be done about it first?"""

from __future__ import annotations

from stepscope.core.causes import Cause

ACTIONS: dict[Cause, tuple[str, ...]] = {
    Cause.PIPELINE_BUBBLE: (
        "raise the number of micro-batches (the bubble shrinks as (P-1)/(M+P-1))",
        "or interleave: give each rank several smaller stages",
    ),
    Cause.IMBALANCE: ("re-cut the stages (or the batch) so that every rank computes for the same time",),
    Cause.STRAGGLER: (
        "compare clocks, temperature and running processes of the named ranks with their peers'",
        "take the node out of the job if it stays slower",
    ),
    Cause.COMMUNICATION: (
        "check that traffic takes the fastest link (NCCL_DEBUG=INFO: P2P over NVLink, IB with GDRDMA)",
        "overlap it with compute: larger buckets, prefetch, fewer small messages",
    ),
    Cause.DATA_LOADING: (
        "raise num_workers and prefetch_factor, pin memory",
        "move decoding or slow storage out of the step (cache, shard, local disk)",
    ),
    Cause.HOST_BOUND: (
        "launch less from Python: torch.compile or CUDA graphs, fused optimizer, larger batches",
        "check that the training processes own enough CPU cores",
    ),
    Cause.SYNCHRONIZATION: ("remove .item(), print(loss), nonzero and blocking copies from the step",),
    Cause.CHECKPOINT: ("save asynchronously (torch.distributed.checkpoint.async_save) or less often",),
    Cause.COPY: ("pin host memory, copy with non_blocking=True on a side stream",),
    Cause.DEVICE_GAP: ("look for cross-stream waits; CUDA graphs remove launch latency",),
    Cause.LATENCY_BOUND: ("fuse small kernels (torch.compile) or raise the batch size",),
    Cause.MEMORY_BOUND: ("fuse pointwise chains (torch.compile, fused norm and optimizer), use a smaller dtype",),
    Cause.COMPUTE_BOUND: ("healthy: the GPU computes; faster only through lower precision or less work",),
    Cause.PROFILER: ("capture fewer steps or without shapes and stacks; the profiler itself costs this much",),
    Cause.INSUFFICIENT_EVIDENCE: ("profile every rank for at least two whole steps, with CPU and GPU activities",),
}

COSTS: dict[Cause, str] = {
    Cause.PIPELINE_BUBBLE: "the pipeline's bubble costs",
    Cause.IMBALANCE: "uneven work costs",
    Cause.STRAGGLER: "a straggler costs",
    Cause.COMMUNICATION: "exposed communication costs",
    Cause.DATA_LOADING: "waiting for data costs",
    Cause.HOST_BOUND: "the host launches too slowly, which costs",
    Cause.SYNCHRONIZATION: "host synchronisation costs",
    Cause.CHECKPOINT: "saving checkpoints costs",
    Cause.COPY: "exposed copies cost",
    Cause.DEVICE_GAP: "gaps between queued kernels cost",
    Cause.LATENCY_BOUND: "kernels too small to fill the GPU take",
    Cause.PROFILER: "the profiler itself costs",
}
