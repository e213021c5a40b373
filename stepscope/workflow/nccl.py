"""NCCL reports from any mixture of files: logs, topologies, RAS answers, inspector output."""

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
from stepscope.collectors.nccl.rank_status import looks_like_ras, looks_like_xpu_timer, read_ras, read_xpu_timer
from stepscope.collectors.nccl.topology import looks_like_topology, read_topology
from stepscope.core.documents.nccl import HangFlags, InspectorCall, LogEvent, NcclReport, RasStatus
from stepscope.core.documents.run_directory import NCCL_FOLDER
from stepscope.core.errors import DataError
from stepscope.core.text.numbers import counted
from stepscope.core.vocabulary import Notice
from stepscope.workflow.inputs.paths import part_of_run, refuse_many_runs

_HEAD_LINES = 400
_MAX_HEAD = 1 << 22
"""Characters; lines of a file that is not text may be long."""
_MAX_WHOLE_BYTES = 1 << 26
"""Largest file that is read as a whole: topologies, RAS answers, xpu_timer pages."""
_MAX_LINE = 1 << 20
_MAX_UNPACKED = 1 << 34
_INSPECTOR_MARKS = ('"coll_perf"', '"p2p_perf"', "nccl_bus_bandwidth_gbs{", "nccl_p2p_bus_bandwidth_gbs{")


@dataclass(slots=True)
class _Parsed:
    events: list[LogEvent] = field(default_factory=list)
    calls: list[InspectorCall] = field(default_factory=list)
    statuses: list[RasStatus] = field(default_factory=list)
    pages: list[HangFlags] = field(default_factory=list)
    notices: list[Notice] = field(default_factory=list)
    num_files: int = 0

    @property
    def is_empty(self) -> bool:
        """Whether no file contained anything of NCCL's."""
        return not (self.events or self.calls or self.statuses or self.pages)


def read_nccl(paths: Sequence[str]) -> NcclReport:
    """NCCL report on files, folders, or run directories with a folder nccl/.

    Logs (NCCL_DEBUG=INFO, of one rank or of all, with any prefix of a launcher), inspector files, RAS answers, topology
    files and xpu_timer pages are recognised by their content; files may be gzipped.

    Raises:
        DataError: a path does not exist, or contains nothing of NCCL's.
    """
    parsed = _Parsed()
    for place in [part_of_run(path, NCCL_FOLDER) for path in paths]:
        files = sorted(file for file in place.iterdir() if file.is_file()) if place.is_dir() else [place]
        for file in files:
            _read(file, parsed)
    if parsed.is_empty:
        refuse_many_runs(paths)
        trouble = f" ({parsed.notices[0].message})" if parsed.notices else ""
        raise DataError(
            f"nothing of NCCL's in {counted(parsed.num_files, 'file')}{trouble}",
            where=", ".join(paths),
            what_next="run the job with NCCL_DEBUG=INFO and give its log",
        )
    report = explain_nccl(parsed.events, parsed.calls, parsed.statuses, parsed.pages)
    return replace(report, warnings=parsed.notices)


def _read(file: Path, parsed: _Parsed) -> None:
    parsed.num_files += 1
    try:
        _read_kind(file, parsed)
    except DataError as error:
        parsed.notices.append(Notice("unusable_file", str(error)))
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        parsed.notices.append(Notice("unusable_file", f"{file}: cannot be read ({reason})"))


def _read_kind(file: Path, parsed: _Parsed) -> None:
    lines = _lines(file)
    beginning, num_characters = list[str](), 0
    for line in islice(lines, _HEAD_LINES):
        beginning.append(line)
        num_characters += len(line)
        if num_characters > _MAX_HEAD:
            break
    head = "".join(beginning)
    if looks_like_topology(head):
        parsed.events += read_topology(_whole(beginning, lines, file), file=str(file))
    elif any(mark in head for mark in _INSPECTOR_MARKS):
        calls = list(read_inspector(chain(beginning, lines)))
        parsed.calls += [call for call in calls if call is not None]
        if num_unread := sum(call is None for call in calls):
            unread = f"{file}: {counted(num_unread, 'line')} of the inspector cannot be read"
            parsed.notices.append(Notice("unreadable_lines", unread))
    elif looks_like_xpu_timer(head):
        parsed.pages.append(read_xpu_timer(_whole(beginning, lines, file), file=str(file)))
    elif looks_like_ras(head):
        parsed.statuses.append(read_ras(_whole(beginning, lines, file), file=str(file)))
    else:
        parsed.events += read_log(chain(beginning, lines), file=str(file))


def _lines(file: Path) -> Iterator[str]:
    """Lines of a file; longer ones than NCCL writes come in pieces, as a file that is not text may have no line end."""
    if not file.is_file():  # a pipe or a device may never end
        raise DataError("is not a regular file", where=str(file), what_next="give a file or a folder")
    with file.open("rb") as stream:
        is_gzip = stream.read(2) == b"\x1f\x8b"
    with gzip.open(file, "rt", errors="replace") if is_gzip else file.open(errors="replace") as lines:
        num_characters = 0
        while line := lines.readline(_MAX_LINE):
            num_characters += len(line)
            if is_gzip and num_characters > _MAX_UNPACKED:
                raise DataError(
                    f"unpacks to more than {_MAX_UNPACKED:,} characters", where=str(file), what_next="unpack it first"
                )
            yield line


def _whole(beginning: list[str], rest: Iterator[str], file: Path) -> str:
    parts, size = list(beginning), 0
    for line in rest:
        size += len(line)
        if size > _MAX_WHOLE_BYTES:
            raise DataError("is too large for a file of NCCL's", where=str(file), what_next="give the file NCCL wrote")
        parts.append(line)
    return "".join(parts)
