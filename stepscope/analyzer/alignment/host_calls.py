"""Which communication calls did a rank make when there is no device (gloo), and when did each finish?

gloo records no arguments. The operators on the main thread tell what was asked for and when; the backend's spans on
its worker threads tell when it was done; the enclosing span tells which group it was for.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from stepscope.analyzer.alignment.device_calls import BEFORE_STEPS, P2P_KINDS, Call, PeerCall
from stepscope.analyzer.alignment.dimensions import dimension_of
from stepscope.analyzer.alignment.matching import Matches
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
    "send": ("gloo:send",),
    "recv": ("gloo:recv",),
}
"""Where the backend does the work; gloo's reduce_scatter runs as an all_reduce."""

_DATA_PARALLEL = re.compile(r"^(FSDP::|DistributedDataParallel|torch\.distributed\.ddp)")
_FUNCTIONAL = re.compile(r"^_c10d_functional")


@dataclass(frozen=True, slots=True)
class _Operator:
    row: int
    kind: str
    dimension: str | None


def host_calls(trace: TraceColumns, rank: int, steps: HostSteps, lane: int) -> list[Call]:
    """The calls of the main thread in issue order."""
    operators = _operators(trace, lane)
    ends = _completion(trace, operators)
    place = steps.position_of(trace.start_ns[np.array([op.row for op in operators], np.intp)])
    ordinals: dict[tuple[int, int, int], int] = {}
    calls = []
    for operator, end, where in zip(operators, ends, place, strict=True):
        step = int(steps.index[where]) if where != NONE else BEFORE_STEPS
        group = _group(trace, rank, operator.dimension)
        peers = _peer(trace, operator, rank, group, step, ordinals)
        start = int(trace.start_ns[operator.row])
        calls.append(Call(rank, start, max(end, start), step, group, operator.kind, None, peers, True))
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
    rows = trace.rows_of(Category.CPU_OP, Category.USER_ANNOTATION)
    rows = rows[trace.lane[rows] == lane]
    rows = rows[np.lexsort((-trace.end_ns[rows], trace.start_ns[rows]))]
    kind_of_name = {i: _KIND_OF_OPERATOR[name] for i, name in enumerate(trace.names) if name in _KIND_OF_OPERATOR}
    within_dp = _union_of(trace, rows, _DATA_PARALLEL)
    within_functional = _union_of(trace, rows, _FUNCTIONAL)
    found = []
    for row in rows[np.isin(trace.name[rows], list(kind_of_name))].tolist():
        kind = kind_of_name[int(trace.name[row])]
        start = int(trace.start_ns[row])
        dimension: str | None
        if kind in ("send", "recv"):
            dimension = "pp"
        elif _inside(within_dp, start):
            dimension = "dp"
        else:
            dimension = "tp" if _inside(within_functional, start) else None
        found.append(_Operator(row, kind, dimension))
    return found


def _union_of(
    trace: TraceColumns, rows: npt.NDArray[np.intp], pattern: re.Pattern[str]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    rows = rows[trace.named(rows, pattern.match)]
    return trace.start_ns[rows], np.maximum.accumulate(trace.end_ns[rows]) if len(rows) else trace.end_ns[rows]


def _inside(spans: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]], time: int) -> bool:
    start, reach = spans
    place = int(np.searchsorted(start, time, side="right")) - 1
    return place >= 0 and time < int(reach[place])


def _completion(trace: TraceColumns, operators: list[_Operator]) -> list[int]:
    """End of each operator's work: the first free span of its backend that starts no earlier than the operator."""
    free: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for row in trace.rows_of(Category.USER_ANNOTATION).tolist():
        name = trace.names[int(trace.name[row])]
        if name.startswith("gloo:"):
            free[name].append((int(trace.start_ns[row]), int(trace.end_ns[row])))
    for spans in free.values():
        spans.sort()
    ends = []
    for operator in operators:
        start, end = int(trace.start_ns[operator.row]), int(trace.end_ns[operator.row])
        spans = next((free[name] for name in _BACKEND_SPANS[operator.kind] if free.get(name)), [])
        while spans and spans[0][0] < start:
            spans.pop(0)  # its operator lies before the trace begins
        ends.append(max(spans.pop(0)[1], end) if spans else end)
    return ends


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
    trace: TraceColumns,
    operator: _Operator,
    rank: int,
    group: tuple[int, ...] | None,
    step: int,
    ordinals: dict[tuple[int, int, int], int],
) -> tuple[PeerCall, ...]:
    """The peer of a send or receive: its third argument, a rank in the group."""
    shapes = int(trace.shapes[operator.row])
    if operator.kind not in ("send", "recv") or shapes == NONE:
        return ()
    try:
        told = int(json.loads(trace.shape_table[shapes].concrete_inputs)[2])
    except (ValueError, IndexError, TypeError):
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
            completed[call.rank][call.place] = replace(own, end_ns=end)
    return completed
