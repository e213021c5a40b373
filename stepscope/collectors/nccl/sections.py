"""Sections of a file that may hold anything of NCCL's: answers of RAS, topologies, measurements, and log lines between.

A job's output may have all of them, as where a script asks RAS while the job runs. Each section is recognised where it
begins, not by the file's head.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from stepscope.collectors.nccl.inspector import read_inspector
from stepscope.collectors.nccl.pattern import without_time
from stepscope.collectors.nccl.rank_status import (
    RAS_JSON_MARK,
    RAS_TEXT_BEGINNINGS,
    RAS_VERSION_MARK,
    RasTextReader,
    before_ras,
    read_ras,
)
from stepscope.collectors.nccl.topology import read_topology
from stepscope.collectors.nccl.wrapped_lines import begins_record
from stepscope.core.documents.nccl_facts import InspectorCall, PlannedWay, TopologyNode
from stepscope.core.documents.nccl_rank_status import RasStatus
from stepscope.core.errors import DataError

_MAX_BLOCK = 1 << 26
"""Characters of a document of several lines."""
MAX_LINES_BEFORE_MARK = 12
"""Lines of a document in which it must be known as one of NCCL's."""
_INSPECTOR_MARKS = ('"coll_perf"', '"p2p_perf"', '{"header"')
_SERIES_MARK = "bus_bandwidth_gbs{"
_FLAG_MARK = "XPU_TIMER_"
_XML_BEGINNINGS = ("<?xml", "<!DOCTYP")
"""First characters of lines that may come before a mark."""
_XML_MARKS, _XML_ENDS = ("<system", "<graphs"), ("</system>", "</graphs>")
SECTION_MARKS = (
    RAS_JSON_MARK,
    RAS_VERSION_MARK,
    *RAS_TEXT_BEGINNINGS,
    *_INSPECTOR_MARKS,
    _SERIES_MARK,
    _FLAG_MARK,
    *_XML_MARKS,
)
"""A section has one of these in the first of its lines."""
_JSON_BEGINNINGS = frozenset('"{}[],-0123456789tfn')
"""First characters of the lines of a JSON document."""


class _Form(StrEnum):
    """Form of a document of several lines."""

    JSON = "json"
    XML = "xml"


@dataclass(slots=True)
class _Document:
    """Lines of a document so far; `is_known`: a mark of NCCL's was among them."""

    form: _Form
    lines: list[tuple[int, str]]
    size: int = 0
    depth: int = 0
    is_known: bool = False

    def add(self, number: int, line: str) -> bool:
        """Take a line; return whether the document ends with it."""
        self.lines.append((number, line))
        self.size += len(line)
        if self.form is _Form.JSON:
            self.is_known = self.is_known or RAS_JSON_MARK in line
            self.depth += line.count("{") - line.count("}")
            return self.depth <= 0
        self.is_known = self.is_known or any(mark in line for mark in _XML_MARKS)
        return any(end in line for end in _XML_ENDS)

    def accepts(self, line: str) -> bool:
        """Whether a line may belong to it: a document that is cut off must not swallow the log that follows."""
        if self.size > _MAX_BLOCK or (not self.is_known and self._is_foreign(line)):
            return False
        is_piece = not self.lines[-1][1].endswith("\n")  # a long line comes in pieces
        if is_piece or not line.strip():
            return True
        return not begins_record(line) and (self.form is _Form.XML or line.lstrip()[:1] in _JSON_BEGINNINGS)

    def _is_foreign(self, line: str) -> bool:
        """Whether a document without a mark so far is none of NCCL's: the mark is late, or another document begins."""
        width = 1 if self.form is _Form.JSON else 5
        is_another = line.lstrip()[:width] == self.lines[0][1].lstrip()[:width]
        return is_another or len(self.lines) >= MAX_LINES_BEFORE_MARK

    def text(self) -> str:
        """All lines."""
        return "".join(line for _, line in self.lines)


