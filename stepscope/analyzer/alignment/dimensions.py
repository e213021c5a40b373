"""Which parallel dimension does a process group, or a single call, serve?

By the group's description (DeviceMesh, torchtitan, Megatron, vLLM name theirs), else by what the launching thread had
open (FSDP, DDP, functional collectives, context-parallel attention), else by the kind of traffic, else by the mesh:
where only one dimension has more than one place, all ranks together are its group.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import asdict, replace
from functools import lru_cache

from stepscope.analyzer.alignment.call import Call
from stepscope.analyzer.alignment.call_words import P2P_KINDS
from stepscope.core.analysis import MeshSizes
from stepscope.trace.columns import ProcessGroup

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
_GATHERS = frozenset({"all_gather", "reduce_scatter"})
_NOT_EXCHANGES = frozenset(
    {"all_reduce", "all_gather", "reduce_scatter", "broadcast", "barrier", "send", "recv", "p2p"}
)
_OF_SPAN: tuple[tuple[str, re.Pattern[str], frozenset[str] | None], ...] = (
    (
        "cp",
        re.compile(r"ring_attention|context_parallel|AttnFuncWithCP|_scaled_dot_product_ring|ulysses", re.IGNORECASE),
        None,
    ),
    ("dp", re.compile(r"^FSDP::|torch\.distributed\.ddp|DeepSpeedZeroOptimizer"), _NOT_EXCHANGES),
    ("dp", re.compile(r"^autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"), _NOT_EXCHANGES),
    # these hold a whole forward, other dimensions' calls too; their own are gathers of weights, broadcasts of buffers
    ("dp", re.compile(r"FullyShardedDataParallel"), _GATHERS),
    ("dp", re.compile(r"DistributedDataParallel"), frozenset({"broadcast"})),
    ("pp", re.compile(r"^PP:"), frozenset({"send", "recv", "p2p"})),
    ("tp", re.compile(r"^_c10d_functional::"), _NOT_EXCHANGES),
    ("tp", re.compile(r"^(?:vllm|sglang)::(?:all_reduce|all_gather|reduce_scatter)"), None),
)
"""Spans of the launching thread that tell whom a call of these kinds (None: of any) serves; the innermost decides."""


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


@lru_cache(maxsize=4096)
def tells_dimension(span_name: str) -> bool:
    """Whether an open span of this name says whom a call serves."""
    return any(pattern.search(span_name) for _, pattern, _ in _OF_SPAN)


@lru_cache(maxsize=4096)
def dimension_of_call(group: ProcessGroup | None, open_spans: tuple[str, ...], kind: str) -> str | None:
    """The dimension that one call serves, or None.

    Args:
        group: its group, where the trace tells.
        open_spans: names of the spans that the launching thread had open, outermost first.
        kind: the call's kind. All-to-alls move experts' tokens (or embedding tables), point-to-point moves a
            pipeline's activations, unless a span says otherwise.
    """
    told = dimension_of(group) if group is not None else None
    if told is not None:
        return told
    for name in reversed(open_spans):
        for dimension, pattern, kinds in _OF_SPAN:
            if (kinds is None or kind in kinds) and pattern.search(name):
                return dimension
    if kind == "all_to_all":
        return "ep"
    return "pp" if kind in P2P_KINDS else None


def by_only_dimension(calls: Iterable[Call], mesh: MeshSizes, world_size: int) -> list[Call]:
    """Calls that nothing tells the dimension of serve the only one that the mesh has, where all ranks take part.

    A mesh whose only size is not that of the job is told in part: there it is not known.
    """
    large = [(dimension, size) for dimension, size in asdict(mesh).items() if size is not None and size > 1]
    if [size for _, size in large] != [world_size]:
        return list(calls)
    dimension = large[0][0]
    return [
        replace(call, dimension=dimension)
        if call.dimension is None and call.group is not None and len(call.group) == world_size
        else call
        for call in calls
    ]
