"""Perfetto export: chosen ranks and time of a job as one trace in Chrome's JSON format, on the job's clock.

Each rank is a process, `[DP0 PP1 TP3] rank 11 node7/gpu3`, with these tracks:

steps           the profiled steps
time breakdown  each moment's category, as in the analysis: their times add up to it
causes          what holds the rank up where that is not its own work; of a wait the rank that it waits for
gpu 0 stream 7  kernels and copies of a stream
thread 4711     operators, calls and annotations of a host thread

Slices of a track must lie in each other or beside each other: one that overlaps another is moved to a second track.
Arrows lead from a launch to what it launched.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np
import numpy.typing as npt

from stepscope.analyzer.collectives.arrivals import waits_to_attribute
from stepscope.analyzer.collectives.calls import CallId
from stepscope.analyzer.job import AlignedJob, explain_job
from stepscope.analyzer.ledger.segments import CAUSE_ORDER, TO_ATTRIBUTE
from stepscope.analyzer.rank_view import RankView
from stepscope.core.documents.analysis import MeshSizes
from stepscope.core.errors import DataError, UsageError, from_os_error
from stepscope.core.text.numbers import ranks_words
from stepscope.core.text.wording import category_words, cause_phrase
from stepscope.core.vocabulary import CATEGORY_ORDER, COMPUTE_CATEGORIES
from stepscope.store.files import check_writable
from stepscope.trace.columns import DEVICE_CATEGORIES, NONE, Category, TraceColumns
from stepscope.workflow.fan_out.engine import Progress
from stepscope.workflow.inputs.trace_files import open_ranks
from stepscope.workflow.job_input import read_job

_HOST_CATEGORIES = tuple(
    category
    for category in Category
    if category not in (*DEVICE_CATEGORIES, Category.GPU_USER_ANNOTATION, Category.SYNC_RECORD)
)
_STEPS, _BREAKDOWN, _CAUSES, _FIRST_LANE = 1, 2, 3, 16
"""Thread numbers of the tracks of a rank."""
_SPARE_LANES = 64
"""Numbers between those of two tracks, for slices that overlap."""
_LAUNCHING = (Category.RUNTIME,)
_encode = msgspec.json.Encoder().encode
_BATCH = 20_000
"""Events that are in memory as objects at a time."""
Times = npt.NDArray[np.int64]
Places = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Selection:
    """What of a job is exported.

    Attributes:
        ranks: None for all.
        start_ms, end_ms: from the start of the first profiled step; None: from the first or to the last event.
    """

    ranks: frozenset[int] | None = None
    start_ms: float | None = None
    end_ms: float | None = None


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written.

    Attributes:
        num_slices: of all ranks' events, without the tracks of the analysis.
        clock_residual_us: spread of the ranks' clocks after alignment; None with a single clock.
    """

    path: Path
    ranks: list[int]
    num_slices: int
    clock_residual_us: float | None


def export_perfetto(
    paths: Sequence[str],
    output: Path,
    selection: Selection = Selection(),
    *,
    capture: int | None = None,
    on_progress: Progress | None = None,
) -> Exported:
    """Write a job's traces as one trace for Perfetto; gzipped where the name ends with .gz.

    Args:
        paths, capture: as of `analyze`.

    Raises:
        DataError: no trace can be read, or the output cannot be written.
        UsageError: the job has none of the ranks, or nothing in that time.
    """
    check_writable(output)
    job = read_job(paths, capture=capture, on_progress=on_progress)
    aligned = explain_job(job.views, job.context.mesh)
    views = {view.rank: view for view in job.views}
    ranks = _chosen(sorted(views), selection.ranks)
    zero_ns = min(int(view.window.boundary_ns[0]) for view in aligned.views.values())
    span = _span(selection, zero_ns)
    temporary = output.with_name(f".{output.name}.part")
    num_slices = 0
    try:
        with _opened(temporary, is_packed=output.name.endswith(".gz")) as file:
            file.write(b'{"displayTimeUnit":"ns","traceEvents":[\n')
            separator = b""
            for rank in ranks:
                trace = _trace_of(views[rank], job.files.paths)
                writer = _RankWriter(views[rank], aligned, zero_ns, span)
                for events in writer.events(trace, _title(views[rank], trace, job.context.mesh)):
                    file.write(separator + _encode(events)[1:-1])
                    separator = b",\n"
                num_slices += writer.num_slices
            file.write(b"\n]}\n")
        if not num_slices:
            steps_end_ns = max(view.window.end_ns for view in aligned.views.values())
            what = f"nothing of {ranks_words(ranks)} is in the chosen time"
            raise UsageError(what, what_next=f"the profiled steps are 0 to {(steps_end_ns - zero_ns) / 1e6:,.1f} ms")
        temporary.replace(output)
    except OSError as error:
        raise from_os_error(error, "cannot be written", where=str(output)) from error
    finally:
        with suppress(OSError):
            temporary.unlink()
    return Exported(output, ranks, num_slices, aligned.clocks.residual_us)


