"""NCCL reports from any mixture of files: logs, topologies, RAS answers, inspector output."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from stepscope.analyzer.dumps.transports import JobLog
from stepscope.analyzer.nccl import explain_nccl
from stepscope.analyzer.nccl.transports import transports_of_job
from stepscope.collectors.nccl.log import LogReader, read_log
from stepscope.collectors.nccl.quiet_text import MAX_LINE, lines_with_marks, numbered_lines
from stepscope.collectors.nccl.rank_status import read_xpu_timer
from stepscope.collectors.nccl.sections import Sections
from stepscope.collectors.nccl.wrapped_lines import WidthDetector, join_paragraphs, join_rows
from stepscope.core.documents.nccl import NcclReport
from stepscope.core.documents.nccl_facts import InspectorCall, LogEvent, TimedOut, Version, Warned
from stepscope.core.documents.nccl_rank_status import HangFlags, RasStatus
from stepscope.core.documents.run_directory import NCCL_FOLDER
from stepscope.core.errors import DataError
from stepscope.core.text.numbers import counted
from stepscope.core.vocabulary import Notice
from stepscope.workflow.inputs.paths import part_of_run, refuse_many_runs

_BLOCK = 1 << 16
"""Characters."""
_MAX_UNPACKED = 1 << 34
_NumberedLines = Iterable[tuple[int, str]]


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
    files and xpu_timer pages are recognised by their content, also several of them in one file; files may be gzipped.

    Raises:
        DataError: a path does not exist, or contains nothing of NCCL's.
    """
    return _report(_parsed(paths))


def read_job_log(paths: Sequence[str], world_size: int) -> JobLog:
    """The NCCL report on files of one job, and its transports by the ranks of a job of this size.

    Raises:
        DataError: a path does not exist, or contains nothing of NCCL's.
    """
    parsed = _parsed(paths)
    return JobLog(_report(parsed), transports_of_job(parsed.events, world_size))


def _report(parsed: _Parsed) -> NcclReport:
    report = explain_nccl(parsed.events, parsed.calls, parsed.statuses, parsed.pages)
    return replace(report, warnings=[*report.warnings, *parsed.notices])


def _parsed(paths: Sequence[str]) -> _Parsed:
    """What NCCL wrote in files, folders and run directories.

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
    return parsed


def _read(file: Path, parsed: _Parsed) -> None:
    parsed.num_files += 1
    try:
        _read_sections(file, parsed)
    except DataError as error:
        parsed.notices.append(Notice("unusable_file", str(error)))
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        parsed.notices.append(Notice("unusable_file", f"{file}: cannot be read ({reason})"))


def _read_sections(file: Path, parsed: _Parsed) -> None:
    name = str(file)
    widths = WidthDetector()
    lines = lines_with_marks(_blocks(file), widths, lambda number: sections.is_idle() and reader.is_idle(number))
    sections, reader = Sections(lines, file=name), LogReader(name)
    events: list[LogEvent] = []
    is_whole = False
    try:
        events.extend(reader.read(sections.log_lines()))
        is_whole = True
    finally:  # of a file that breaks off the part before remains
        parsed.calls += sections.calls
        parsed.statuses += sections.statuses()
        if sections.flag_lines:
            parsed.pages.append(read_xpu_timer("".join(sections.flag_lines), file=name))
        parsed.notices += [Notice("unusable_file", str(error)) for error in sections.errors]
        if sections.num_unreadable_calls:
            unread = f"{file}: {counted(sections.num_unreadable_calls, 'line')} of the inspector cannot be read"
            parsed.notices.append(Notice("unreadable_lines", unread))
        parsed.events += sections.topology if is_whole else [*sections.topology, *events]
    is_other = bool(sections.calls or sections.topology or sections.flag_lines or sections.errors)
    joined = [] if is_other and not events else _joined_events(file, widths, events)
    if joined:
        parsed.notices.append(Notice("wrapped_lines", f"{file}: lines that a terminal broke at its width were joined"))
    parsed.events += joined or events


def _joined_events(file: Path, widths: WidthDetector, events: Sequence[LogEvent]) -> list[LogEvent]:
    """Events of the log with its broken lines joined, if those tell more than the lines as they are.

    Raises:
        DataError: the file has parts of torch's lines alone.
    """
    name, width = str(file), widths.width()
    ways: list[Callable[[_NumberedLines], _NumberedLines]] = []
    if width is not None:
        ways.append(lambda lines: join_rows(lines, width))
    if _num_timeouts(events) < widths.num_timeouts or widths.is_often_continued():
        ways += [lambda lines: join_paragraphs(lines, glue=""), lambda lines: join_paragraphs(lines, glue=" ")]
    best: list[LogEvent] = []
    for way in ways:
        found = list(read_log(way(Sections(numbered_lines(_blocks(file)), file=name).log_lines()), file=name))
        if _amount(found, widths) > max(_amount(events, widths), _amount(best, widths)):
            best = found
    if widths.num_timeouts and not events and not best:
        raise DataError(
            "has parts of torch's lines only: a terminal or an editor broke them",
            where=name,
            what_next="give the log as the job wrote it",
        )
    return best


def _num_timeouts(events: Sequence[LogEvent]) -> int:
    return sum(isinstance(event, TimedOut) for event in events)


def _amount(events: Sequence[LogEvent], widths: WidthDetector) -> tuple[int, int, int]:
    """How much was read; by the length of warnings too, if several lines are broken at one width."""
    warnings = [event.text for event in events if isinstance(event, Warned)]
    num_events = sum(not isinstance(event, Version) for event in events)  # a part of a line may have a version
    return num_events, -len(warnings), sum(map(len, warnings)) if widths.is_certain() else 0


def _blocks(file: Path) -> Iterator[str]:
    """Text of a file in blocks of whole lines, but for a line so long that the file may have no line end."""
    if not file.is_file():  # a pipe or a device may never end
        raise DataError("is not a regular file", where=str(file), what_next="give a file or a folder")
    with file.open("rb") as stream:
        is_gzip = stream.read(2) == b"\x1f\x8b"
    with gzip.open(file, "rt", errors="replace") if is_gzip else file.open(errors="replace") as text:
        num_characters, rest = 0, ""
        while more := text.read(_BLOCK):
            num_characters += len(more)
            if is_gzip and num_characters > _MAX_UNPACKED:
                raise DataError(
                    f"unpacks to more than {_MAX_UNPACKED:,} characters", where=str(file), what_next="unpack it first"
                )
            rest += more
            end = rest.rfind("\n") + 1 or (MAX_LINE if len(rest) >= MAX_LINE else 0)
            if end:
                yield rest[:end]
                rest = rest[end:]
        if rest:
            yield rest