class Sections:
    """Reader of one file's sections; all but the log lines are collected while those are read."""

    def __init__(self, lines: Iterable[tuple[int, str]], *, file: str) -> None:
        """Read numbered lines."""
        self._lines, self._file = iter(lines), file
        self._again: deque[tuple[int, str]] = deque()
        self._ras_text: RasTextReader | None = None
        self._before_ras = ""
        self._is_in_document = False
        self._json_statuses: list[RasStatus] = []
        self.calls: list[InspectorCall] = []
        self.num_unreadable_calls = 0
        self.topology: list[TopologyNode | PlannedWay] = []
        self.flag_lines: list[str] = []
        self.errors: list[DataError] = []

    def statuses(self) -> list[RasStatus]:
        """Answers of RAS, in the file's order."""
        of_text = [] if self._ras_text is None else self._ras_text.statuses()
        of_text = [status for status in of_text if status.rows or status.communicators or status.dead]
        return sorted([*of_text, *self._json_statuses], key=lambda status: status.line)

    def is_idle(self) -> bool:
        """Whether the next line has nothing to do with those before."""
        return not (self._again or self._is_in_document) and self._ras_text is None

    def log_lines(self) -> Iterator[tuple[int, str]]:
        """Lines that belong to no other section, with their numbers."""
        lines, again = self._lines, self._again
        while (numbered := again.popleft() if again else next(lines, None)) is not None:
            number, line = numbered
            if " NCCL " in line and RAS_VERSION_MARK not in line:  # nearly all lines of a log
                yield numbered
                continue
            line = without_time(line)
            first = line.lstrip()[:8]
            if first[:1] == "{":
                if not self._take_measurement(line):
                    yield from self._document(_Form.JSON, number, line)
            elif first[:1] == "<" and (first.startswith(_XML_BEGINNINGS) or any(mark in line for mark in _XML_MARKS)):
                yield from self._document(_Form.XML, number, line)
            elif _FLAG_MARK in line:
                self.flag_lines.append(line)
            elif _SERIES_MARK in line and self._take_measurement(line):
                continue
            else:
                before = before_ras(line)
                if before is not None:
                    self._before_ras = before
                if before is not None or self._ras_text is not None or first.startswith(RAS_TEXT_BEGINNINGS):
                    self._feed_ras(number, line.removeprefix(self._before_ras))
                yield numbered

    def _next(self) -> tuple[int, str] | None:
        return self._again.popleft() if self._again else next(self._lines, None)

    def _take_measurement(self, line: str) -> bool:
        if _SERIES_MARK not in line and not any(mark in line for mark in _INSPECTOR_MARKS):
            return False
        for call in read_inspector([line]):
            if call is None:
                self.num_unreadable_calls += 1
            else:
                self.calls.append(call)
        return True

    def _feed_ras(self, number: int, line: str) -> None:
        if self._ras_text is None:
            self._ras_text = RasTextReader(self._file)
        self._ras_text.feed(number, line)

    def _document(self, form: _Form, number: int, line: str) -> Iterator[tuple[int, str]]:
        """Collect a document; its first line is one of the log if it is none of NCCL's, the others are read again."""
        document = _Document(form, [])
        self._is_in_document = True
        is_whole = document.add(number, line)
        while not is_whole and (numbered := self._next()) is not None:
            number, line = numbered[0], without_time(numbered[1])
            if not document.accepts(line):
                self._again.appendleft(numbered)
                break
            is_whole = document.add(number, line)
        self._is_in_document = False
        if document.is_known:
            self._read(document)
        else:
            self._again.extendleft(reversed(document.lines[1:]))
            yield document.lines[0]

    def _read(self, document: _Document) -> None:
        line = document.lines[0][0]
        try:
            if document.form is _Form.JSON:
                self._json_statuses.append(read_ras(document.text(), file=self._file, line=line))
            else:
                self.topology += read_topology(document.text(), file=self._file, line=line)
        except DataError as error:
            self.errors.append(error)