def _opened(path: Path, *, is_packed: bool) -> BinaryIO:
    return gzip.open(path, "wb", compresslevel=3) if is_packed else path.open("wb")  # type: ignore[return-value]


def _chosen(known: list[int], wanted: frozenset[int] | None) -> list[int]:
    if wanted is None:
        return known
    unknown = sorted(wanted - set(known))
    if unknown:
        raise UsageError(f"no trace of {ranks_words(unknown)}", what_next=f"there are {ranks_words(known)}")
    return sorted(wanted)


def _span(selection: Selection, zero_ns: int) -> tuple[int, int]:
    far, times = np.iinfo(np.int64), (selection.start_ms, selection.end_ms)
    for time in times:
        if time is not None and not abs(time) < _FAR_MS:
            raise UsageError(f"{time} is not a time in ms", what_next="give ms after the first profiled step")
    start, end = (None if time is None else zero_ns + int(time * 1e6) for time in times)
    start, end = far.min if start is None else start, far.max if end is None else end
    if start >= end:
        raise UsageError("the time to export is empty", what_next="give --start before --end, in ms")
    return start, end


_FAR_MS = 1e12


def _trace_of(view: RankView, paths: Sequence[str]) -> TraceColumns:
    """The trace of a rank, read again: views hold no events."""
    for path in paths:
        if path == view.header.path:
            for trace in open_ranks(path):
                if trace.header.part == view.header.part:
                    return trace
    raise DataError("its trace is not there any more", where=view.header.path, what_next="export where the traces are")


def _title(view: RankView, trace: TraceColumns, mesh: MeshSizes) -> str:
    """Name of a rank's process."""
    place = dict(view.header.place)
    sizes = {name: getattr(mesh, name) or 1 for name in ("pp", "dp", "cp", "ep", "tp")}
    large = [name for name, size in sizes.items() if size > 1]
    if not place and len(large) == 1 and view.rank < sizes[large[0]]:
        place = {large[0]: view.rank}
    coordinates = " ".join(f"{name.upper()}{index}" for name, index in place.items())
    rows = trace.rows_of(*DEVICE_CATEGORIES)
    lane = trace.lanes[int(np.bincount(trace.lane[rows]).argmax())] if len(rows) else None
    where = "/".join(filter(None, (view.header.host_name, f"gpu{lane.process}" if lane is not None else "")))
    return " ".join(filter(None, (f"[{coordinates}]" if coordinates else "", f"rank {view.rank}", where)))


