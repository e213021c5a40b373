"""Status of ranks: client and reader of NCCL's RAS service (JSON or text), and hang flags of xpu_timer.

RAS listens on 127.0.0.1:28028 in one process of a job on each node (NCCL_RAS_ADDR, NCCL_RAS_ENABLE) and asks the job's
other processes itself. It exists since NCCL 2.24; JSON came later. The text form names ranks only where something is
wrong.
"""

from __future__ import annotations

import json
import re
import socket
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from stepscope.collectors.inputs import looked_up, malformed_as_data_error
from stepscope.core.deadline_socket import DeadlineSocket
from stepscope.core.documents.nccl_rank_status import (
    HangFlags,
    RasCommunicator,
    RasGroup,
    RasRank,
    RasRow,
    RasStatus,
    launch_groups,
)
from stepscope.core.errors import DataError

RAS_JSON_MARK = '"communicators"'
RAS_VERSION_MARK = "compiled with CUDA"
RAS_TEXT_BEGINNINGS = ("Job summ", "Communic", "Group   ", "NCCL ver", *(f"#{digit}" for digit in range(10)))
"""How lines begin in which an answer in RAS's text form may."""


_SUMMARY = "Job summary"
_HEAD = re.compile(rf"(.*?)(?:{_SUMMARY}\s*$|NCCL version \S+ {RAS_VERSION_MARK})")


def before_ras(line: str) -> str | None:
    """What a launcher puts before each line, from the first line of an answer in the text form; None of others."""
    head = _HEAD.match(line) if _SUMMARY in line or RAS_VERSION_MARK in line else None
    return None if head is None else head[1]


def read_ras(text: str, *, file: str, line: int = 0) -> RasStatus:
    """Parse one answer, of text the last one; `line` is where it begins in the file.

    Raises:
        DataError: it is JSON of another kind, or incomplete.
    """
    if text.lstrip()[:1] != "{":
        reader = RasTextReader(file)
        for number, one in enumerate(text.splitlines(), line):
            reader.feed(number, one)
        return reader.statuses()[-1]
    with malformed_as_data_error("is not an answer of NCCL's RAS", where=file, what_next="ask it again, in JSON"):
        document = json.loads(text)
        communicators = tuple(_communicator(one) for one in document["communicators"])
        hosts = {rank.host for one in communicators for rank in (*one.ranks, *one.missing)}
        return RasStatus(
            file,
            communicators,
            rows=_rows(communicators),
            line=line,
            version=str(document.get("nccl_version", "")),
            num_nodes=len(hosts) or None,
        )


def _communicator(document: dict[str, Any]) -> RasCommunicator:
    return RasCommunicator(
        str(document["hash"]),
        int(document["size"]),
        tuple(_rank(one) for one in document.get("ranks") or ()),
        tuple(_rank(one) for one in document.get("missing_ranks") or ()),
    )


_ERRORS = {
    1: "unhandled CUDA error",
    2: "unhandled system error",
    3: "internal error",
    4: "invalid argument",
    5: "invalid usage",
    6: "remote process exited or there was a network error",
}
"""ncclResult_t; 0 is success, 7 in progress."""


def _rank(document: dict[str, Any]) -> RasRank:
    status = document.get("status") or {}
    codes = [int(status.get(key) or 0) for key in ("init_state", "async_error")]
    return RasRank(
        int(document["rank"]),
        str(document.get("host", "")),
        int(document.get("pid", 0)),
        {str(kind): int(count) for kind, count in (document.get("collective_counts") or {}).items()},
        bool(status.get("unresponsive")),
        bool(status.get("considered_dead")),
        next((_ERRORS[code] for code in codes if code in _ERRORS), ""),
    )


def _rows(communicators: Iterable[RasCommunicator]) -> tuple[RasRow, ...]:
    """Rows as in the table of RAS's text form; its JSON has none, and names no status."""
    alike = Counter(
        (len({rank.host for rank in (*one.ranks, *one.missing)}), one.size or 0, _errors(one)) for one in communicators
    )
    return tuple(RasRow(count, nodes, size, "", errors) for (nodes, size, errors), count in alike.items())


def _errors(one: RasCommunicator) -> str:
    kinds = {
        "INCOMPLETE": bool(one.missing),
        "ERROR": any(rank.error for rank in one.ranks),
        "MISMATCH": bool(launch_groups(one)),
    }
    return ",".join(kind for kind, is_so in kinds.items() if is_so) or "OK"


