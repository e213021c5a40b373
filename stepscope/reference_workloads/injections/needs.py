"""What must a job have for faults to mean anything?"""

from __future__ import annotations

import os

from stepscope.reference_workloads.injections.injection import Need

TRANSFORMER = Need("a transformer (gpt or llama)", lambda job: job.preset.image is None)
GPUS = Need("GPUs", lambda job: job.device_type == "cuda")
TIMED_COMPUTE = Need("GPUs, or simulated compute on CPU", lambda job: job.device_type == "cuda" or job.simulate_ms > 0)
DATA_PARALLEL = Need("dp > 1", lambda job: job.plan.dp > 1)
PIPELINE = Need("pp > 1", lambda job: job.plan.pp > 1)
PEERS = Need("dp > 1 or tp > 1, for ranks with the same work", lambda job: job.plan.dp * job.plan.tp > 1)
COMPANY = Need("more than one rank", lambda job: job.plan.world_size > 1)
WHOLE_GRADIENTS = Need(
    "DDP (zero 0 or 1), where gradients go in buckets",
    lambda job: job.plan.zero in {0, 1} and not job.plan.replicate,
)
SHARDED_MODEL = Need("zero 2 or 3", lambda job: job.plan.zero in {2, 3})
SHARDED_WEIGHTS = Need("zero 3, where each layer gathers its weights", lambda job: job.plan.zero == 3)
NO_COMPILER = Need("layers that are not compiled", lambda job: not job.recipe.compiles)
PINNED_CORES = Need("Linux, where a process can be kept on one core", lambda _: hasattr(os, "sched_setaffinity"))
