"""Device ledger: every instant of the window is attributed once, to the category that the rules give it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.analyzer.ledger.activities import Work, device_activities
from stepscope.analyzer.ledger.device_ledger import OwnLedger, attribute_device_time, fractions
from stepscope.analyzer.ledger.idle_time import observe_host
from stepscope.analyzer.ledger.segments import Segments
from stepscope.analyzer.ledger.steps import Window, host_steps
from stepscope.core.vocabulary import CATEGORY_CODE, CATEGORY_ORDER, COMPUTE_CATEGORIES, TimeCategory
from stepscope.trace.columns import Category, TraceColumns
from tests.analyzer.build import AUTOGRAD, MAIN, NS_PER_US, TraceBuilder

AXIS_US = 70
AFTER_BLOCKING_US = 20

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage)"


@dataclass(frozen=True)
class Activity:
    """A device activity as drawn: kind, stream, start, length, how long before it its launch was, by which thread."""

    kind: str
    stream: int
    start: int
    length: int
    lead: int | None
    thread: int

    @property
    def end(self) -> int:
        return self.start + self.length

    @property
    def launch(self) -> int | None:
        return None if self.lead is None else self.start - self.lead


@dataclass(frozen=True)
class HostSpan:
    """What a thread is busy with, as drawn."""

    kind: str
    start: int
    length: int
    thread: int

    def holds(self, instant: int) -> bool:
        return self.start <= instant < self.start + self.length


activities = st.lists(
    st.builds(
        Activity,
        kind=st.sampled_from(["compute", "communication", "copy"]),
        stream=st.integers(1, 3),
        start=st.integers(10, AXIS_US - 10),
        length=st.integers(1, 8),
        lead=st.one_of(st.none(), st.integers(0, 30)),
        thread=st.sampled_from([MAIN, AUTOGRAD]),
    ),
    min_size=1,
    max_size=7,
)
host_spans = st.lists(
    st.builds(
        HostSpan,
        kind=st.sampled_from(["profiler", "checkpoint", "data_loading", "synchronization"]),
        start=st.integers(0, AXIS_US),
        length=st.integers(1, 15),
        thread=st.sampled_from([MAIN, AUTOGRAD]),
    ),
    max_size=4,
)


def trace_of(drawn: list[Activity], spans: list[HostSpan]) -> TraceColumns:
    trace = TraceBuilder()
    trace.annotation("ProfilerStep#1", 0, AXIS_US)  # tells which thread is the training loop's
    for one in drawn:
        trace.kernel(
            one.start,
            one.end,
            launch=one.launch,
            launch_end=one.launch,
            name={"compute": "gemm", "communication": NCCL, "copy": "Memcpy HtoD (Pinned -> Device)"}[one.kind],
            category=Category.MEMCPY if one.kind == "copy" else Category.KERNEL,
            stream=one.stream,
            thread=one.thread,
        )
    for span in spans:
        end = span.start + span.length
        if span.kind == "synchronization":
            trace.runtime("cudaStreamSynchronize", span.start, end, thread=span.thread)
        else:
            name = {"profiler": "profiler stop", "checkpoint": "checkpoint", "data_loading": "prof.data"}[span.kind]
            trace.annotation(name, span.start, end, thread=span.thread)
    return trace.build()


def book_file(trace: TraceColumns) -> OwnLedger:
    """Book first to last activity; the n-th compute kernel gets the n-th compute category, round and round."""
    acts, steps = device_activities(trace), host_steps(trace)
    count = len(acts.of(Work.COMPUTE))
    categories = np.array([CATEGORY_CODE[COMPUTE_CATEGORIES[place % 4]] for place in range(count)], np.int8)
    start, end = int(acts.start_ns.min()), int(acts.end_ns.max())
    window = Window(start, end, np.array([0]), np.array([start]), 0)
    return attribute_device_time(acts, window, observe_host(trace, steps, acts), categories)


def read_by_hand(drawn: list[Activity], spans: list[HostSpan]) -> dict[int, TimeCategory]:
    """The ledger's rules applied to one microsecond after another."""
    ordered = sorted(drawn, key=lambda one: (one.start, one.stream))
    computes = [one for one in ordered if one.kind == "compute"]
    first, last = min(one.start for one in drawn), max(one.end for one in drawn)
    busy = {instant for one in drawn for instant in range(one.start, one.end)}
    booked = {}
    for instant in range(first, last):
        running = [one for one in ordered if one.start <= instant < one.end]
        kinds = {one.kind for one in running}
        if "compute" in kinds:
            owner = next(one for one in running if one.kind == "compute")
            place = next(place for place, one in enumerate(computes) if one is owner)
            booked[instant] = COMPUTE_CATEGORIES[place % 4]
        elif "communication" in kinds:
            booked[instant] = TimeCategory.COMMUNICATION_UNSPLIT
        elif kinds:
            booked[instant] = TimeCategory.COPY
        else:
            opens = next(i + 1 for i in range(instant, -1, -1) if i in busy)
            booked[instant] = idle_by_hand(instant, opens, ordered, spans)
    return booked