_NUMBER = r"(\d{1,9})"
_VERSION = re.compile(rf"NCCL version (\d\S*) {RAS_VERSION_MARK}")
_JOB = re.compile(rf"{_NUMBER} +[\d-]+ +[\d-]+ +{_NUMBER} +{_NUMBER}$")
"""Nodes, processes per node, GPUs per process, processes, GPUs."""
_TOTALS = re.compile(rf"{_NUMBER} +{_NUMBER} +{_NUMBER}$")
"""Nodes, processes, GPUs: a table of its own where nodes are unequal."""
_TABLE_ROW = re.compile(rf"\d+ +{_NUMBER} +{_NUMBER} +[\d-]+ +{_NUMBER} +\d+ +([A-Z]+) +([A-Z|,+/]+)$")
"""Group, communicators, nodes, ranks per node, ranks, ranks of all, status, errors."""
_COMMUNICATOR = re.compile(r"#\d+-\d+ \((?P<id>[0-9a-fx]+)\) (?P<what>[A-Z]+)")
_DIFFERENT = re.compile(
    r"Communicator ranks have different (?:(?P<kind>[A-Z]\w+) )?(?:collective )?(?:operation|status)"
)
_SEVERAL = re.compile(rf"{_NUMBER} ranks? (?P<what>(?:has|have|reported) .+)")
_ONE = re.compile(rf"Rank {_NUMBER} (?P<what>(?:has|reported) .+?)(?: -- (?:GPU|\[).*)?$")
_NAMED = re.compile(rf"Rank {_NUMBER} -- (?:GPU \S+ managed by process (?P<process>\d+) on node (?P<host>\S+)|\[)")
_OPERATION = re.compile(r"launched up to operation (\d{1,18})")
_MISSING = re.compile(r"[Tt]he missing ranks?: (?P<ranks>[\d, \-]+)")
_PROCESS = re.compile(r"Process \d+ on node \S+ managing GPUs? \S+")
_MAX_RANKS, _MAX_DIGITS = 1 << 17, 9


@dataclass(slots=True)
class _CommunicatorBuilder:
    """What the lines so far tell about a communicator; each group with the ranks that are named."""

    groups: list[tuple[RasGroup, list[int]]] = field(default_factory=list)
    missing: list[RasRank] = field(default_factory=list)

    def build(self, identity: str) -> RasCommunicator:
        groups = tuple(replace(group, ranks=tuple(ranks)) for group, ranks in self.groups)
        return RasCommunicator(identity, None, (), tuple(self.missing), groups)


class RasTextReader:
    """Reader of RAS's text form, line by line; one input may hold several answers and lines of other programs.

    Ranks that differ follow a line such as "6 ranks have launched up to operation 6649"; those of a majority are not
    listed.
    """

    def __init__(self, file: str) -> None:
        self._file = file
        self._statuses: list[RasStatus] = []
        self._begin(0)

    def _begin(self, line: int) -> None:
        self._status = RasStatus(self._file, (), line=line)
        self._rows: list[RasRow] = []
        self._communicators: dict[str, _CommunicatorBuilder] = {}
        self._dead: dict[str, None] = {}
        self._current: _CommunicatorBuilder | None = None
        self._problem, self._collective = "", ""
        self._has_totals_next = False

    def statuses(self) -> list[RasStatus]:
        """All answers so far, oldest first; at least one."""
        if self._statuses and not self._has_details():
            return self._statuses
        communicators = tuple(one.build(identity) for identity, one in self._communicators.items())
        rows, dead = tuple(self._rows), tuple(self._dead)
        return [*self._statuses, replace(self._status, communicators=communicators, rows=rows, dead=dead)]

    def _has_details(self) -> bool:
        return bool(self._rows or self._communicators or self._dead)

    def feed(self, number: int, raw_line: str) -> None:
        """Read one line; what is not RAS's has no effect."""
        line = raw_line.strip()
        totals = _TOTALS.match(line) if self._has_totals_next else None
        self._has_totals_next = line.startswith("(total)")
        version = _VERSION.match(line)
        if version is not None or line == _SUMMARY or line.startswith("Communicators..."):
            if self._has_details():
                self._statuses = self.statuses()
                self._begin(number)
            line_of_begin = self._status.line or number
            version_of_it = self._status.version if version is None else version[1]
            self._status = replace(self._status, version=version_of_it, line=line_of_begin)
        elif match := _TABLE_ROW.match(line):
            self._rows.append(RasRow(int(match[1]), int(match[2]), int(match[3]), match[4], match[5]))
        elif match := _JOB.match(line):
            self._status = replace(self._status, num_nodes=int(match[1]), num_gpus=int(match[3]))
        elif totals is not None:
            self._status = replace(self._status, num_nodes=int(totals[1]), num_gpus=int(totals[3]))
        elif _PROCESS.match(line):
            self._dead[line] = None
        elif match := _COMMUNICATOR.match(line):
            self._problem, self._collective = match["what"], ""
            self._current = self._communicators.setdefault(match["id"], _CommunicatorBuilder())
        elif self._current is not None:
            self._feed_details(line, self._current)

    def _feed_details(self, line: str, communicator: _CommunicatorBuilder) -> None:
        if match := _DIFFERENT.match(line):
            self._collective = match["kind"] or ""
        elif match := _SEVERAL.match(line):
            communicator.groups.append((self._group(int(match[1]), match["what"]), []))
        elif match := _NAMED.match(line):
            rank = int(match[1])
            if self._problem == "INCOMPLETE":
                process = int((match["process"] or "0")[:_MAX_DIGITS])
                communicator.missing.append(RasRank(rank, match["host"] or "", process, is_unresponsive=True))
            elif communicator.groups:
                communicator.groups[-1][1].append(rank)
        elif match := _ONE.match(line):
            communicator.groups.append((self._group(1, match["what"]), [int(match[1])]))
        elif match := _MISSING.search(line):
            communicator.missing += [
                RasRank(rank, "", 0, is_unresponsive=True) for rank in _parse_ranks(match["ranks"])
            ]

    def _group(self, num_ranks: int, text: str) -> RasGroup:
        operation = _OPERATION.search(text)
        number = int(operation[1]) if operation else 0 if "not launched any" in text else None
        what = re.sub(r"^ha(?:s|ve) ", "", text)
        return RasGroup(num_ranks, what, self._collective if number is not None else "", number)


