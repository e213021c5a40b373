"""NCCL's RAS service: ask it over TCP, and read its answer (JSON or text).

The service listens on 127.0.0.1:28028 in one process of a job on each node (NCCL_RAS_ADDR, NCCL_RAS_ENABLE) and asks
the job's other processes itself. It exists since NCCL 2.24; JSON came later. The text form names ranks only where
something is wrong.
"""

from __future__ import annotations

import json
import re
import socket
import time
from dataclasses import replace
from typing import Any

from stepscope.core.documents.nccl_logs import RasCommunicator, RasRank, RasStatus
from stepscope.core.errors import DataError

_COMMUNICATOR = re.compile(r"#\d+-\d+ \((?P<id>[0-9a-fx]+)\) (?P<what>[A-Z]+)")
_HAVE = re.compile(r"(?P<count>\d+) ranks? (?:has|have) (?P<what>.+)")
_RANK = re.compile(r"Rank (?P<rank>\d+) -- GPU \S+ managed by process (?P<process>\d+) on node (?P<host>\S+)")
_MISSING = re.compile(r"[Tt]he missing ranks?: (?P<ranks>[\d, \-]+)")
_PROCESS = re.compile(r"Process \d+ on node \S+ managing GPU \S+")
_MOST_RANKS, _MOST_DIGITS = 1 << 17, 9
_IN_JSON = '"communicators"'
_IN_TEXT = ("Communicators...", "Comms     Nodes")


def looks_like_ras(text: str) -> bool:
    """Whether a file is an answer of the RAS service."""
    return any(mark in text for mark in _IN_TEXT) or (text.lstrip()[:1] == "{" and _IN_JSON in text)


def read_ras(text: str, *, file: str) -> RasStatus:
    """One answer.

    Args:
        text: the whole of it.
        file: its name.

    Raises:
        DataError: it is JSON of another kind, or not whole.
    """
    if text.lstrip()[:1] != "{":
        return _parse_text(text, file)
    try:
        told = json.loads(text)
        return RasStatus(file, tuple(_communicator(one) for one in told["communicators"]))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(
            f"is no answer of NCCL's RAS ({type(error).__name__})", where=file, what_next="ask it again, in JSON"
        ) from None


def _communicator(told: dict[str, Any]) -> RasCommunicator:
    return RasCommunicator(
        str(told["hash"]),
        int(told["size"]),
        tuple(_rank(one) for one in told.get("ranks") or ()),
        tuple(_rank(one) for one in told.get("missing_ranks") or ()),
    )


def _rank(told: dict[str, Any]) -> RasRank:
    status = told.get("status") or {}
    return RasRank(
        int(told["rank"]),
        str(told.get("host", "")),
        int(told.get("pid", 0)),
        {str(kind): int(count) for kind, count in (told.get("collective_counts") or {}).items()},
        bool(status.get("unresponsive")),
        bool(status.get("considered_dead")),
    )


def _parse_text(text: str, file: str) -> RasStatus:
    """Groups of ranks after "6 ranks have launched up to operation 6649"; the largest group is not listed."""
    found: dict[str, RasCommunicator] = {}
    dead: dict[str, None] = {}
    current, saying, listed = "", "", list[int]()

    def close() -> None:
        nonlocal listed
        if current and listed:
            one = found[current]
            found[current] = replace(one, problems=(*one.problems, (tuple(listed), saying)))
        listed = []

    for line in map(str.strip, text.splitlines()):
        if match := _COMMUNICATOR.match(line):
            close()
            current = match["id"]
            found.setdefault(current, RasCommunicator(current, None))
        elif match := _HAVE.match(line):
            close()
            saying = match["what"]
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


def _parse_ranks(told: str) -> list[int]:
    """ "3, 7-9" -> [3, 7, 8, 9]."""
    numbers: list[int] = []
    for part in told.split(","):
        first, _, last = part.replace(" ", "").partition("-")
        if first and len(first) <= _MOST_DIGITS and len(numbers) < _MOST_RANKS:
            numbers += range(int(first), min(int((last or first)[:_MOST_DIGITS]), int(first) + _MOST_RANKS) + 1)
    return numbers[:_MOST_RANKS]


DEFAULT_ADDRESS = ("127.0.0.1", 28028)
_PROTOCOL = 2
_MOST_BYTES = 64 << 20
_LONGEST_LINE_BYTES = 4096


def ask_ras(address: tuple[str, int] = DEFAULT_ADDRESS, *, seconds: float = 5.0) -> str:
    """Its answer to VERBOSE STATUS; `nccl_ras.read_ras` reads it.

    Args:
        address: host and port.
        seconds: for all of it; NCCL is told to answer without ranks that take half as long.

    Raises:
        OSError: nobody listens there, or not in time.
        DataError: who answers is not RAS.
    """
    end = time.monotonic() + seconds
    with socket.create_connection(address, timeout=seconds) as connection:
        conversation = _Connection(connection, end, f"{address[0]}:{address[1]}")
        conversation.say(f"CLIENT PROTOCOL {_PROTOCOL}")
        if not conversation.line().upper().startswith("SERVER PROTOCOL "):
            raise DataError("is no RAS service of NCCL", where=conversation.where, what_next="check the port")
        conversation.say(f"TIMEOUT {max(int(seconds / 2), 1)}")
        conversation.line()
        conversation.say("SET FORMAT json")
        conversation.line()  # one that knows text alone refuses, and goes on
        conversation.say("VERBOSE STATUS")
        return conversation.rest()


class _Connection:
    def __init__(self, connection: socket.socket, end: float, where: str) -> None:
        self.where = where
        self._connection = connection
        self._end = end
        self._heard = b""

    def say(self, line: str) -> None:
        self._connection.sendall(line.encode() + b"\n")

    def line(self) -> str:
        while b"\n" not in self._heard:
            if len(self._heard) > _LONGEST_LINE_BYTES or not self._hear():
                raise DataError("is no RAS service of NCCL", where=self.where, what_next="check the port")
        line, _, self._heard = self._heard.partition(b"\n")
        return line.decode(errors="replace")

    def rest(self) -> str:
        """Until it hangs up."""
        blocks = [self._heard]
        size = len(self._heard)
        self._heard = b""
        while self._hear():
            blocks.append(self._heard)
            size += len(self._heard)
            self._heard = b""
            if size > _MOST_BYTES:
                raise DataError(
                    f"answers more than {_MOST_BYTES:,} bytes", where=self.where, what_next="check the port"
                )
        return b"".join(blocks).decode(errors="replace")

    def _hear(self) -> bool:
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeoutError("it does not answer in time")
        self._connection.settimeout(left)
        block = self._connection.recv(1 << 16)
        self._heard += block
        return bool(block)