class _RankWriter:
    """Events of one rank: slices of its tracks, their names, and arrows from launches.

    Attributes:
        num_slices: of the trace's own events, so far.
    """

    def __init__(self, view: RankView, job: AlignedJob, zero_ns: int, span: tuple[int, int]) -> None:
        self.num_slices = 0
        self._rank, self._aligned = view.rank, job.views[view.rank]
        self._arrivals = job.arrivals
        self._zero_ns, self._span = zero_ns, span
        self._own = np.array([view.window.start_ns, view.window.end_ns], np.int64)
        self._job = np.array([self._aligned.window.start_ns, self._aligned.window.end_ns], np.int64)

    def events(self, trace: TraceColumns, title: str) -> Iterator[list[dict[str, Any]]]:
        """Groups of events, none of them empty."""
        yield [
            {"ph": "M", "pid": self._rank + 1, "name": "process_name", "args": {"name": title}},
            {"ph": "M", "pid": self._rank + 1, "name": "process_sort_index", "args": {"sort_index": self._rank}},
        ]
        yield from filter(None, self._of_analysis())
        rows = trace.rows_of(*DEVICE_CATEGORIES, *_HOST_CATEGORIES)
        start, end = self._on_job_clock(trace.start_ns[rows]), self._on_job_clock(trace.end_ns[rows])
        is_inside = (end > self._span[0]) & (start < self._span[1])
        rows, start, end = rows[is_inside], start[is_inside], end[is_inside]
        self.num_slices = len(rows)
        lanes = trace.lane[rows]
        for place, lane in enumerate(np.unique(lanes).tolist()):
            one = trace.lanes[lane]
            name = f"gpu {one.process} stream {one.thread}" if one.on_device else f"thread {one.thread}"
            is_own = lanes == lane
            own = rows[is_own]
            words = [trace.names[number] for number in trace.name[own].tolist()]
            first = _FIRST_LANE + place * _SPARE_LANES
            facts = partial(_arguments, trace, own)
            yield from self._track(first, name, start[is_own], end[is_own], words, facts)
        yield from self._arrows(trace, rows, start)

    def _on_job_clock(self, times_ns: Times) -> Times:
        """Times of the rank's own clock; the correction is linear over the window, and goes on beyond it."""
        (own_start, own_end), (job_start, job_end) = self._own.tolist(), self._job.tolist()
        stretch = (job_end - job_start) / (own_end - own_start) - 1.0 if own_end > own_start else 0.0
        since = times_ns - own_start
        moved: Times = since + job_start + np.rint(since * stretch).astype(np.int64)
        return moved

    def _of_analysis(self) -> Iterator[list[dict[str, Any]]]:
        window, segments = self._aligned.window, self._aligned.segments
        bounds = window.step_bounds_ns
        steps = [f"step {index}" for index in window.index.tolist()]
        yield from self._track(_STEPS, "steps", bounds[:-1], bounds[1:], steps)
        on_cpu = not self._aligned.on_device
        words = [category_words(category, on_cpu=on_cpu) for category in CATEGORY_ORDER]
        names = [words[code] for code in segments.category.tolist()]
        yield from self._track(_BREAKDOWN, "time breakdown", segments.start_ns, segments.end_ns, names)
        is_loss = (segments.cause != TO_ATTRIBUTE) & ~np.isin(segments.category, _WORK)
        waits = waits_to_attribute(self._aligned, self._arrivals)
        names = [cause_phrase(CAUSE_ORDER[code]) for code in segments.cause[is_loss].tolist()]
        late = [self._arrivals[CallId(self._rank, call)].rank for call in waits.call.tolist()]
        start = np.concatenate((segments.start_ns[is_loss], waits.start_ns))
        end = np.concatenate((segments.end_ns[is_loss], waits.end_ns))
        yield from self._track(_CAUSES, "causes", start, end, [*names, *(f"waits for rank {rank}" for rank in late)])

    def _track(
        self,
        number: int,
        name: str,
        start: Times,
        end: Times,
        names: Sequence[str],
        facts_of: Callable[[Places], list[tuple[str, dict[str, Any]]]] | None = None,
    ) -> Iterator[list[dict[str, Any]]]:
        """Slices of one track, cut at the ends of the exported time; those that overlap another on tracks below it.

        Args:
            facts_of: category and arguments of the slices at some places.
        """
        is_inside = (end > self._span[0]) & (start < self._span[1])
        places = np.flatnonzero(is_inside)
        order = places[np.lexsort((-end[places], start[places]))]
        lanes = nested_lanes(start[order], end[order], _SPARE_LANES)
        if lanes:
            yield list(self._heads(number, name, sorted(set(lanes))))
        for first in range(0, len(lanes), _BATCH):
            chosen = order[first : first + _BATCH]
            start_us, end_us = ((np.clip(times[chosen], *self._span) - self._zero_ns) / 1e3 for times in (start, end))
            columns = (chosen.tolist(), lanes[first : first + _BATCH], start_us.tolist(), end_us.tolist())
            events: list[dict[str, Any]] = [
                {
                    "ph": "X",
                    "pid": self._rank + 1,
                    "tid": self._thread(number + lane),
                    "name": names[place],
                    "ts": round(begins, 3),
                    "dur": round(ends - begins, 3),
                }
                for place, lane, begins, ends in zip(*columns, strict=True)
            ]
            if facts_of is not None:
                for event, (category, arguments) in zip(events, facts_of(chosen), strict=True):
                    event["cat"], event["args"] = category, arguments
            yield events

    def _heads(self, number: int, name: str, lanes: Iterable[int]) -> Iterator[dict[str, Any]]:
        for lane in lanes:
            own = {"pid": self._rank + 1, "tid": self._thread(number + lane), "ph": "M"}
            yield {**own, "name": "thread_name", "args": {"name": f"{name} ({lane + 1})" if lane else name}}
            yield {**own, "name": "thread_sort_index", "args": {"sort_index": number + lane}}

    def _thread(self, number: int) -> int:
        return (self._rank + 1) * _THREADS_OF_RANK + number

    def _arrows(self, trace: TraceColumns, rows: Places, start: Times) -> Iterator[list[dict[str, Any]]]:
        """From the launch of each kernel or copy to it."""
        category, correlation = trace.category[rows], trace.correlation[rows]
        launches = np.flatnonzero(np.isin(category, _LAUNCHING) & (correlation != NONE))
        launched = np.flatnonzero(np.isin(category, DEVICE_CATEGORIES) & (correlation != NONE))
        if not len(launches) or not len(launched):
            return
        launches = launches[np.argsort(correlation[launches], kind="stable")]
        found = np.searchsorted(correlation[launches], correlation[launched])
        has_launch = found < len(launches)
        has_launch[has_launch] = correlation[launches[found[has_launch]]] == correlation[launched[has_launch]]
        thread = {lane: _FIRST_LANE + at * _SPARE_LANES for at, lane in enumerate(np.unique(trace.lane[rows]).tolist())}
        events: list[dict[str, Any]] = []
        for to, place in zip(launched[has_launch].tolist(), found[has_launch].tolist(), strict=True):
            if len(events) >= _BATCH:
                yield events
                events = []
            for row, phase in ((int(launches[place]), {"ph": "s"}), (to, {"ph": "f", "bp": "e"})):
                events.append(
                    {
                        **phase,
                        "pid": self._rank + 1,
                        "tid": self._thread(thread[int(trace.lane[rows[row]])]),
                        "ts": round((int(start[row]) - self._zero_ns) / 1e3, 3),
                        "id": (self._rank << 40) + to,
                        "name": "launch",
                        "cat": "launch",
                    }
                )
        if events:
            yield events


