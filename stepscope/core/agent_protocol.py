"""How do messages between training and agent look on the wire? One JSON object a line, UTF-8, at most 64 KiB.

What comes in is not trusted: sizes are bounded before anything is read, unknown fields and unknown types are passed
over, and what is wrong is a ProtocolError that says what.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from stepscope.core.agent_messages import (
    MAX_CAPTURED_STEPS,
    Alignment,
    Answer,
    AnswerState,
    Bye,
    Cancel,
    CaptureRequest,
    EarlyStop,
    Hello,
    Message,
    Step,
    Welcome,
)
from stepscope.core.checked_fields import (
    MAX_NUMBER,
    FieldError,
    Reader,
    any_rank,
    any_whole,
    figure,
    flag,
    mapping,
    member,
    number,
    ranks,
    read_fields,
    text,
    whole,
    word,
)

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
        values = read_fields(kind, document, lambda name: _OWN_READERS.get((kind, name)) or _READERS[name])
    except FieldError as error:
        raise ProtocolError(f"{kind.type}: {error}", capture_id=_id_of(document)) from None
    return kind(**values)


def _id_of(document: Mapping[str, Any]) -> str | None:
    try:
        return word(document.get("id"))
    except ValueError:
        return None


_READERS: dict[str, Reader] = {
    **dict.fromkeys(("version", "pid", "index", "bytes"), any_whole),
    **dict.fromkeys(("start_ns", "start_step", "start_unix_ns", "deadline_unix_ns"), any_whole),
    **dict.fromkeys(("rank", "local_rank", "world_size"), any_rank),
    **dict.fromkeys(("ms", "age_ms", "data_wait_ms", "max_overhead"), number),
    **dict.fromkeys(("run", "host", "gpu_uuid", "id", "doing"), word),
    **dict.fromkeys(("run_directory", "reason", "path"), text),
    "state": word,
    "steps": whole(0, MAX_CAPTURED_STEPS),
    "max_bytes": whole(1, MAX_NUMBER),
    "overhead": figure,
    "joined": flag,
    "mesh": mapping(any_whole),
    "phases_ms": mapping(number),
    "figures": mapping(figure),
    "ranks": ranks,
    "aligned_by": member(Alignment),
    "stopped_by": member(EarlyStop),
}

_OWN_READERS: dict[tuple[type[Message], str], Reader] = {
    (Answer, "state"): member(AnswerState),
    (CaptureRequest, "steps"): whole(1, MAX_CAPTURED_STEPS),
}

_KINDS: dict[str, type[Message]] = {
    kind.type: kind for kind in (Hello, Step, Bye, Welcome, CaptureRequest, Cancel, Answer)
}
