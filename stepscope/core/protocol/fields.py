"""Checked reading of untrusted JSON fields: sizes and kinds are checked before anything uses them.

A reader takes the value as JSON has it and returns it in its type; what is wrong is a ValueError that reads on from the
field's name: "must be ...".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from enum import StrEnum
from typing import Any, TypeVar

_MAX_WORD = 200
_MAX_TEXT = 4096  # a path's
_MAX_ENTRIES = 64
MAX_RANK = 1 << 24
MAX_NUMBER = (1 << 63) - 1

E = TypeVar("E", bound=StrEnum)
Reader = Callable[[Any], Any]


class FieldError(ValueError):
    """A field is not what it should be, or is not there; the text says which and why."""


def read_fields(kind: type, document: Mapping[str, Any], reader_of: Callable[[str], Reader]) -> dict[str, Any]:
    """The values for the dataclass `kind`; fields that are null or absent get its defaults.

    Args:
        reader_of: the reader of a field, by its name.

    Raises:
        FieldError: a field is wrong, or one without a default is absent.
    """
    values: dict[str, Any] = {}
    for each in fields(kind):
        value = document.get(each.name)
        if value is not None:
            try:
                values[each.name] = reader_of(each.name)(value)
            except (TypeError, ValueError, OverflowError) as error:
                raise FieldError(f'"{each.name}" {error}') from None
        elif each.default is MISSING and each.default_factory is MISSING:
            raise FieldError(f'"{each.name}" is missing')
    return values


def whole(least: int, most: int) -> Reader:
    """A whole number in these limits, both allowed."""

    def read(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise ValueError(f"must be a whole number from {least} to {most}")
        return value

    return read


any_whole = whole(0, MAX_NUMBER)
"""A whole number of at least 0, as other languages hold it, too."""
any_rank = whole(0, MAX_RANK)
"""A rank, or a number of ranks."""


def number(value: Any) -> float:
    """A finite number of at least 0."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value < 0:
        raise ValueError("must be a number of at least 0")
    return float(value)


def figure(value: Any) -> int | float:
    """A finite number."""
    if not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ValueError("must hold finite numbers")
    return value


def word(value: Any) -> str:
    """One line that is not empty."""
    if not isinstance(value, str) or not value or len(value) > _MAX_WORD or not value.isprintable():
        raise ValueError(f"must be 1 to {_MAX_WORD} printable characters")
    return value


def text(value: Any) -> str:
    """Any text of limited length."""
    if not isinstance(value, str) or len(value) > _MAX_TEXT:
        raise ValueError(f"must be at most {_MAX_TEXT} characters")
    return value


def flag(value: Any) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise ValueError("must be true or false")
    return value


def member(kind: type[E]) -> Reader:
    """One of the words of an enum."""

    def read(value: Any) -> E:
        return kind(value)

    return read


def mapping(read_value: Reader) -> Reader:
    """An object of few entries, named by words."""

    def read(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict) or len(value) > _MAX_ENTRIES:
            raise ValueError(f"must be an object of at most {_MAX_ENTRIES} entries")
        return {word(name): read_value(entry) for name, entry in value.items()}

    return read


def ranks(value: Any) -> tuple[int, ...]:
    """A list of ranks that is not empty."""
    if not isinstance(value, list) or not value:
        raise ValueError("must be a list of ranks")
    return tuple(map(any_rank, value))
