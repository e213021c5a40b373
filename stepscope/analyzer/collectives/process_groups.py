"""Process groups: the parallel dimension of each, and its members where the trace does not name them.

The dimension (tp, pp, dp, cp, ep) comes from the group's description (DeviceMesh, torchtitan, Megatron, vLLM), else
from the spans open on the launching thread (FSDP, DDP, functional collectives, context-parallel attention), else from
the kind of traffic, else from the mesh: where only one dimension is larger than 1, all ranks together are its group.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from stepscope.analyzer.collectives.calls import P2P_KINDS, SYNCHRONIZING_KINDS, Call, collective_signature
from stepscope.analyzer.collectives.clocks import SAME_CLOCK_NS
from stepscope.core.documents.analysis import MeshSizes
from stepscope.trace.columns import ProcessGroup

_OF_DESCRIPTION = (
    # the specific before the general: an expert's data-parallel group is data parallel
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
    # these enclose a whole forward with other dimensions' calls; their own are gathers of weights, buffer broadcasts
    ("dp", re.compile(r"FullyShardedDataParallel"), _GATHERS),
    ("dp", re.compile(r"DistributedDataParallel"), frozenset({"broadcast"})),
    ("pp", re.compile(r"^PP:"), frozenset({"send", "recv", "p2p"})),
    ("tp", re.compile(r"^_c10d_functional::"), _NOT_EXCHANGES),
    ("tp", re.compile(r"^(?:vllm|sglang)::(?:all_reduce|all_gather|reduce_scatter)"), None),
)
"""Dimension of calls of these kinds (None: any) under spans of the launching thread; the innermost span decides."""


def dimension_of_group(group: ProcessGroup) -> str | None:
    """Parallel dimension of a process group (tp, pp, dp, cp, ep) by its description or name, or None."""
    for text in (group.description.lower(), group.name.lower()):
        for dimension, pattern in _OF_DESCRIPTION:
            if pattern.search(text):
                return dimension
    return None


def dimension_of_members(groups: Iterable[ProcessGroup]) -> dict[tuple[int, ...], str]:
    """Parallel dimension of process groups by members, for those of known dimension with more than one member."""
    return {
        group.ranks: dimension
        for group in groups
        if group.ranks and len(group.ranks) > 1 and (dimension := dimension_of_group(group)) is not None
    }


@lru_cache(maxsize=4096)
def names_dimension(span_name: str) -> bool:
    """Whether an open span of this name shows the parallel dimension of a collective."""
    return any(pattern.search(span_name) for _, pattern, _ in _OF_SPAN)


@lru_cache(maxsize=4096)
def dimension_of_call(group: ProcessGroup | None, open_spans: tuple[str, ...], kind: str) -> str | None:
    """Parallel dimension of one collective call, or None.

    Args:
        group: its group, where known.
        open_spans: names of the spans open on the launching thread, outermost first.
        kind: the call's kind. All-to-alls move experts' tokens (or embedding tables), point-to-point a pipeline's
            activations, unless a span shows otherwise.
    """
    by_group = dimension_of_group(group) if group is not None else None
    if by_group is not None:
        return by_group
    for name in reversed(open_spans):
        for dimension, pattern, kinds in _OF_SPAN:
            if (kinds is None or kind in kinds) and pattern.search(name):
                return dimension
    if kind == "all_to_all":
        return "ep"
    return "pp" if kind in P2P_KINDS else None


def with_only_mesh_dimension(calls: Iterable[Call], mesh: MeshSizes, world_size: int) -> list[Call]:
    """Calls with those of the process group of all ranks given the only dimension of the mesh, if unknown.

    A mesh whose only size differs from the world size is incomplete, and gives none.
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


def with_dimension_of_wrapper(calls: Iterable[Call]) -> list[Call]:
    """Calls with those called tensor parallel given to data parallelism, if a wrapper reduces over the same ranks.

    Functional collectives are any DTensor's: of tensor parallelism, and of a norm of sharded gradients. No two
    ranks are both tensor- and data-parallel to each other, and the spans of FSDP and DDP are theirs alone.
    """
    calls = list(calls)
    sharded = {call.group for call in calls if call.dimension == "dp" and call.group is not None}
    return [
        replace(call, dimension="dp") if call.dimension == "tp" and call.group in sharded else call for call in calls
    ]


def mesh_sizes_by_traffic(calls: Iterable[Call]) -> dict[str, int]:
    """Size by dimension: of the largest group of its collectives; for pp of the longest chain of ranks that pass
    activations on. Dimensions without traffic are absent."""
    sizes: dict[str, int] = {}
    pairs: set[tuple[int, int]] = set()
    for call in calls:
        if call.kind in P2P_KINDS:
            pairs |= {(peer.source, peer.destination) for peer in call.peers if call.dimension == "pp"}
        elif call.dimension is not None and call.group is not None and len(call.group) > 1:
            sizes[call.dimension] = max(sizes.get(call.dimension, 1), len(call.group))
    longest = max((len(chain) for chain in _connected(pairs)), default=0)
    return sizes | {"pp": longest} if longest > 1 else sizes


def _connected(pairs: Iterable[tuple[int, int]]) -> list[set[int]]:
    chains: list[set[int]] = []
    for pair in sorted(pairs):
        met = [chain for chain in chains if not chain.isdisjoint(pair)]
        chains = [chain for chain in chains if chain.isdisjoint(pair)] + [set(pair).union(*met)]
    return chains


