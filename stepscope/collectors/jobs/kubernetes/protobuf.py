"""Which fields are in a protobuf message? The wire format alone: numbers and values, without the messages' meaning."""

from __future__ import annotations

from collections.abc import Iterator

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_SIZES = {_FIXED64: 8, _FIXED32: 4}
_LONGEST_VARINT = 10


class WireError(ValueError):
    """It is no message, or one that was cut short."""


def fields(message: bytes | memoryview) -> Iterator[tuple[int, memoryview]]:
    """Number and value of each field of bytes (texts, messages), in their order; numbers are passed over.

    Raises:
        WireError: when it comes to what is no field.
    """
    view = memoryview(message)
    position = 0
    while position < len(view):
        tag, position = _varint(view, position)
        number, kind = tag >> 3, tag & 7
        if number == 0:
            raise WireError("a field without a number")
        if kind == _VARINT:
            _, position = _varint(view, position)
        elif kind in _SIZES:
            position += _SIZES[kind]
        elif kind == _BYTES:
            size, position = _varint(view, position)
            if position + size > len(view):
                raise WireError(f"field {number} ends after the message")
            yield number, view[position : position + size]
            position += size
        else:
            raise WireError(f"field {number} is of kind {kind}, which is none of protobuf 3")
        if position > len(view):
            raise WireError(f"field {number} ends after the message")


def text(value: memoryview) -> str:
    """A field's text; what is no UTF-8 becomes question marks."""
    return bytes(value).decode("utf-8", errors="replace")


def _varint(view: memoryview, position: int) -> tuple[int, int]:
    value = 0
    for shift in range(_LONGEST_VARINT):
        if position >= len(view):
            raise WireError("a number that ends after the message")
        byte = view[position]
        position += 1
        value |= (byte & 0x7F) << (7 * shift)
        if byte < 0x80:
            return value, position
    raise WireError("a number of more than 10 bytes")