_THREADS_OF_RANK = 1 << 20
_WORK = [CATEGORY_ORDER.index(category) for category in COMPUTE_CATEGORIES]


def nested_lanes(start: Times, end: Times, most: int) -> list[int]:
    """The first lane in which each slice lies inside or beside all others; the last lane takes what fits nowhere.

    Args:
        start, end: sorted by start, of equal ones the longest first; shape (slices,).
    """
    open_ends: list[list[int]] = [[]]
    lanes = []
    for begins, ends in zip(start.tolist(), end.tolist(), strict=True):
        for lane in range(most):
            if lane == len(open_ends):
                open_ends.append([])
            stack = open_ends[lane]
            while stack and stack[-1] <= begins:
                stack.pop()
            if not stack or ends <= stack[-1] or lane == most - 1:
                stack.append(ends)
                lanes.append(lane)
                break
    return lanes


_KINETO_WORDS = {
    Category.MEMCPY: "gpu_memcpy",
    Category.MEMSET: "gpu_memset",
    Category.RUNTIME: "cuda_runtime",
}
"""Kineto's words for categories where they are not the lower-case name."""


def _arguments(trace: TraceColumns, rows: Places, places: Places) -> list[tuple[str, dict[str, Any]]]:
    """Kineto's category of the rows at some places, and what the trace says of them beside their time."""
    rows = rows[places]
    columns = (trace.category[rows], trace.correlation[rows], trace.num_bytes[rows], trace.shapes[rows])
    words = [_KINETO_WORDS.get(category, category.name.lower()) for category in Category]
    return [
        (
            words[category],
            {
                **({"correlation": correlation} if correlation != NONE else {}),
                **({"bytes": num_bytes} if num_bytes != NONE else {}),
                **({"Input Dims": trace.shape_table[shapes].input_dims} if shapes != NONE else {}),
            },
        )
        for category, correlation, num_bytes, shapes in zip(*(column.tolist() for column in columns), strict=True)
    ]
