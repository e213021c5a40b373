"""Messages between a training process and the agent on its node, one JSON object a line (UTF-8, at most 64 KiB).

Steps are optimizer steps of the run counted from 0, `*_unix_ns` and `start_ns` are ns since the epoch, None is unknown.
docs/guides/capture.md lists who sends what when. What comes in is not trusted: sizes are bounded before reading,
unknown fields and unknown types are passed over, and what is wrong is a ProtocolError that says what.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Annotated, Any, ClassVar

from stepscope.core.protocol.fields import ByteLimit, FieldError, Figure, Rank, RankList, Word, read_object, whole, word

PROTOCOL_VERSION = 1

SOCKET_VARIABLE = "STEPSCOPE_AGENT_SOCKET"
"""Environment: path of the agent's socket, @name for an abstract one, empty for none."""

DEFAULT_SOCKET = "/run/stepscope/agent.sock"

MAX_CAPTURED_STEPS = 1000


class AnswerState(StrEnum):
    """What has become of a capture that was asked for."""

    ACCEPTED = "accepted"
    """it will start at `start_step`"""
    STARTED = "started"
    DONE = "done"
    """the trace is whole at `path`"""
    REFUSED = "refused"
    """it will not take place; `reason` says why"""
    CANCELLED = "cancelled"
    """asked to be left, or its deadline passed; no trace is kept"""
    FAILED = "failed"
    """it was accepted and left no trace; `reason` says why"""

    @property
    def is_final(self) -> bool:
        """Whether no other answer follows."""
        return self not in (AnswerState.ACCEPTED, AnswerState.STARTED)


class Alignment(StrEnum):
    """How did the ranks come to the step at which a capture starts?"""

    STEP = "step"
    """it was given, or the job has one rank"""
    STORE = "store"
    """the first rank to ask fixed it for all, in the job's own store"""
    MULTIPLE = "multiple"
    """each rank began after a multiple of some number of its own steps, and the traces were found to begin together"""
    TIME = "time"
    """each rank by its own clock, so that ranks may differ by some steps: the job's ranks share no store"""


class EarlyStop(StrEnum):
    """Why does a capture hold fewer steps than were asked for?"""

    MAX_BYTES = "max_bytes"
    MAX_OVERHEAD = "max_overhead"
    DEADLINE = "deadline"
    TRAINING_ENDED = "training_ended"
    OTHER_PROFILER = "other_profiler"


@dataclass(frozen=True, slots=True)
class Hello:
    """Training to agent, first on every connection, and again when a field has become known."""

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
    """GPU-... or MIG-...; None when it cannot be told without starting CUDA"""
    version: int = PROTOCOL_VERSION


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Training to agent, once a second: the newest finished step, and how long the open one has lasted."""

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
    """tokens, loss, ... of the newest step that has them all; what is not finite is left out"""
    doing: Word | None = None
    """what the open step is in that takes long by nature: the innermost named phase"""


@dataclass(frozen=True, slots=True)
class Bye:
    """Training to agent: measuring ends well. Without it, the end of the connection is the end of the process."""

    type: ClassVar[str] = "bye"


@dataclass(frozen=True, slots=True)
class Welcome:
    """Agent to training, after hello, as it likes: which version it speaks. Training leaves one that is not its own."""

    type: ClassVar[str] = "welcome"
    version: int = PROTOCOL_VERSION


@dataclass(frozen=True, slots=True)
class CaptureRequest:
    """Agent to training: trace `steps` steps. With neither start it begins as soon as all ranks can."""

    type: ClassVar[str] = "capture"
    id: Word
    steps: Annotated[int, whole(1, MAX_CAPTURED_STEPS)]
    start_step: int | None = None
    start_unix_ns: int | None = None
    """not before this time; where both are given, `start_step` counts"""
    ranks: RankList | None = None
    """None is all"""
    max_bytes: ByteLimit | None = None
    """of one rank's compressed trace"""
    max_overhead: float | None = None
    """share by which captured steps may be longer than those before (0.5: half as long again)"""
    deadline_unix_ns: int | None = None
    """not started after it, and over by the end of the step in which it passes"""


