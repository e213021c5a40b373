"""Synchronisation records decide what waits for what; the rest is inferred."""

from __future__ import annotations

import pytest

from stepscope.analyzer.ledger.activities import device_activities
from stepscope.analyzer.what_if.device_graph import blocking_edges, event_edges, read_streams
from stepscope.analyzer.what_if.launches import observe_calls
from stepscope.analyzer.what_if.rank_graph import Edges
from tests.analyzer.build import COMPUTE_STREAM, COPY_STREAM, TraceBuilder

SIDE = COPY_STREAM
FIRST, SECOND, WAITER = 0, 1, 2
"""Places of the three activities of `_two_then_one`, by start."""


def _two_then_one(*, waiter_starts: int = 300, is_told: bool = True) -> TraceBuilder:
    """Two kernels on a stream with an event recorded between their launches, then one on another that waits for it."""
    trace = TraceBuilder()
    trace.kernel(20, 120, launch=10)
    recorded = trace.record_event(14)
    trace.kernel(121, 200, launch=18)
    trace.stream_wait(22, stream=SIDE, recorded=recorded, on_stream=COMPUTE_STREAM, is_told=is_told)
    trace.kernel(waiter_starts, waiter_starts + 50, launch=26, stream=SIDE)
    return trace


def _pairs(edges: Edges) -> set[tuple[int, int]]:
    return set(zip(edges.source.tolist(), edges.target.tolist(), strict=True))


def _event_edges(trace: TraceBuilder) -> set[tuple[int, int]]:
    columns = trace.build()
    activities = device_activities(columns)
    return _pairs(event_edges(columns, activities, read_streams(activities)))


def _blocking_edges(trace: TraceBuilder) -> set[tuple[int, str]]:
    """(activity, name of the call that waits for it)."""
    columns = trace.build()
    activities = device_activities(columns)
    calls = observe_calls(columns, activities)
    edges, _ = blocking_edges(columns, activities, read_streams(activities), calls)
    names = [columns.names[columns.name[calls.row[place]]] for place in edges.target.tolist()]
    return set(zip(edges.source.tolist(), names, strict=True))


def test_a_stream_waits_for_what_was_queued_before_the_event_was_recorded() -> None:
    assert _event_edges(_two_then_one()) == {(FIRST, WAITER)}


def test_without_the_record_it_waits_for_what_ended_last() -> None:
    assert _event_edges(_two_then_one(is_told=False)) == {(SECOND, WAITER)}


def test_what_began_before_the_other_had_ended_did_not_wait() -> None:
    assert _event_edges(_two_then_one(waiter_starts=119)) == set()


def test_an_event_recorded_before_the_trace_began_explains_nothing() -> None:
    trace = _two_then_one(is_told=False)
    trace.stream_wait(24, stream=SIDE, recorded=999, on_stream=COMPUTE_STREAM)
    assert _event_edges(trace) == {(SECOND, WAITER)}


def test_a_communication_waits_for_its_event_not_for_all_of_the_current_stream() -> None:
    trace = TraceBuilder()
    trace.kernel(20, 120, launch=10)
    recorded = trace.record_event(14)
    trace.kernel(121, 200, launch=18)
    trace.stream_wait(22, stream=20, recorded=recorded, on_stream=COMPUTE_STREAM)
    trace.collective("allreduce", 260, 300, launch=26, group=(0, 1))
    assert _event_edges(trace) == {(FIRST, WAITER)}


@pytest.mark.parametrize(("is_told", "waited_for"), [(True, 1), (False, 0)])
def test_a_host_waits_for_the_stream_that_the_record_names(is_told: bool, waited_for: int) -> None:
    trace = TraceBuilder()
    trace.kernel(20, 198, launch=10)
    trace.kernel(30, 150, launch=14, stream=SIDE)
    trace.stream_sync(40, 200, stream=SIDE, is_told=is_told)
    assert _blocking_edges(trace) == {(waited_for, "cudaStreamSynchronize")}


def test_a_host_that_waits_for_an_event_waits_for_what_came_before_it() -> None:
    trace = TraceBuilder()
    trace.kernel(20, 100, launch=10)
    recorded = trace.record_event(12)
    trace.kernel(101, 190, launch=14)
    trace.event_sync(16, 200, recorded=recorded, on_stream=COMPUTE_STREAM)
    assert _blocking_edges(trace) == {(FIRST, "cudaEventSynchronize")}


def test_work_that_had_not_ended_when_the_host_went_on_was_not_waited_for() -> None:
    trace = TraceBuilder()
    trace.kernel(20, 300, launch=10)
    trace.stream_sync(40, 200, stream=COMPUTE_STREAM)
    assert _blocking_edges(trace) == set()
