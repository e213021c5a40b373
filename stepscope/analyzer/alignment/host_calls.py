"""Communication calls of a rank without a device (gloo), and when each finished.

gloo records no arguments. The operators on the main thread tell what was asked for and when; the backend's spans on
its worker threads tell when it was done; the enclosing span tells which group it was for.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from stepscope.analyzer.alignment.call_arguments import LaunchContext, arguments_of, launch_contexts
from stepscope.analyzer.alignment.calls import BEFORE_STEPS, P2P_KINDS, Call, PeerCall
from stepscope.analyzer.alignment.matching import Matches
from stepscope.analyzer.alignment.process_groups import dimension_of, dimension_of_call
from stepscope.analyzer.element_types import bytes_of_dtype
from stepscope.analyzer.ledger.steps import HostSteps
from stepscope.trace.columns import NONE, Category, TraceColumns

_KIND_OF_OPERATOR = {
    "c10d::allreduce_": "all_reduce",
    "c10d::allreduce_coalesced_": "all_reduce",
    "c10d::_allgather_base_": "all_gather",
    "c10d::allgather_": "all_gather",
    "c10d::allgather_into_tensor_coalesced_": "all_gather",
    "c10d::_reduce_scatter_base_": "reduce_scatter",
    "c10d::reduce_scatter_": "reduce_scatter",
    "c10d::alltoall_": "all_to_all",
    "c10d::alltoall_base_": "all_to_all",
    "c10d::barrier": "barrier",
    "c10d::broadcast_": "broadcast",
    "c10d::reduce_": "reduce",
    "c10d::gather_": "gather",
    "c10d::scatter_": "scatter",
    "c10d::send": "send",
    "c10d::recv_": "recv",
}
_BACKEND_SPANS = {
    "all_reduce": ("gloo:all_reduce",),
    "all_gather": ("gloo:all_gather",),
    "reduce_scatter": ("gloo:reduce_scatter", "gloo:all_reduce"),
    "all_to_all": ("gloo:all_to_all", "gloo:alltoall"),
    "barrier": ("gloo:barrier",),
    "broadcast": ("gloo:broadcast",),
    "reduce": ("gloo:reduce",),
    "gather": ("gloo:gather",),
    "scatter": ("gloo:scatter",),
    "send": ("gloo:send",),
    "recv": ("gloo:recv",),
}
"""Where the backend does the work; gloo's reduce_scatter runs as an all_reduce."""

_ONLY_INPUT = "c10d::allgather_"
"""Records what each member gives, not what all get."""


@dataclass(frozen=True, slots=True)
class _Operator:
    row: int
    kind: str
    context: LaunchContext
    dimension: str | None


def host_calls(trace: TraceColumns, rank: int, steps: HostSteps, lane: int) -> list[Call]:
    """The calls of the main thread in issue order."""
    operators = _operators(trace, lane)
    done = _completion(trace, operators)
    place = steps.position_of(trace.start_ns[np.array([op.row for op in operators], np.intp)])
    ordinals: dict[tuple[int, int, int], int] = {}
    calls = []
    for operator, (end, span), where in zip(operators, done, place, strict=True):
        step = int(steps.index[where]) if where != NONE else BEFORE_STEPS
        group = _group(trace, rank, operator.dimension)
        start = int(trace.start_ns[operator.row])
        root = operator.context.root
        calls.append(
            Call(
                rank=rank,
                start_ns=start,
                end_ns=max(end, start),
                step=step,
                group=group,
                kind=operator.kind,
                num_bytes=_num_bytes(trace, operator, span, group),
                peers=_peer(operator, rank, group, step, ordinals),
                described=True,
                root=group[root] if root is not None and group is not None and root < len(group) else None,
                dimension=operator.dimension,
            )
        )
    return _awaited(calls)


def _awaited(calls: list[Call]) -> list[Call]:
    """Point-to-point calls from when the thread waits for them: not before it is done waiting for an earlier one.

    gloo closes a call's span when the thread has waited for it, however long the bytes have been there, and a thread
    waits for one call at a time.
    """
    awaited = list(calls)
    done = 0
    for place in sorted(range(len(calls)), key=lambda place: calls[place].end_ns):
        if calls[place].kind in P2P_KINDS:
            awaited[place] = replace(calls[place], awaited_ns=done)
            done = calls[place].end_ns
    return awaited


