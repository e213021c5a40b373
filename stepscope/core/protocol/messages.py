"""Messages between a training process and the agent on its node, one JSON object a line (UTF-8, at most 64 KiB).

Steps are optimizer steps of the run counted from 0, `*_unix_ns` and `start_ns` are ns since the epoch, None is unknown.
docs/guides/capture.md lists who sends what when. Input is not trusted: sizes are bounded before reading, unknown
fields and unknown types are ignored, and anything wrong is a ProtocolError with the reason.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, ClassVar

from stepscope.core.protocol.captures import CaptureProgress, CaptureRequest, CaptureState
from stepscope.core.protocol.counters import Counters
from stepscope.core.protocol.fields import EMBEDDED, FieldError, Figure, Rank, Word, flat_fields, read_object, read_word
from stepscope.core.protocol.verdicts import LiveVerdict

PROTOCOL_VERSION = 1

SOCKET_VARIABLE = "STEPSCOPE_AGENT_SOCKET"
"""Environment: path of the agent's socket, @name for an abstract one, empty for none."""

DEFAULT_SOCKET = "/run/stepscope/agent.sock"


@dataclass(frozen=True, slots=True)
class Hello:
    """Message of training to the agent, first on every connection, and again when a field has become known."""

    type: ClassVar[str] = "hello"
    run: Word
    run_directory: str
    rank: Rank
    local_rank: Rank
    world_size: Rank
    pid: int
    host: Word
    start_ns: int
    mesh: dict[str, int] = field(default_factory=dict)
    """sizes by dimension; those not known are absent"""
    gpu_uuid: Word | None = None
    """GPU-... or MIG-...; None when it is unknown without starting CUDA"""
    version: int = PROTOCOL_VERSION
    wants: tuple[Word, ...] = ()
    """optional messages of the agent that it takes: counters"""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Message of training to the agent, once a second: the newest finished step, and the age of the open one."""

    type: ClassVar[str] = "step"
    age_ms: float
    """since the newest finished step ended, or since the start"""
    state: Word = "wait"
    """of the open step: wait | warmup | active"""
    index: int | None = None
    """the newest finished step; None before the first"""
    ms: float | None = None
    data_wait_ms: float | None = None
    phases_ms: dict[str, float] = field(default_factory=dict)
    figures: dict[str, Figure] = field(default_factory=dict)
    """tokens, loss, ... of the newest step that has them all; only finite ones"""
    doing: Word | None = None
    """the innermost named phase of the open step"""


@dataclass(frozen=True, slots=True)
class Bye:
    """Message of training to the agent: measuring ends in order. Else the connection's end is the process's end."""

    type: ClassVar[str] = "bye"


@dataclass(frozen=True, slots=True)
class Welcome:
    """Message of the agent to training, optional answer to hello: its version. Training disconnects from another."""

    type: ClassVar[str] = "welcome"
    version: int = PROTOCOL_VERSION


@dataclass(frozen=True, slots=True)
class Cancel:
    """Message of the agent to training: cancel this capture; one that runs is stopped and leaves no trace."""

    type: ClassVar[str] = "cancel"
    id: Word


ANSWER_STATES = tuple(state for state in CaptureState if state not in (CaptureState.ASKED, CaptureState.PARTIAL))
"""States of a capture that a process can answer."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Message of training to the agent: progress of a capture."""

    type: ClassVar[str] = "answer"
    id: Word
    progress: Annotated[CaptureProgress, EMBEDDED]


Message = Hello | Heartbeat | Bye | Welcome | CaptureRequest | Cancel | Answer | Counters | LiveVerdict


MAX_LINE_BYTES = 1 << 16


class ProtocolError(ValueError):
    """A line that cannot be read as a protocol message.

    Attributes:
        capture_id: of the capture that it is about; None when even that cannot be read.
    """

    def __init__(self, what: str, *, capture_id: str | None = None) -> None:
        self.capture_id = capture_id
        super().__init__(what)


def encode_message(message: Message) -> bytes:
    """Encode a protocol message as one line; fields that are None or empty are left out.

    Raises:
        ValueError: it has a number that JSON does not know, or is longer than a line may be.
    """
    values = {name: value for name, value in flat_fields(message) if value is not None and value not in ({}, ())}
    document: dict[str, Any] = {"type": message.type} | values
    line = json.dumps(document, separators=(",", ":"), allow_nan=False, default=asdict).encode() + b"\n"
    if len(line) > MAX_LINE_BYTES:
        raise ValueError(f"a message of {len(line)} bytes; a line has at most {MAX_LINE_BYTES}")
    return line


def decode_message(line: bytes) -> Message | None:
    """Decode the protocol message in a line; None when it is of a type that this version does not know.

    Raises:
        ProtocolError: not a message, or a field is wrong.
    """
    if len(line) > MAX_LINE_BYTES:
        raise ProtocolError(f"a line of {len(line)} bytes; at most {MAX_LINE_BYTES}")
    try:
        document = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"not JSON: {type(error).__name__}") from None
    if not isinstance(document, dict) or not isinstance(document.get("type"), str):
        raise ProtocolError('not a JSON object with a "type"')
    kind = _KINDS.get(document["type"])
    return None if kind is None else _read(kind, document)


class LineBuffer:
    """Splits a stream of protocol messages into lines; keeps at most one line."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, block: bytes) -> list[bytes]:
        """The lines that `block` completes, without their ends; empty ones are left out.

        Raises:
            ProtocolError: a line is too long; what follows is not a line.
        """
        *lines, self._rest = (self._rest + block).split(b"\n")
        if max(map(len, [*lines, self._rest])) >= MAX_LINE_BYTES:
            raise ProtocolError(f"a line of more than {MAX_LINE_BYTES} bytes")
        return [line for line in lines if line.strip()]


def _read(kind: type[Message], document: Mapping[str, Any]) -> Message:
    try:
        message = read_object(kind, document)
        if isinstance(message, Answer) and message.progress.state not in ANSWER_STATES:
            raise FieldError(f'"state" must be one of {", ".join(ANSWER_STATES)}')
        return message
    except FieldError as error:
        raise ProtocolError(f"{kind.type}: {error}", capture_id=_id_of(document)) from None


def _id_of(document: Mapping[str, Any]) -> str | None:
    try:
        return read_word(document.get("id"))
    except ValueError:
        return None


_KINDS: dict[str, type[Message]] = {
    kind.type: kind for kind in (Hello, Heartbeat, Bye, Welcome, CaptureRequest, Cancel, Answer, Counters, LiveVerdict)
}