def _parse_ranks(text: str) -> list[int]:
    """ "3, 7-9" -> [3, 7, 8, 9]."""
    numbers: list[int] = []
    for part in text.split(","):
        first, _, last = part.replace(" ", "").partition("-")
        if first and len(first) <= _MAX_DIGITS and len(numbers) < _MAX_RANKS:
            numbers += range(int(first), min(int((last or first)[:_MAX_DIGITS]), int(first) + _MAX_RANKS) + 1)
    return numbers[:_MAX_RANKS]


DEFAULT_ADDRESS = ("127.0.0.1", 28028)
_PROTOCOL = 2
_MAX_BYTES = 64 << 20
_MAX_LINE_BYTES = 4096
_READ_BYTES = 1 << 16


def ask_ras(address: tuple[str, int] = DEFAULT_ADDRESS, *, seconds: float = 5.0) -> str:
    """The service's answer to VERBOSE STATUS, to be read by `read_ras`.

    Args:
        address: host and port.
        seconds: for all of it; NCCL is asked to leave out ranks that take half as long.

    Raises:
        OSError: no process listens there, or none answers in time.
        DataError: what answers is not RAS.
    """
    where = f"{address[0]}:{address[1]}"
    not_ras = DataError("is not NCCL's RAS service", where=where, what_next="check the port")
    deadline = time.monotonic() + seconds
    with socket.create_connection((looked_up(address[0]), address[1]), timeout=seconds) as connection:
        channel = DeadlineSocket(connection, deadline)
        answers = channel.makefile("rb")

        def ask(line: str) -> str:
            channel.sendall(line.encode() + b"\n")
            answer = answers.readline(_MAX_LINE_BYTES)
            if not answer.endswith(b"\n"):
                raise not_ras
            return answer.decode(errors="replace")

        if not ask(f"CLIENT PROTOCOL {_PROTOCOL}").upper().startswith("SERVER PROTOCOL "):
            raise not_ras
        ask(f"TIMEOUT {max(int(seconds / 2), 1)}")
        ask("SET FORMAT json")  # a service that knows only text refuses, and goes on
        channel.sendall(b"VERBOSE STATUS\n")
        status = bytearray()
        while block := answers.read1(_READ_BYTES):
            status += block
            if len(status) > _MAX_BYTES:
                raise DataError(f"answers more than {_MAX_BYTES:,} bytes", where=where, what_next="check the port")
        return status.decode(errors="replace")


_FLAG = re.compile(r'XPU_TIMER_COMMON_HANG\{[^}]*\brank="(\d+)"[^}]*\} (\S+)')


def read_xpu_timer(text: str, *, file: str) -> HangFlags:
    """The flag of each rank that has one."""
    flags = {int(rank): value not in ("0", "0.0") for rank, value in _FLAG.findall(text)}
    ranks = sorted(flags)
    return HangFlags(
        file, tuple(rank for rank in ranks if flags[rank]), tuple(rank for rank in ranks if not flags[rank])
    )
