"""What kept the host while the device idled for it: Python, operators, garbage, the allocator, a blocking call?"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from stepscope.analyzer.intervals import Intervals, Nanoseconds, contains, covered_time, intersect, subtract, time_of
from stepscope.analyzer.ledger.activities import Activities
from stepscope.analyzer.ledger.host_spans import ANNOTATES, blocking_calls, data_loading_rows
from stepscope.analyzer.ledger.segments import CHARGE, Segments
from stepscope.analyzer.ledger.steps import HostSteps
from stepscope.analyzer.membership import distinct, on_lanes
from stepscope.core.causes import Cause, Reason
from stepscope.core.errors import printable
from stepscope.core.headings import Heading
from stepscope.core.run_layout import PHASE_PREFIX
from stepscope.trace.columns import NONE, Category, TraceColumns

_GARBAGE = re.compile(r"^(prof\.phase: )?gc(\.collect)?$|garbage[_ ]collect|<built-in (function|method) collect>")
_ALLOCATOR = re.compile(
    r"^(cuda|hip)(Malloc|Free|HostAlloc|HostFree|HostRegister|HostUnregister)(?!.*Async)"
    r"|^cuMem(Alloc|Free|Create|Release|Map|Unmap|AddressReserve|AddressFree|SetAccess|HostAlloc)(?!.*Async)"
)
_COMPILER = re.compile(r"_compile\.compile_inner|dynamo_timed|CachingAutotuner\.benchmark_all_configs")
_OPTIMIZER = re.compile(r"^Optimizer\.step#")
_READS_A_VALUE = re.compile(r"^aten::(item|_local_scalar_dense|is_nonzero|nonzero|equal|masked_select|_?unique\w*)$")
_COPIES = re.compile(r"^aten::(copy_|_to_copy|to)$")
_IN_PROCESS_LOADER = re.compile(r"_SingleProcessDataLoaderIter")
_CALLS = (Reason.READS_VALUE, Reason.BLOCKING_COPY, Reason.EXPLICIT_SYNCHRONIZE)
"""Kinds of blocking calls by code."""


@dataclass(frozen=True, slots=True)
class HostWork:
    """What one rank's host did while the device idled for it.

    Attributes:
        late_ns: time charged to a late host, by what its threads did meanwhile.
        phases_ns: the same time, by the phase that the training script named, innermost or not.
        blocked_ns: time booked as synchronization, by the kind of call that it followed.
        num_blocking_calls: in the window, by kind.
        load_waits_ns: how long each batch was waited for, in order, over the whole trace.
        loads_in_process: whether the training process itself makes the batches.
    """

    late_ns: dict[Reason, int] = field(default_factory=dict)
    phases_ns: dict[str, int] = field(default_factory=dict)
    blocked_ns: dict[Reason, int] = field(default_factory=dict)
    num_blocking_calls: dict[Reason, int] = field(default_factory=dict)
    load_waits_ns: tuple[int, ...] = ()
    loads_in_process: bool = False


def host_work(trace: TraceColumns, steps: HostSteps, activities: Activities | None, segments: Segments) -> HostWork:
    """Look at what was open on the launching threads and the training loop's while the device idled for them.

    Args:
        activities: None for a run without a device.
        segments: the rank's window.
    """
    launching = () if activities is None else distinct(activities.launch_lane).tolist()
    lanes = sorted({int(lane) for lane in (*launching, steps.main_lane) if lane != NONE})
    late = _charged(segments, Cause.HOST_BOUND)
    waits, in_process = _loads(trace, lanes)
    blocked_ns, num_calls = _blocked(trace, lanes, activities, segments)
    did, phases = _late(trace, lanes, activities, late), _phases(trace, lanes, late)
    return HostWork(did, phases, blocked_ns, num_calls, waits, in_process)


def _charged(segments: Segments, cause: Cause) -> Intervals:
    keep = segments.charge == CHARGE[cause]
    return Intervals(segments.start_ns[keep], segments.end_ns[keep])


def _late(trace: TraceColumns, lanes: list[int], activities: Activities | None, left: Intervals) -> dict[Reason, int]:
    """First match: collecting garbage, asking the driver for memory, compiling, an optimizer on the CPU, operators."""
    if not len(left):
        return {}
    time = {}
    for reason, everywhere in (
        (Reason.GC, trace.rows_named(_GARBAGE.search, *ANNOTATES)),
        (Reason.ALLOCATOR, trace.rows_named(_ALLOCATOR.search, Category.RUNTIME)),
        (Reason.COMPILE, trace.rows_named(_COMPILER.search, *ANNOTATES)),
        (Reason.CPU_OPTIMIZER, _optimizers_on_cpu(trace, activities)),
        (Reason.DISPATCH, trace.rows_of(Category.CPU_OP, Category.RUNTIME)),
    ):
        cover = time_of(trace, on_lanes(trace, everywhere, lanes))
        time[reason] = intersect(left, cover).total
        left = subtract(left, cover)
    time[Reason.PYTHON] = left.total
    return {reason: nanoseconds for reason, nanoseconds in time.items() if nanoseconds}


def _phases(trace: TraceColumns, lanes: list[int], late: Intervals) -> dict[str, int]:
    """By the name that the script gave them."""
    everywhere = trace.rows_named(lambda name: name.startswith(PHASE_PREFIX), Category.USER_ANNOTATION)
    rows = on_lanes(trace, everywhere, lanes)
    found = {}
    for number in distinct(trace.name[rows]).tolist():
        span = time_of(trace, rows[trace.name[rows] == number])
        if nanoseconds := intersect(late, span).total:
            found[printable(trace.names[number].removeprefix(PHASE_PREFIX))] = nanoseconds
    return found


def _optimizers_on_cpu(trace: TraceColumns, activities: Activities | None) -> npt.NDArray[np.intp]:
    """Optimizer steps in which nothing was launched: the parameters live on the host."""
    rows = trace.rows_named(_OPTIMIZER.search, *ANNOTATES)
    if activities is None:
        return rows[:0]
    launches = np.sort(activities.launch_ns, kind="stable")
    first = np.searchsorted(launches, trace.start_ns[rows])
    nothing_launched: npt.NDArray[np.bool_] = first == np.searchsorted(launches, trace.end_ns[rows])
    return rows[nothing_launched]


def _blocked(
    trace: TraceColumns, lanes: list[int], activities: Activities | None, segments: Segments
) -> tuple[dict[Reason, int], dict[Reason, int]]:
    """Idle time by the last blocking call before it, and how many calls of each kind the window has."""
    idle = segments.intervals_of(Heading.SYNCHRONIZATION)
    if activities is None or not len(idle):
        return {}, {}
    start, _ = blocking_calls(trace, lanes, activities)
    start = np.sort(start, kind="stable")
    kind = _kinds_of_calls(trace, lanes, start)
    window = (start >= segments.start_ns[0]) & (start < segments.end_ns[-1])
    place = np.searchsorted(start, idle.start, side="right") - 1
    time: dict[Reason, int] = {}
    for code, reason in enumerate(_CALLS):
        mine = (place >= 0) & (kind[np.maximum(place, 0)] == code)
        nanoseconds = int((idle.end - idle.start)[mine].sum())
        if nanoseconds:
            time[reason] = nanoseconds
    counts = {reason: int((kind[window] == code).sum()) for code, reason in enumerate(_CALLS)}
    return time, {reason: count for reason, count in counts.items() if count}


def _kinds_of_calls(trace: TraceColumns, lanes: list[int], start: Nanoseconds) -> npt.NDArray[np.int64]:
    """Place in _CALLS by the operator that each call was made in; outside of all, it is a synchronization."""
    kind = np.full(len(start), _CALLS.index(Reason.EXPLICIT_SYNCHRONIZE), np.int64)
    for reason, pattern in ((Reason.BLOCKING_COPY, _COPIES), (Reason.READS_VALUE, _READS_A_VALUE)):
        rows = on_lanes(trace, trace.rows_named(pattern.search, Category.CPU_OP), lanes)
        kind[contains(time_of(trace, rows), start)] = _CALLS.index(reason)
    return kind


def _loads(trace: TraceColumns, lanes: list[int]) -> tuple[tuple[int, ...], bool]:
    """How long each batch was waited for, and whether the process itself made it."""
    rows = data_loading_rows(trace, lanes)
    spans = time_of(trace, rows)
    inside = time_of(trace, rows[trace.named(rows, _IN_PROCESS_LOADER.search)])
    share = covered_time(spans.start, spans.end, inside).sum() / spans.total if len(spans) else 0.0
    return tuple((spans.end - spans.start).tolist()), bool(share > 0.5)
