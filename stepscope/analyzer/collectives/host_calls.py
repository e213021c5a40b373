"""Communication calls of a rank without a device (gloo).

gloo records no arguments. The operators on the main thread give kind and start, the backend's spans on its worker
threads the end, and the enclosing spans the group.
"""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import Any, NamedTuple

import numpy as np

from stepscope.analyzer.collectives.call_arguments import LaunchContext, launch_contexts, recorded_arguments
from stepscope.analyzer.collectives.calls import (
    BEFORE_STEPS,
    P2P_KINDS,
    Call,
    Matches,
    PeerCall,
    collective_kind_of_span,
)
from stepscope.analyzer.collectives.process_groups import dimension_of_call, dimension_of_group
from stepscope.analyzer.ledger.steps import HostSteps
from stepscope.analyzer.roofline.element_types import bytes_of_dtype
from stepscope.trace.columns import NONE, Category, TraceColumns
from stepscope.trace.rows import on_lanes

_OPERATOR = re.compile(
    r"^c10d::(allreduce_|allreduce_coalesced_|_allgather_base_|allgather_|allgather_into_tensor_coalesced_"
    r"|_reduce_scatter_base_|reduce_scatter_|alltoall_|alltoall_base_|barrier|broadcast_|reduce_|gather_|scatter_"
    r"|send|recv_)$"
)
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
"""Spans of the backend's work; gloo's reduce_scatter runs as an all_reduce."""

_ONLY_INPUT = "c10d::allgather_"
"""Records the input of each member, not the larger output."""


class _Operator(NamedTuple):
    row: int
    kind: str
    context: LaunchContext
    dimension: str | None


def host_calls(trace: TraceColumns, rank: int, steps: HostSteps, lane: int) -> list[Call]:
    """Collectives, sends and receives of a rank without a device (gloo) on its main thread, in issue order."""
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
                dtype=_dtype(trace, operator, span),
                served_ns=None if span == NONE else int(trace.end_ns[span] - trace.start_ns[span]),
            )
        )
    return _awaited(calls)


def _awaited(calls: list[Call]) -> list[Call]:
    """The calls, with the time from which the thread waits for each point-to-point call.

    gloo closes a call's span when the thread has waited for it, however long the bytes have been there, and a thread
    waits for one call at a time: not before its wait for an earlier one has ended.
    """
    awaited = list(calls)
    done = 0
    for place in sorted(range(len(calls)), key=lambda place: calls[place].end_ns):
        if calls[place].kind in P2P_KINDS:
            awaited[place] = replace(calls[place], awaited_ns=done)
            done = calls[place].end_ns
    return awaited


def _operators(trace: TraceColumns, lane: int) -> list[_Operator]:
    """The communication operators of the main thread with the parallel dimension of their context."""
    rows = on_lanes(trace, trace.rows_named(_OPERATOR.match, Category.CPU_OP, Category.USER_ANNOTATION), [lane])
    rows = rows[np.lexsort((-trace.end_ns[rows], trace.start_ns[rows]))]
    contexts = launch_contexts(trace, np.full(len(rows), lane), trace.start_ns[rows])
    found = []
    for row, context in zip(rows.tolist(), contexts, strict=True):
        kind = collective_kind_of_span(trace.names[int(trace.name[row])])
        assert kind is not None  # the pattern lists only known operators
        found.append(_Operator(row, kind, context, dimension_of_call(None, context.open_spans, kind)))
    return found


def _completion(trace: TraceColumns, operators: list[_Operator]) -> list[tuple[int, int]]:
    """End of each operator's work, and the row of its backend span: the first free one that starts no earlier, or NONE.

    An operator that stays open longer than its span was waiting for a CPU core.
    """
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
            spans.popleft()  # its operator is from before the trace
        if spans:
            _, span_end, row = spans.popleft()
            ends.append((span_end, row))
        else:
            ends.append((end, NONE))
    return ends


def _num_bytes(trace: TraceColumns, operator: _Operator, span: int, group: tuple[int, ...] | None) -> int | None:
    """The larger of input and output. Lists of tensors record no type; the backend's span does."""
    size = operator.context.num_bytes
    if size is None:
        elements = max((_num_elements(shape) for shape in recorded_arguments(trace, operator.row)[0]), default=0)
        types = recorded_arguments(trace, span)[1] if span != NONE else []
        width = bytes_of_dtype(types[0]) if types else None
        size = elements * width if elements and width is not None else None
    if size is not None and trace.names[int(trace.name[operator.row])] == _ONLY_INPUT:
        return size * len(group) if group is not None else None
    return size


def _dtype(trace: TraceColumns, operator: _Operator, span: int) -> str | None:
    """Type of the elements, of the backend's span or else of the operator's first tensor."""
    for row in (span, operator.row):
        types = [] if row == NONE else recorded_arguments(trace, row)[1]
        if types and bytes_of_dtype(types[0]) is not None:
            return str(types[0]).lower().removeprefix("c10::")
    return None


def _num_elements(shape: Any) -> int:
    """Of a tensor, or of all tensors of a list."""
    if not isinstance(shape, list) or not shape:
        return 0
    if all(isinstance(extent, int) for extent in shape):
        return prod(shape)
    return sum(_num_elements(part) for part in shape)


def _group(trace: TraceColumns, rank: int, dimension: str | None) -> tuple[int, ...] | None:
    """The group of a dimension: by description (mesh_tp, ...), else the only one."""
    groups = [g for g in trace.header.groups if g.ranks and len(g.ranks) > 1 and rank in g.ranks]
    if dimension is not None:
        for group in groups:
            if dimension_of_group(group) == dimension:
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
    place = operator.context.peer
    if operator.kind not in ("send", "recv") or place is None:
        return ()
    peer = group[place] if group is not None and 0 <= place < len(group) else place
    source, destination = (rank, peer) if operator.kind == "send" else (peer, rank)
    ordinal = ordinals[step, source, destination] = ordinals.get((step, source, destination), -1) + 1
    return (PeerCall(source, destination, ordinal),)


def end_messages_together(calls_of_rank: Mapping[int, list[Call]], matches: Matches) -> dict[int, list[Call]]:
    """Calls with each send and receive ending no later than its counterpart; with all ranks on one clock.

    gloo closes the span of an asynchronous send when the sender waits for it, long after the bytes have been sent.
    """
    completed = {rank: list(calls) for rank, calls in calls_of_rank.items()}
    for call, others in matches.peers.items():
        own = calls_of_rank[call.rank][call.place]
        end = max(calls_of_rank[other.rank][other.place].end_ns for other in others)
        if own.start_ns < end < own.end_ns:
            completed[call.rank][call.place] = replace(own, end_ns=end, asked_ns=own.end_ns)
    return completed
