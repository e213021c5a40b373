"""How do messages between training and agent look on the wire? One JSON object a line, UTF-8, at most 64 KiB.

What comes in is not trusted: sizes are bounded before anything is read, unknown fields and unknown types are passed
over, and what is wrong is a ProtocolError that says what.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from enum import StrEnum
from typing import Any, TypeVar

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

MAX_LINE_BYTES = 1 << 16
_MAX_WORD = 200
_MAX_TEXT = 4096  # a path's
_MAX_ENTRIES = 64
_MAX_RANK = 1 << 24
_MAX_NUMBER = (1 << 63) - 1

E = TypeVar("E", bound=StrEnum)
Reader = Callable[[Any], Any]


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
    values: dict[str, Any] = {}
    for each in fields(kind):
        value = document.get(each.name)
        if value is not None:
            read = _OWN_READERS.get((kind, each.name)) or _READERS[each.name]
            try:
                values[each.name] = read(value)
            except (TypeError, ValueError, OverflowError) as error:
                raise ProtocolError(f'{kind.type}: "{each.name}" {error}', capture_id=_id_of(document)) from None
        elif each.default is MISSING and each.default_factory is MISSING:
            raise ProtocolError(f'a {kind.type} without "{each.name}"', capture_id=_id_of(document))
    return kind(**values)


def _id_of(document: Mapping[str, Any]) -> str | None:
    try:
        return _word(document.get("id"))
    except ValueError:
        return None


def _whole(least: int, most: int) -> Reader:
    def read(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise ValueError(f"must be a whole number from {least} to {most}")
        return value

    return read


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value < 0:
        raise ValueError("must be a number of at least 0")
    return float(value)


def _figure(value: Any) -> int | float:
    if not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ValueError("must hold finite numbers")
    return value


def _word(value: Any, most: int = _MAX_WORD) -> str:
    if not isinstance(value, str) or not value or len(value) > most or not value.isprintable():
        raise ValueError(f"must be 1 to {most} printable characters")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str) or len(value) > _MAX_TEXT:
        raise ValueError(f"must be at most {_MAX_TEXT} characters")
    return value


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("must be true or false")
    return value


def _member(kind: type[E]) -> Reader:
    def read(value: Any) -> E:
        return kind(value)

    return read


def _mapping(read_value: Reader) -> Reader:
    def read(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict) or len(value) > _MAX_ENTRIES:
            raise ValueError(f"must be an object of at most {_MAX_ENTRIES} entries")
        return {_word(name): read_value(entry) for name, entry in value.items()}

    return read


def _ranks(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list) or not value:
        raise ValueError("must be a list of ranks")
    return tuple(map(_whole(0, _MAX_RANK), value))


_ANY_WHOLE = _whole(0, _MAX_NUMBER)

_READERS: dict[str, Reader] = {
    **dict.fromkeys(("version", "pid", "index", "bytes"), _ANY_WHOLE),
    **dict.fromkeys(("start_ns", "start_step", "start_unix_ns", "deadline_unix_ns"), _ANY_WHOLE),
    **dict.fromkeys(("rank", "local_rank", "world_size"), _whole(0, _MAX_RANK)),
    **dict.fromkeys(("ms", "age_ms", "data_wait_ms", "max_overhead"), _number),
    **dict.fromkeys(("run", "host", "gpu_uuid", "id"), _word),
    **dict.fromkeys(("run_directory", "reason", "path"), _text),
    "state": _word,
    "steps": _whole(0, MAX_CAPTURED_STEPS),
    "max_bytes": _whole(1, _MAX_NUMBER),
    "overhead": _figure,
    "joined": _flag,
    "mesh": _mapping(_ANY_WHOLE),
    "phases_ms": _mapping(_number),
    "figures": _mapping(_figure),
    "ranks": _ranks,
    "aligned_by": _member(Alignment),
    "stopped_by": _member(EarlyStop),
}

_OWN_READERS: dict[tuple[type[Message], str], Reader] = {
    (Answer, "state"): _member(AnswerState),
    (CaptureRequest, "steps"): _whole(1, MAX_CAPTURED_STEPS),
}

_KINDS: dict[str, type[Message]] = {
    kind.type: kind for kind in (Hello, Step, Bye, Welcome, CaptureRequest, Cancel, Answer)
}