def _operators(trace: TraceColumns, lane: int) -> list[_Operator]:
    """The communication operators of the main thread with the parallel dimension that their context suggests."""
    kind_of_name = {i: _KIND_OF_OPERATOR[name] for i, name in enumerate(trace.names) if name in _KIND_OF_OPERATOR}
    rows = trace.rows_of(Category.CPU_OP, Category.USER_ANNOTATION)
    rows = rows[(trace.lane[rows] == lane) & np.isin(trace.name[rows], list(kind_of_name))]
    rows = rows[np.lexsort((-trace.end_ns[rows], trace.start_ns[rows]))]
    contexts = launch_contexts(trace, np.full(len(rows), lane), trace.start_ns[rows])
    found = []
    for row, context in zip(rows.tolist(), contexts, strict=True):
        kind = kind_of_name[int(trace.name[row])]
        found.append(_Operator(row, kind, context, dimension_of_call(None, context.open_spans, kind)))
    return found


def _completion(trace: TraceColumns, operators: list[_Operator]) -> list[tuple[int, int]]:
    """Of each operator: when its work was done, and the row of its backend's span (or NONE): the first free span that
    starts no earlier than the operator. An operator that stays open longer than its span was kept off its core."""
    free: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
    for row in trace.rows_of(Category.USER_ANNOTATION).tolist():
        name = trace.names[int(trace.name[row])]
        if name.startswith("gloo:"):
            free[name].append((int(trace.start_ns[row]), int(trace.end_ns[row]), row))
    waiting = {name: deque(sorted(spans)) for name, spans in free.items()}
    ends = []
    for operator in operators:
        start, end = int(trace.start_ns[operator.row]), int(trace.end_ns[operator.row])
        spans = next((waiting[name] for name in _BACKEND_SPANS[operator.kind] if waiting.get(name)), None)
        while spans and spans[0][0] < start:
            spans.popleft()  # its operator lies before the trace begins
        if spans:
            _, span_end, row = spans.popleft()
            ends.append((span_end, row))
        else:
            ends.append((end, NONE))
    return ends


def _num_bytes(trace: TraceColumns, operator: _Operator, span: int, group: tuple[int, ...] | None) -> int | None:
    """The larger of input and output. Lists of tensors record no type; the backend's span does."""
    told = operator.context.num_bytes
    if told is None:
        elements = max((_num_elements(shape) for shape in arguments_of(trace, operator.row)[0]), default=0)
        types = arguments_of(trace, span)[1] if span != NONE else []
        size = bytes_of_dtype(types[0]) if types else None
        told = elements * size if elements and size is not None else None
    if told is not None and trace.names[int(trace.name[operator.row])] == _ONLY_INPUT:
        return told * len(group) if group is not None else None
    return told


def _num_elements(shape: Any) -> int:
    """Of a tensor, or of all tensors of a list."""
    if not isinstance(shape, list) or not shape:
        return 0
    if all(isinstance(extent, int) for extent in shape):
        return prod(shape)
    return sum(_num_elements(part) for part in shape)


def _group(trace: TraceColumns, rank: int, dimension: str | None) -> tuple[int, ...] | None:
    """The group that serves a dimension: by description (mesh_tp, ...), else the only one there is."""
    groups = [g for g in trace.header.groups if g.ranks and len(g.ranks) > 1 and rank in g.ranks]
    if dimension is not None:
        for group in groups:
            if dimension_of(group) == dimension:
                return group.ranks
    members = {group.ranks for group in groups}
    if len(members) == 1 or dimension is None:
        return max((group.ranks for group in groups if group.ranks), key=len, default=None)
    return None


def _peer(
    operator: _Operator,
    rank: int,
    group: tuple[int, ...] | None,
    step: int,
    ordinals: dict[tuple[int, int, int], int],
) -> tuple[PeerCall, ...]:
    """The peer of a send or receive."""
    told = operator.context.peer
    if operator.kind not in ("send", "recv") or told is None:
        return ()
    peer = group[told] if group is not None and 0 <= told < len(group) else told
    source, destination = (rank, peer) if operator.kind == "send" else (peer, rank)
    ordinal = ordinals[step, source, destination] = ordinals.get((step, source, destination), -1) + 1
    return (PeerCall(source, destination, ordinal),)


def complete_together(calls_of_rank: Mapping[int, list[Call]], matches: Matches) -> dict[int, list[Call]]:
    """End each point-to-point call no later than its counterparts do.

    gloo closes the span of an asynchronous send when the sender asks for it, long after the bytes have gone.
    Call with all ranks on one clock.
    """
    completed = {rank: list(calls) for rank, calls in calls_of_rank.items()}
    for call, others in matches.peers.items():
        own = calls_of_rank[call.rank][call.place]
        end = max(calls_of_rank[other.rank][other.place].end_ns for other in others)
        if own.start_ns < end < own.end_ns:
            completed[call.rank][call.place] = replace(own, end_ns=end, asked_ns=own.end_ns)
    return completed