MIN_COMMON_ENDS = 8
"""Least number of ends that must be equally far apart for ranks of different hosts to be one group."""

_Sequence = tuple[tuple[int, tuple[tuple[str, int | None], ...]], ...]
"""By step, the signatures of a rank's calls in order."""


def with_process_groups(
    calls_of_rank: Mapping[int, list[Call]], world_size: int, host_of_rank: Mapping[int, str | None]
) -> dict[int, list[Call]]:
    """Calls with unknown process groups filled in by the ends of the collectives.

    Idea: no member leaves a synchronizing collective before all have arrived, so the ends coincide within a group and
    not between groups. Ranks with the same sequence of calls on a stream are thus divided into groups. (Matching by
    order over all ranks would take the four tensor-parallel pairs of a job for one group of eight.) Nothing is filled
    in when a rank's trace is missing: it could be a member.

    Args:
        calls_of_rank: each rank's calls in issue order, on its own clock.
        world_size: ranks of the job.
        host_of_rank: ranks of one named host share a clock.
    """
    result = {rank: list(calls) for rank, calls in calls_of_rank.items()}
    if len(calls_of_rank) < max(world_size, 2):
        return result
    for places_of_rank in _by_stream(calls_of_rank):
        for ranks in _same_call_sequence(places_of_rank, calls_of_rank):
            for group in _groups_by_ends(ranks, places_of_rank, calls_of_rank, host_of_rank):
                for rank in group:
                    for place in places_of_rank[rank]:
                        result[rank][place] = replace(result[rank][place], group=group)
    return result


def _by_stream(calls_of_rank: Mapping[int, list[Call]]) -> list[dict[int, list[int]]]:
    """Indices of calls without a group by rank, one entry a stream; streams of different ranks correspond by number, or
    else by order."""
    streams: dict[int, dict[int, list[int]]] = {}
    for rank, calls in calls_of_rank.items():
        own: dict[int, list[int]] = defaultdict(list)
        for place, call in enumerate(calls):
            if call.group is None and call.kind not in P2P_KINDS:
                own[-1 if call.stream is None else call.stream].append(place)
        if own:
            streams[rank] = own
    numbers = {tuple(sorted(own)) for own in streams.values()}
    result: dict[int, dict[int, list[int]]] = defaultdict(dict)
    for rank, own in streams.items():
        for ordinal, number in enumerate(sorted(own)):
            result[number if len(numbers) == 1 else ordinal][rank] = own[number]
    return list(result.values())


def _same_call_sequence(
    places_of_rank: Mapping[int, list[int]], calls_of_rank: Mapping[int, list[Call]]
) -> list[list[int]]:
    """Ranks with the same sequence of calls in every step."""
    alike: dict[_Sequence, list[int]] = defaultdict(list)
    for rank, places in places_of_rank.items():
        by_step: dict[int, list[tuple[str, int | None]]] = defaultdict(list)
        for place in places:
            call = calls_of_rank[rank][place]
            if call.step >= 0:
                by_step[call.step].append(collective_signature(call))
        if by_step:
            alike[tuple((step, tuple(words)) for step, words in sorted(by_step.items()))].append(rank)
    return [ranks for ranks in alike.values() if len(ranks) > 1]


def _groups_by_ends(
    ranks: Sequence[int],
    places_of_rank: Mapping[int, list[int]],
    calls_of_rank: Mapping[int, list[Call]],
    host_of_rank: Mapping[int, str | None],
) -> list[tuple[int, ...]]:
    """Groups of at least two ranks whose ends coincide."""
    ends = {
        rank: np.array(
            [
                call.end_ns
                for call in (calls_of_rank[rank][place] for place in places_of_rank[rank])
                if call.step >= 0 and call.kind in SYNCHRONIZING_KINDS
            ],
            np.int64,
        )
        for rank in ranks
    }
    groups: list[list[int]] = []
    leaders = np.empty((len(ranks), len(ends[ranks[0]])), np.int64)  # the ends of each group's first rank
    for rank in ranks:
        host = host_of_rank.get(rank)
        same_host = np.array([host is not None and host == host_of_rank.get(group[0]) for group in groups], np.bool_)
        fits = np.flatnonzero(_coincide(ends[rank] - leaders[: len(groups)], same_host))
        if len(fits):
            groups[fits[0]].append(rank)
        else:
            leaders[len(groups)] = ends[rank]
            groups.append([rank])
    return [tuple(sorted(group)) for group in groups if len(group) > 1]


def _coincide(apart: npt.NDArray[np.int64], same_host: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Whether a rank leaves together with others: at the same time on one clock, at a constant distance on two.

    Args:
        apart: nanoseconds that the rank left later, shape (others, calls).
        same_host: whether they certainly share a clock, shape (others,).
    """
    num_calls = apart.shape[1]
    if not num_calls:
        return np.zeros(len(apart), np.bool_)
    middle = np.median(apart, axis=1)
    near = np.abs(middle) <= SAME_CLOCK_NS
    may = near | (~same_host & (num_calls >= MIN_COMMON_ENDS))
    rest = np.abs(apart[may] - np.where(near, 0.0, middle)[may, None])
    # nine in ten must coincide: single outliers (a preempted rank, a lost record) must not split a group
    place = int(np.ceil(0.9 * (num_calls - 1)))
    together = np.zeros(len(apart), np.bool_)
    together[may] = np.partition(rest, place, axis=1)[:, place] <= SAME_CLOCK_NS
    return together
