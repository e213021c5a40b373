"""Contents of trace files: who recorded them, what they contain, what was repaired."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from stepscope.analyzer.ledger.activities import device_activities
from stepscope.analyzer.ledger.unrecorded_work import launches, uses_gpu
from stepscope.core.errors import DataError, none_usable
from stepscope.core.text.numbers import counted
from stepscope.core.vocabulary import Notice
from stepscope.trace.columns import Category, TraceColumns
from stepscope.workflow.fan_out.engine import Progress
from stepscope.workflow.inputs.paths import OnlyRunError
from stepscope.workflow.inputs.trace_files import ReducedTraceError, find_trace_files, open_ranks

TRACE_INFO_SCHEMA = "stepscope.trace_info/1"


_STEP = re.compile(r"ProfilerStep#(\d+)$")


@dataclass(frozen=True, slots=True)
class GroupInfo:
    """Process group named in a trace file; `ranks` is None if the trace does not list them.

    Attributes:
        num_calls: kernels and operators that name it.
    """

    name: str
    description: str
    ranks: list[int] | None
    num_calls: int


@dataclass(frozen=True, slots=True)
class TraceProblems:
    """Events of a trace file that had to be repaired or left out to read it, and those that the profiler lost.

    Attributes:
        repaired: events whose damaged text was repaired.
        dropped: events left out.
        clipped: device activities cut where the next one on their stream starts.
        truncated: the file ends before its closing bracket.
        clipped_ms: time cut off.
        damaged_at_byte: offset in the text of the first damaged event.
        lost_launches: launches of kernels that left no kernel.
        lost_graph_launches: launches of CUDA graphs that left no kernels.
        no_gpu_activity: nothing of a GPU is recorded, though the job uses one.
    """

    repaired: int
    dropped: int
    clipped: int
    truncated: bool
    clipped_ms: float = 0.0
    damaged_at_byte: int | None = None
    lost_launches: int = 0
    lost_graph_launches: int = 0
    no_gpu_activity: bool = False


@dataclass(frozen=True, slots=True)
class TraceFileInfo:
    """Contents of one trace file, or of one rank in it. None if the trace does not record it.

    Attributes:
        path: as it was given.
        rank: of the job.
        world_size, backend: as torch.distributed recorded them.
        host: name of the machine.
        groups: process groups that it names.
        with_shapes, with_stacks: whether they were recorded.
        file_bytes: size of the file.
        part: in a file of several ranks, identifies this rank's events; empty in a file of one.
        versions: as recorded: CUDA or HIP, CUPTI, NCCL, torch.
        gpu: name of the devices that did work, else of the first device listed.
        accelerator: the recorded device where it is neither of NVIDIA nor of AMD; such traces are not analyzed.
        rank_source: header | collectives | file_name | device | order: where the rank comes from.
        place: index by parallel dimension, from the file's name.
        start_ns: start of the first event, ns since the epoch.
        span_ms: from the first event's start to the last one's end.
        num_events: entries of all phases, including lost ones.
        num_by_category: complete events by category.
        steps: indices of the ProfilerStep annotations, ascending.
        text_bytes: size of the JSON text.
    """

    path: str
    rank: int | None
    world_size: int | None
    backend: str | None
    host: str | None
    gpu: str | None
    versions: dict[str, str]
    start_ns: int
    span_ms: float
    steps: list[int]
    num_events: int
    num_by_category: dict[str, int]
    groups: list[GroupInfo]
    with_shapes: bool
    with_stacks: bool
    problems: TraceProblems
    file_bytes: int
    text_bytes: int
    part: str = ""
    accelerator: str | None = None
    rank_source: str | None = None
    place: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TraceInfo:
    """Contents of all trace files that could be read; the others are named in `warnings`."""

    files: list[TraceFileInfo]
    warnings: list[Notice]
    schema: str = TRACE_INFO_SCHEMA


def read_trace_info(paths: Sequence[str], *, on_progress: Progress | None = None) -> TraceInfo:
    """Describe trace files, folders, a run directory or fsspec URLs; `on_progress` is called before each file.

    Raises:
        DataError: none of the files can be used.
        UnreachableError: a URL's store does not answer.
    """
    files: list[TraceFileInfo] = []
    errors: list[DataError] = []
    found, notices = _find_all(paths, errors)
    reduced: list[ReducedTraceError] = []
    for done, path in enumerate(found):
        if on_progress is not None:
            on_progress(done, len(found), path)
        try:
            files += map(describe_trace, open_ranks(path))
        except ReducedTraceError as error:
            reduced.append(error)
        except DataError as error:
            errors.append(error)
    if not files:
        raise none_usable([*errors, *reduced], "paths", what_next="give the traces of torch.profiler")
    if reduced:
        first = f"{counted(len(reduced), 'trace was', 'traces were')} reduced to views; the first: {reduced[0].where}"
        notices.append(Notice("reduced_traces", first))
    return TraceInfo(files, notices + [Notice("unusable_file", str(error)) for error in errors])


def describe_trace(trace: TraceColumns) -> TraceFileInfo:
    """Workflow of `trace info`: the contents of one trace: rank, versions, steps, groups, problems."""
    header = trace.header
    start_ns = int(trace.start_ns.min())
    counts = np.bincount(trace.category, minlength=len(Category))
    return TraceFileInfo(
        path=header.path,
        rank=header.rank,
        world_size=header.world_size,
        backend=header.backend,
        host=header.host_name,
        gpu=_gpu(trace),
        versions=header.versions,
        start_ns=start_ns,
        span_ms=(int(trace.end_ns.max()) - start_ns) / 1e6,
        steps=_steps(trace),
        num_events=trace.quality.num_events,
        num_by_category={category.name.lower(): int(counts[category]) for category in Category if counts[category]},
        groups=_groups(trace),
        with_shapes=header.with_shapes,
        with_stacks=header.with_stacks,
        problems=_problems(trace),
        file_bytes=header.file_bytes,
        text_bytes=header.text_bytes,
        part=header.part,
        accelerator=header.accelerator,
        rank_source=header.rank_source,
        place=header.place,
    )


def _problems(trace: TraceColumns) -> TraceProblems:
    quality, activities = trace.quality, device_activities(trace)
    kernels, graphs = launches(trace, activities)
    return TraceProblems(
        quality.repaired,
        quality.dropped,
        quality.clipped,
        quality.truncated,
        clipped_ms=quality.clipped_ns / 1e6,
        damaged_at_byte=quality.damaged_at_byte,
        lost_launches=len(kernels.lost),
        lost_graph_launches=len(graphs.lost),
        no_gpu_activity=not len(activities) and trace.header.accelerator is None and uses_gpu(trace),
    )


def _find_all(paths: Sequence[str], errors: list[DataError]) -> tuple[list[str], list[Notice]]:
    """Expand each path separately, so that an unusable path does not hide the others."""
    found: list[str] = []
    notices: list[Notice] = []
    for path in paths:
        try:
            files = find_trace_files([path], capture="all")
        except OnlyRunError:
            raise
        except DataError as error:
            errors.append(error)
            continue
        found += [file for file in files.paths if file not in found]
        notices += files.notices
    return found, notices


def _gpu(trace: TraceColumns) -> str | None:
    busy = {trace.lanes[lane].process for lane in np.unique(trace.lane) if trace.lanes[lane].on_device}
    names = {device.name for device in trace.header.devices if device.index in busy and device.name}
    if names:
        return ", ".join(sorted(names))
    return next((device.name for device in trace.header.devices if device.name), None)


def _steps(trace: TraceColumns) -> list[int]:
    rows = trace.rows_of(Category.USER_ANNOTATION)
    matches = (_STEP.match(trace.names[name]) for name in np.unique(trace.name[rows]))
    return sorted({int(match[1]) for match in matches if match})


def _groups(trace: TraceColumns) -> list[GroupInfo]:
    used = trace.communication.group
    calls = np.bincount(used[used >= 0], minlength=len(trace.groups))
    return [
        GroupInfo(group.name, group.description, None if group.ranks is None else list(group.ranks), int(num_calls))
        for group, num_calls in zip(trace.groups, calls, strict=True)
    ]
