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
from dataclasses import replace
from typing import Any

from stepscope.collectors.inputs import DeadlineSocket, malformed_as_data_error
from stepscope.core.documents.nccl import HangFlags, RasCommunicator, RasRank, RasStatus
from stepscope.core.errors import DataError

_COMMUNICATOR = re.compile(r"#\d+-\d+ \((?P<id>[0-9a-fx]+)\) (?P<what>[A-Z]+)")
_HAVE = re.compile(r"(?P<count>\d+) ranks? (?:has|have) (?P<what>.+)")
_RANK = re.compile(r"Rank (?P<rank>\d+) -- GPU \S+ managed by process (?P<process>\d+) on node (?P<host>\S+)")
_MISSING = re.compile(r"[Tt]he missing ranks?: (?P<ranks>[\d, \-]+)")
_PROCESS = re.compile(r"Process \d+ on node \S+ managing GPU \S+")
_MAX_RANKS, _MAX_DIGITS = 1 << 17, 9
_IN_JSON = '"communicators"'
_IN_TEXT = ("Communicators...", "Comms     Nodes")


def looks_like_ras(text: str) -> bool:
    """Whether a file is an answer of the RAS service."""
    return any(mark in text for mark in _IN_TEXT) or (text.lstrip()[:1] == "{" and _IN_JSON in text)


def read_ras(text: str, *, file: str) -> RasStatus:
    """Parse one answer.

    Raises:
        DataError: it is JSON of another kind, or incomplete.
    """
    if text.lstrip()[:1] != "{":
        return _parse_text(text, file)
    with malformed_as_data_error("is not an answer of NCCL's RAS", where=file, what_next="ask it again, in JSON"):
        return RasStatus(file, tuple(_communicator(one) for one in json.loads(text)["communicators"]))


def _communicator(document: dict[str, Any]) -> RasCommunicator:
    return RasCommunicator(
        str(document["hash"]),
        int(document["size"]),
        tuple(_rank(one) for one in document.get("ranks") or ()),
        tuple(_rank(one) for one in document.get("missing_ranks") or ()),
    )


def _rank(document: dict[str, Any]) -> RasRank:
    status = document.get("status") or {}
    return RasRank(
        int(document["rank"]),
        str(document.get("host", "")),
        int(document.get("pid", 0)),
        {str(kind): int(count) for kind, count in (document.get("collective_counts") or {}).items()},
        bool(status.get("unresponsive")),
        bool(status.get("considered_dead")),
    )


def _parse_text(text: str, file: str) -> RasStatus:
    """Groups of ranks after "6 ranks have launched up to operation 6649"; the largest group is not listed."""
    found: dict[str, RasCommunicator] = {}
    dead: dict[str, None] = {}
    current, problem, listed = "", "", list[int]()

    def close() -> None:
        nonlocal listed
        if current and listed:
            one = found[current]
            found[current] = replace(one, problems=(*one.problems, (tuple(listed), problem)))
        listed = []

    for line in map(str.strip, text.splitlines()):
        if match := _COMMUNICATOR.match(line):
            close()
            current = match["id"]
            found.setdefault(current, RasCommunicator(current, None))
        elif match := _HAVE.match(line):
            close()
            problem = match["what"]
        elif match := _RANK.match(line):
            listed.append(int(match["rank"]))
        elif (match := _MISSING.search(line)) and current:
            one = found[current]
            missing = tuple(RasRank(rank, "", 0, is_unresponsive=True) for rank in _parse_ranks(match["ranks"]))
            found[current] = replace(one, missing=(*one.missing, *missing))
        elif _PROCESS.match(line):
            dead[line] = None
    close()
    return RasStatus(file, tuple(found.values()), tuple(dead))


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
    with socket.create_connection(address, timeout=seconds) as connection:
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


def looks_like_xpu_timer(text: str) -> bool:
    """Whether a page is xpu_timer's."""
    return "XPU_TIMER_" in text


def read_xpu_timer(text: str, *, file: str) -> HangFlags:
    """The flag of each rank that has one."""
    flags = {int(rank): value not in ("0", "0.0") for rank, value in _FLAG.findall(text)}
    ranks = sorted(flags)
    return HangFlags(
        file, tuple(rank for rank in ranks if flags[rank]), tuple(rank for rank in ranks if not flags[rank])
    )