def idle_by_hand(instant: int, opens: int, ordered: list[Activity], spans: list[HostSpan]) -> TimeCategory:
    launches = [one.launch for one in ordered if one.launch is not None]
    if not launches and not any(span.kind == "synchronization" for span in spans):
        return TimeCategory.IDLE_OTHER
    ender = next(one for one in ordered if one.start > instant)
    if ender.launch is None:
        queued_before_the_trace = bool(launches) and ender.start <= min(launches)
        return TimeCategory.DEVICE_GAP if queued_before_the_trace else TimeCategory.IDLE_OTHER
    if instant >= ender.launch:
        return TimeCategory.DEVICE_GAP
    of_thread = [span for span in spans if span.thread in (ender.thread, MAIN)]
    for kind in ("profiler", "checkpoint", "data_loading"):
        if any(span.kind == kind and span.holds(instant) for span in of_thread):
            return TimeCategory(kind)
    blocking = [span for span in of_thread if span.kind == "synchronization" and span.start <= opens]
    if any(opens - (span.start + span.length) <= AFTER_BLOCKING_US for span in blocking):
        return TimeCategory.SYNCHRONIZATION
    return TimeCategory.HOST_BOUND


def by_instant(segments: Segments) -> dict[int, TimeCategory]:
    booked: dict[int, TimeCategory] = {}
    for start, end, code in zip(segments.start_ns, segments.end_ns, segments.category, strict=True):
        for instant in range(int(start) // NS_PER_US, int(end) // NS_PER_US):
            assert instant not in booked, "an instant is booked twice"
            booked[instant] = CATEGORY_ORDER[code]
    return booked


@settings(max_examples=80, deadline=None)
@given(activities, host_spans)
def test_the_ledger_of_random_activities_is_the_rules_read_instant_by_instant(
    drawn: list[Activity], spans: list[HostSpan]
) -> None:
    own = book_file(trace_of(drawn, spans))
    assert by_instant(own.segments) == read_by_hand(drawn, spans)


@settings(max_examples=80, deadline=None)
@given(activities, host_spans)
def test_the_ledger_adds_up_to_the_window_to_the_nanosecond(drawn: list[Activity], spans: list[HostSpan]) -> None:
    segments = book_file(trace_of(drawn, spans)).segments
    window_ns = (max(one.end for one in drawn) - min(one.start for one in drawn)) * NS_PER_US
    assert int(segments.duration_ns.sum()) == window_ns
    assert np.array_equal(segments.start_ns[1:], segments.end_ns[:-1])
    assert abs(sum(fractions(segments, window_ns).values()) - 1.0) < 1e-9


@settings(max_examples=80, deadline=None)
@given(activities)
def test_hidden_communication_is_what_runs_beside_compute(drawn: list[Activity]) -> None:
    own = book_file(trace_of(drawn, []))
    communicating = {i for one in drawn if one.kind == "communication" for i in range(one.start, one.end)}
    computing = {i for one in drawn if one.kind == "compute" for i in range(one.start, one.end)}
    assert own.hidden_communication_ns == len(communicating & computing) * NS_PER_US
    assert int(own.kernel_owned_ns.sum()) == len(computing) * NS_PER_US


def test_a_copy_from_gpu_to_gpu_is_communication() -> None:
    trace = TraceBuilder()
    trace.copy(10, 30, launch=0, name="Memcpy PtoP (Device -> Device)")
    trace.copy(40, 50, launch=5, name="Memcpy DtoD (Device -> Device)")
    assert device_activities(trace.build()).work.tolist() == [Work.COMMUNICATION, Work.COPY]
