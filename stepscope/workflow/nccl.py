"""Report on a job's communication from any mixture of NCCL's files: logs, topology, RAS, inspector."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from pathlib import Path

from stepscope.analyzer.nccl import explain_nccl
from stepscope.collectors.nccl.inspector import read_inspector
from stepscope.collectors.nccl.log import read_log
from stepscope.collectors.nccl.ras import looks_like_ras, read_ras
from stepscope.collectors.nccl.topology import looks_like_topology, read_topology
from stepscope.collectors.nccl.xpu_timer import looks_like_xpu_timer, read_xpu_timer
from stepscope.core.documents.evidence import Notice
from stepscope.core.documents.nccl import NcclReport
from stepscope.core.documents.nccl_logs import HangFlags, InspectorCall, LogEvent, RasStatus
from stepscope.core.documents.run_directory import NCCL_FOLDER
from stepscope.core.errors import DataError
from stepscope.core.text.numbers import counted
from stepscope.workflow.inputs.paths import check_readable, part_of_run, refuse_many_runs

_HEAD_LINES = 400
_MOST_HEAD = 1 << 22
"""Characters: lines of what is no text may be long."""
_LARGEST_WHOLE_BYTES = 1 << 26
"""Of files that are no lines: topologies, answers of RAS, pages."""
_LONGEST_LINE = 1 << 20
_MOST_UNPACKED = 1 << 34
_IN_INSPECTOR = ('"coll_perf"', '"p2p_perf"', "nccl_bus_bandwidth_gbs{", "nccl_p2p_bus_bandwidth_gbs{")


@dataclass(slots=True)
class _Told:
    events: list[LogEvent] = field(default_factory=list)
    calls: list[InspectorCall] = field(default_factory=list)
    statuses: list[RasStatus] = field(default_factory=list)
    pages: list[HangFlags] = field(default_factory=list)
    notices: list[Notice] = field(default_factory=list)
    num_files: int = 0

    @property
    def is_empty(self) -> bool:
        """Whether no file said anything."""
        return not (self.events or self.calls or self.statuses or self.pages)


def read_nccl(paths: Sequence[str]) -> NcclReport:
    """The report on files, folders of them, or run directories with a folder nccl/.

    Logs (NCCL_DEBUG=INFO, of one rank or of all, with whatever a launcher puts before a line), inspector files, answers
    of RAS, topology files and pages of xpu_timer are told apart by what they hold; files may be gzipped.

    Raises:
        DataError: a path is not there, or nothing in it is NCCL's.
    """
    told = _Told()
    for path in paths:
        check_readable(path)
        for file in _files(Path(path)):
            _read(file, told)
    if told.is_empty:
        refuse_many_runs(paths)
        trouble = f" ({told.notices[0].message})" if told.notices else ""
        raise DataError(
            f"nothing of NCCL's in {counted(told.num_files, 'file')}{trouble}",
            where=", ".join(paths),
            what_next="run the job with NCCL_DEBUG=INFO and give its log",
        )
    report = explain_nccl(told.events, told.calls, told.statuses, told.pages)
    return replace(report, warnings=told.notices)


def _files(path: Path) -> list[Path]:
    place = part_of_run(path, NCCL_FOLDER)
    return sorted(file for file in place.iterdir() if file.is_file()) if place.is_dir() else [place]


def _read(file: Path, told: _Told) -> None:
    told.num_files += 1
    try:
        _read_kind(file, told)
    except DataError as error:
        told.notices.append(Notice("unusable_file", str(error)))
    except (OSError, EOFError, zlib.error) as error:
        told.notices.append(
            Notice("unusable_file", f"{file}: cannot be read ({getattr(error, 'strerror', None) or error})")
        )


def _read_kind(file: Path, told: _Told) -> None:
    lines = _lines(file)
    beginning, num_characters = list[str](), 0
    for line in islice(lines, _HEAD_LINES):
        beginning.append(line)
        num_characters += len(line)
        if num_characters > _MOST_HEAD:
            break
    head = "".join(beginning)
    if looks_like_topology(head):
        told.events += read_topology(_whole(beginning, lines, file), file=str(file))
    elif any(mark in head for mark in _IN_INSPECTOR):
        calls = list(read_inspector(chain(beginning, lines)))
        told.calls += [call for call in calls if call is not None]
        if num_unread := sum(call is None for call in calls):
            told.notices.append(
                Notice("unreadable_lines", f"{file}: {counted(num_unread, 'line')} of the inspector cannot be read")
            )
    elif looks_like_xpu_timer(head):
        told.pages.append(read_xpu_timer(_whole(beginning, lines, file), file=str(file)))
    elif looks_like_ras(head):
        told.statuses.append(read_ras(_whole(beginning, lines, file), file=str(file)))
    else:
        told.events += read_log(chain(beginning, lines), file=str(file))


def _lines(file: Path) -> Iterator[str]:
    """A line that is longer than any of NCCL's comes in pieces: what is no text may have none that ends."""
    if not file.is_file():  # a pipe or a device may never end
        raise DataError("is no file", where=str(file), what_next="give a file or a folder")
    with file.open("rb") as stream:
        is_gzip = stream.read(2) == b"\x1f\x8b"
    with gzip.open(file, "rt", errors="replace") if is_gzip else file.open(errors="replace") as lines:
        num_characters = 0
        while line := lines.readline(_LONGEST_LINE):
            num_characters += len(line)
            if is_gzip and num_characters > _MOST_UNPACKED:
                raise DataError(
                    f"unpacks to more than {_MOST_UNPACKED:,} characters", where=str(file), what_next="unpack it first"
                )
            yield line


def _whole(beginning: list[str], rest: Iterator[str], file: Path) -> str:
    parts, size = list(beginning), 0
    for line in rest:
        size += len(line)
        if size > _LARGEST_WHOLE_BYTES:
            raise DataError("is too large for what it is", where=str(file), what_next="give the file NCCL wrote")
        parts.append(line)
    return "".join(parts)
