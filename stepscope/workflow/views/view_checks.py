"""Checks of a decoded view: what its types do not say, so that no analysis meets arrays that do not fit together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import numpy.typing as npt

from stepscope.analyzer.intervals import Intervals
from stepscope.analyzer.kernels.flags import Columns
from stepscope.analyzer.ledger.activities import Work
from stepscope.analyzer.ledger.segments import TO_ATTRIBUTE
from stepscope.analyzer.rank_view import RankView
from stepscope.analyzer.what_if.rank_graph import HOST_WORK, Edges, RankGraph
from stepscope.core.vocabulary import CATEGORY_ORDER
from stepscope.trace.columns import NONE
from stepscope.workflow.views.view_format import UnusableViewError

Array = npt.NDArray[Any]

LATEST_NS = 1 << 62
"""Beyond any time since the epoch, and far enough from the end of int64 for sums."""


def check_view(view: RankView, *, where: str) -> None:
    """Check a decoded view.

    Raises:
        UnusableViewError: its parts do not fit together.
    """
    try:
        _check_times(view)
        _check_columns(view)
        _check_kernels(view)
        if view.graph is not None:
            _check_graph(view.graph, len(view.calls))
    except _MisfitError as error:
        raise UnusableViewError(f"is damaged ({error})", where=where) from error


class _MisfitError(ValueError):
    """Two parts of a view do not fit together."""


def _expect(fits: object, what: str) -> None:
    if not fits:
        raise _MisfitError(f"the {what} of its view do not fit together")


def _check_times(view: RankView) -> None:
    window = view.window
    _expect(0 <= window.start_ns < window.end_ns < LATEST_NS, "times")
    _expect(len(window.index) == len(window.boundary_ns) > 0, "steps")
    _expect(np.all(np.diff(window.boundary_ns) > 0), "steps")
    _expect(_are_within(window.boundary_ns, window.start_ns, window.end_ns), "steps")
    num_steps = len(window.boundary_ns)
    _expect(len(view.optimizer_ns) == len(view.backward_ns) == num_steps, "steps")
    segments = view.segments
    _expect(_are_as_long(segments), "segments")
    _expect(np.all(segments.start_ns <= segments.end_ns), "segments")
    _expect(np.all(segments.start_ns[1:] >= segments.end_ns[:-1]), "segments")
    _expect(_are_within(segments.category, 0, len(CATEGORY_ORDER) - 1), "categories")
    _expect(_are_within(segments.cause, 0, TO_ATTRIBUTE), "causes")
    _expect(all(0 <= call.start_ns <= call.end_ns < LATEST_NS for call in view.calls), "calls")
    for name in ("copies", "issues", "units", "searches"):
        spans: Intervals = getattr(view.reducer, name)
        _expect(_are_as_long(spans) and np.all(spans.start < spans.end), "spans")


def _check_columns(view: RankView) -> None:
    if (timeline := view.timeline) is not None:
        _expect(_are_as_long(timeline), "pieces")
        _expect(_are_within(timeline.category, 0, len(CATEGORY_ORDER) - 1), "pieces")
    if (kernels := view.step_kernels) is not None:
        columns = [getattr(kernels, field.name) for field in fields(kernels)]
        _expect(_are_equal(map(len, (column for column in columns if isinstance(column, np.ndarray)))), "kernels")
        _expect(_are_within(kernels.name, NONE, len(kernels.names) - 1), "names")
        _expect(_are_within(kernels.operator, NONE, len(kernels.operators) - 1), "operators")
        _expect(_are_within(kernels.call, NONE, len(kernels.calls) - 1), "shapes")


def _check_kernels(view: RankView) -> None:
    sums = view.kernel_sums
    _expect(sums.total.shape == (Columns.SIZE,), "sums")
    for groups in (sums.by_name, sums.by_operator, sums.by_module, sums.by_call):
        _expect(groups.sums.shape == (len(groups.keys), Columns.SIZE), "sums")
        _expect(len(groups.keys) == len(groups.examples), "sums")
    by_step = sums.steps_by_name
    _expect(
        by_step.owned_ns.size == 0 or by_step.owned_ns.shape == (len(sums.by_name.keys), len(by_step.index)), "sums"
    )


def _check_graph(graph: RankGraph, num_calls: int) -> None:
    host, device = graph.host, graph.device
    _expect(_are_as_long(device) and len(host.work_ns) == len(host.key_ns), "activities")
    _expect(host.work_ns.ndim == 2 and host.work_ns.shape[1] == len(HOST_WORK), "host calls")
    names = ("label", "follows", "follows_own", "first_activity", "is_needed")
    _expect(_are_equal([len(host), *(len(getattr(host, name)) for name in names)]), "host calls")
    num_host, num_device = len(host), len(device)
    _expect(_are_within(host.label, 0, len(HOST_WORK) - 1), "host calls")
    for column in (host.follows, host.follows_own, device.launched_by):
        _expect(_are_within(column, NONE, num_host - 1), "host calls")
    for column in (host.first_activity, graph.boundaries, graph.last):
        _expect(_are_within(column, NONE, num_device - 1), "activities")
    _expect(_are_within(device.work, 0, max(Work)), "activities")
    _expect(_are_within(device.span, NONE, len(HOST_WORK) - 1), "activities")
    _expect(_are_within(device.call, NONE, num_calls - 1), "calls")
    limits = ((graph.streams, num_device), (graph.events, num_device), (graph.blocking, num_host))
    for edges, num_targets in (*limits, (graph.queue, num_host)):
        _check_edges(edges, num_device, num_targets)
    _expect(len(graph.stream_gap_ns) == len(graph.streams), "edges")
    _expect(len(graph.blocking_ns) == len(graph.blocking), "edges")


def _check_edges(edges: Edges, num_sources: int, num_targets: int) -> None:
    _expect(_are_as_long(edges), "edges")
    _expect(_are_within(edges.source, NONE, num_sources - 1), "edges")
    _expect(_are_within(edges.target, NONE, num_targets - 1), "edges")


def _are_as_long(columns: Any) -> bool:
    return _are_equal(len(getattr(columns, field.name)) for field in fields(columns))


def _are_equal(lengths: Iterable[int]) -> bool:
    return len(set(lengths)) <= 1


def _are_within(values: Array | Sequence[int], least: int, most: int) -> bool:
    values = np.asarray(values)
    return not len(values) or bool(values.min() >= least and values.max() <= most)
