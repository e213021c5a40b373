"""Which operations are there in a pipelined step, and which of them talk to other ranks?"""

from __future__ import annotations

from typing import Final

FORWARD: Final = "forward"
BACKWARD: Final = "backward"
COMPUTE: Final = "-compute"

PARAMS_ALL_GATHER: Final = "params-all-gather"
GRADS_REDUCE_SCATTER: Final = "grads-reduce-scatter"
SEPARATE_GRADS_ALL_REDUCE: Final = "separate-grads-all-reduce"
LAYERNORM_GRADS_ALL_REDUCE: Final = "layernorm-grads-all-reduce"
EMBEDDING_GRADS_ALL_REDUCE: Final = "embedding-grads-all-reduce"
CLIP: Final = "optimizer-clip-main-grad"
OPTIMIZER: Final = "optimizer"
COLLECT_GARBAGE: Final = "gc"

POINT_TO_POINT: Final = ("forward-send", "forward-recv", "backward-send", "backward-recv")

ACROSS_REPLICAS: Final = (PARAMS_ALL_GATHER, GRADS_REDUCE_SCATTER, SEPARATE_GRADS_ALL_REDUCE, CLIP)
"""Every data-parallel replica takes part."""

COMMUNICATION: Final = frozenset(
    (*POINT_TO_POINT, *ACROSS_REPLICAS, LAYERNORM_GRADS_ALL_REDUCE, EMBEDDING_GRADS_ALL_REDUCE)
)
"""Kinds whose ideal is the median (a slow link is an outlier); of all others it is the mean (work is only moved)."""

KNOWN: Final = COMMUNICATION | {FORWARD + COMPUTE, BACKWARD + COMPUTE, OPTIMIZER, COLLECT_GARBAGE}
