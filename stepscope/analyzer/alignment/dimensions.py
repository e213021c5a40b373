"""Which parallel dimension does a process group, or a single call, serve?

By the group's description (DeviceMesh, torchtitan, Megatron, vLLM name theirs), else by what the launching thread had
open (FSDP, DDP, functional collectives, context-parallel attention), else by the kind of traffic.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from stepscope.analyzer.alignment.call_words import P2P_KINDS
from stepscope.trace.columns import ProcessGroup

DIMENSIONS = ("tp", "pp", "dp", "ep", "cp")

_OF_DESCRIPTION = (
    # the particular above the general: an expert's data-parallel group is data parallel
    ("dp", re.compile(r"expert_data_parallel|data_modulo_expert|dp_mod_ep|(?:^|[_:])(?:efsdp|edp)(?:$|[_:\d])")),
    ("tp", re.compile(r"expert_tensor_parallel|(?:^|[_:])(?:etp|tp)(?:$|[:\d])|^tensor_model_parallel")),
    ("ep", re.compile(r"expert_model_parallel|expert_parallel|(?:^|[_:])ep(?:$|[:\d])")),
    ("dp", re.compile(r"data_parallel|(?:^|[_:])(?:fsdp|ddp|hsdp|dp)(?:$|[_:\d])|dp_shard|dp_replicate|zero_param")),
    ("cp", re.compile(r"context_parallel|ulysses|sequence_parallel|(?:^|[_:])cp(?:$|[:\d])")),
    (
        "pp",
        re.compile(r"pipeline_model_parallel|pipeline_parallel|(?:^|[_:])pp(?:$|[:\d])|^(?:position_)?embedding_group"),
    ),
)
_OF_SPAN = (
    (
        "cp",
        re.compile(r"ring_attention|context_parallel|AttnFuncWithCP|_scaled_dot_product_ring|ulysses", re.IGNORECASE),
    ),
    (
        "dp",
        re.compile(
            r"^FSDP::|FullyShardedDataParallel|DistributedDataParallel|torch\.distributed\.ddp"
            r"|^autograd::engine::evaluate_function: torch::autograd::AccumulateGrad|DeepSpeedZeroOptimizer"
        ),
    ),
    ("pp", re.compile(r"^PP:")),
    ("tp", re.compile(r"^_c10d_functional::|^(?:vllm|sglang)::(?:all_reduce|all_gather|reduce_scatter)")),
)
"""Spans of the launching thread that tell whom a call serves: the first that is open decides."""


def dimension_of(group: ProcessGroup) -> str | None:
    """tp, pp, dp, cp or ep from a description such as `mesh_tp` or a name such as `tp:0`; None where neither tells."""
    for text in (group.description.lower(), group.name.lower()):
        for dimension, pattern in _OF_DESCRIPTION:
            if pattern.search(text):
                return dimension
    return None


def dimension_of_members(groups: Iterable[ProcessGroup]) -> dict[tuple[int, ...], str]:
    """Members -> dimension, for the groups whose description tells and that have more than one member."""
    return {
        group.ranks: dimension
        for group in groups
        if group.ranks and len(group.ranks) > 1 and (dimension := dimension_of(group)) is not None
    }


def tells_dimension(span_name: str) -> bool:
    """Whether an open span of this name says whom a call serves."""
    return any(pattern.search(span_name) for _, pattern in _OF_SPAN)


def dimension_of_call(group: ProcessGroup | None, open_spans: Iterable[str], kind: str) -> str | None:
    """The dimension that one call serves, or None.

    Args:
        group: its group, where the trace tells.
        open_spans: names of the spans that the launching thread had open.
        kind: the call's kind. All-to-alls move experts' tokens (or embedding tables), point-to-point moves a
            pipeline's activations, unless a span says otherwise.
    """
    told = dimension_of(group) if group is not None else None
    if told is not None:
        return told
    names = list(open_spans)
    for dimension, pattern in _OF_SPAN:
        if any(pattern.search(name) for name in names) and not (dimension == "tp" and kind == "all_to_all"):
            return dimension
    if kind == "all_to_all":
        return "ep"
    return "pp" if kind in P2P_KINDS else None