@dataclass(frozen=True, slots=True)
class Cancel:
    """Agent to training: leave this capture; one that runs is stopped and leaves no trace."""

    type: ClassVar[str] = "cancel"
    id: Word


@dataclass(frozen=True, slots=True)
class Answer:
    """Training to agent: what has become of a capture."""

    type: ClassVar[str] = "answer"
    id: Word
    state: AnswerState
    reason: str | None = None
    start_step: int | None = None
    steps: Annotated[int, whole(0, MAX_CAPTURED_STEPS)] | None = None
    """asked for, or whole in the trace once it is done"""
    aligned_by: Alignment | None = None
    joined: bool = False
    """another capture holds these steps and is kept for both; `start_step` and `steps` are that one's"""
    path: str | None = None
    bytes: int | None = None
    overhead: Figure | None = None
    """measured: captured steps longer than those before, as a share"""
    stopped_by: EarlyStop | None = None


Message = Hello | Heartbeat | Bye | Welcome | CaptureRequest | Cancel | Answer


MAX_LINE_BYTES = 1 << 16


class ProtocolError(ValueError):
    """A line that says nothing that can be used.

    Attributes:
        capture_id: of the capture that it is about; None when even that cannot be read.
    """

    def __init__(self, what: str, *, capture_id: str | None = None) -> None:
        self.capture_id = capture_id
        super().__init__(what)


def encode(message: Message) -> bytes:
    """The message as one line; fields that are None or empty are left out.

    Raises:
        ValueError: it has a number that JSON does not know, or is longer than a line may be.
    """
    document: dict[str, Any] = {"type": message.type}
    for each in fields(message):
        value = getattr(message, each.name)
        if value is not None and value != {}:
            document[each.name] = value
    line = json.dumps(document, separators=(",", ":"), allow_nan=False).encode() + b"\n"
    if len(line) > MAX_LINE_BYTES:
        raise ValueError(f"a message of {len(line)} bytes; a line has at most {MAX_LINE_BYTES}")
    return line


def decode(line: bytes) -> Message | None:
    """The message in a line; None when it is of a type that this version does not know.

    Raises:
        ProtocolError: it is no message, or a field is not what it should be.
    """
    if len(line) > MAX_LINE_BYTES:
        raise ProtocolError(f"a line of {len(line)} bytes; at most {MAX_LINE_BYTES}")
    try:
        document = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"no JSON: {type(error).__name__}") from None
    if not isinstance(document, dict) or not isinstance(document.get("type"), str):
        raise ProtocolError('no JSON object with a "type"')
    kind = _KINDS.get(document["type"])
    return None if kind is None else _read(kind, document)


class LineBuffer:
    """Cuts a stream of bytes into lines, and never keeps more than one line may have."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, block: bytes) -> list[bytes]:
        """The lines that `block` completes, without their ends; empty ones are left out.

        Raises:
            ProtocolError: a line is too long; what follows belongs to no line.
        """
        *lines, self._rest = (self._rest + block).split(b"\n")
        if max(map(len, [*lines, self._rest])) >= MAX_LINE_BYTES:
            raise ProtocolError(f"a line of more than {MAX_LINE_BYTES} bytes")
        return [line for line in lines if line.strip()]


def _read(kind: type[Message], document: Mapping[str, Any]) -> Message:
    try:
        return read_object(kind, document)
    except FieldError as error:
        raise ProtocolError(f"{kind.type}: {error}", capture_id=_id_of(document)) from None


def _id_of(document: Mapping[str, Any]) -> str | None:
    try:
        return word(document.get("id"))
    except ValueError:
        return None


_KINDS: dict[str, type[Message]] = {
    kind.type: kind for kind in (Hello, Heartbeat, Bye, Welcome, CaptureRequest, Cancel, Answer)
}
