"""Arguments of collective calls (kind, size, peer, root) from the operators and spans open at their launch."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from stepscope.analyzer.collectives.calls import collective_kind_of_span
from stepscope.analyzer.collectives.process_groups import names_dimension
from stepscope.analyzer.roofline.element_types import bytes_of_dtype
from stepscope.trace.columns import NONE, Category, IntColumn, Shapes, TraceColumns
from stepscope.trace.rows import distinct

_PLACE_OF_ROOT = {"c10d::broadcast_": 2, "c10d::reduce_": 3, "c10d::gather_": 3, "c10d::scatter_": 3}
"""Index of the operator's argument that is the root (a rank in the group)."""

_PEER = re.compile(r"^nccl:(send|recv) (\d+)(?:->|<-)(\d+)$")
"""torch names the annotation of a send `nccl:send 0->3` (ranks in the group)."""


class LaunchContext(NamedTuple):
    """Arguments of a collective call from the spans open at its launch; None where unknown.

    torch records no arguments on many communication kernels (before 2023, send/receive, vLLM's own all-reduce,
    coalesced groups), but the operator and the backend's annotation around the launch show kind, size and root.

    Attributes:
        kind: by the innermost communication span.
        num_bytes: the largest tensor argument of the communication spans.
        root: the root of a rooted kind, a rank in the group.
        peer: destination of a send or source of a receive, a rank in the group.
        open_spans: names of the spans that show the parallel dimension.
    """

    kind: str | None = None
    num_bytes: int | None = None
    root: int | None = None
    peer: int | None = None
    open_spans: tuple[str, ...] = ()


NO_CONTEXT = LaunchContext()


def launch_contexts(trace: TraceColumns, lanes: IntColumn, moments_ns: npt.NDArray[np.int64]) -> list[LaunchContext]:
    """Collectives: context of each call's launch by its thread's lane and time; NONE where the launch is unknown."""
    rows = trace.rows_named(
        lambda name: collective_kind_of_span(name) is not None or names_dimension(name),
        Category.CPU_OP,
        Category.USER_ANNOTATION,
    )
    contexts = [NO_CONTEXT] * len(lanes)
    for lane in distinct(lanes[lanes != NONE]).tolist():
        launched = np.flatnonzero((lanes == lane) & (moments_ns != NONE))
        launched = launched[np.argsort(moments_ns[launched], kind="stable")]
        spans = rows[trace.lane[rows] == lane]
        spans = spans[np.lexsort((-trace.end_ns[spans], trace.start_ns[spans]))]
        moments, ends = moments_ns[launched], trace.end_ns[spans]
        opened = np.searchsorted(trace.start_ns[spans], moments, side="right").tolist()
        still_open, before = np.empty(0, np.intp), 0
        for place, moment, behind in zip(launched.tolist(), moments.tolist(), opened, strict=True):
            still_open = np.concatenate((still_open, np.arange(before, behind)))
            still_open, before = still_open[ends[still_open] > moment], behind
            if len(still_open):
                contexts[place] = _context_of(trace, spans[still_open].tolist())
    return contexts


def _context_of(trace: TraceColumns, open_rows: Sequence[int]) -> LaunchContext:
    """Context from the rows of the open spans, outermost first."""
    names = [trace.names[int(trace.name[row])] for row in open_rows]
    kind = root = peer = None
    sizes = []
    for row, name in zip(open_rows, names, strict=True):
        own = collective_kind_of_span(name)
        if own is None:
            continue
        kind = own
        dims, types, concrete = recorded_arguments(trace, row)
        if (size := largest_tensor_bytes(dims, types)) is not None:
            sizes.append(size)
        root = _integer_at(concrete, _PLACE_OF_ROOT.get(name)) if name in _PLACE_OF_ROOT else root
        peer = peer_of_span(name, concrete) if kind in ("send", "recv") else peer
    return LaunchContext(
        kind, max(sizes, default=None), root, peer, tuple(name for name in names if names_dimension(name))
    )


def peer_of_span(name: str, concrete: list[Any]) -> int | None:
    """The peer of a send's or receive's span: in the annotation's name, else the operator's third argument."""
    match = _PEER.match(name)
    return int(match.group(3)) if match else _integer_at(concrete, 2)


def recorded_arguments(trace: TraceColumns, row: int) -> tuple[list[Any], list[Any], list[Any]]:
    """Dimensions, types and inputs recorded for a communication operator, read-only; empty where not recorded."""
    place = int(trace.shapes[row])
    if place == NONE:
        return [], [], []
    return _parsed(trace.shape_table[place])


@lru_cache(maxsize=1024)
def _parsed(shapes: Shapes) -> tuple[list[Any], list[Any], list[Any]]:
    dims, types, concrete = (_list(t) for t in (shapes.input_dims, shapes.input_types, shapes.concrete_inputs))
    return dims, types, concrete


def largest_tensor_bytes(dims: list[Any], types: list[Any]) -> int | None:
    """Collectives: message size by the largest tensor of known type among an operator's inputs."""
    sizes = []
    for shape, dtype in zip(dims, types, strict=False):
        size = bytes_of_dtype(dtype)
        if size is not None and isinstance(shape, list) and shape and all(isinstance(n, int) for n in shape):
            sizes.append(prod(shape) * size)
    return max(sizes, default=None)


def _integer_at(values: list[Any], place: int | None) -> int | None:
    try:
        return int(values[place]) if place is not None else None
    except (ValueError, IndexError, TypeError):
        return None


def _list(text: str) -> list[Any]:
    try:
        value = json.loads(text) if text else []
    except ValueError:
        return []
    return value if isinstance(value, list) else []
