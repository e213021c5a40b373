"""Checked reading of untrusted JSON objects into dataclasses, by the annotations of their fields.

Each value is checked by a reader, which returns it in the field's type and raises ValueError with a text that reads on
from the field's name: "must be ...". The reader follows from the annotation:

    int, float, bool, str    a whole number or a finite number of at least 0, a truth value, a text of limited length
    an enum, a dataclass     one of its values; an object of its fields
    dict[str, X], list[X]    an object, a list (also into tuple[X, ...]) of what X says
    X | None                 as X; null and absent fields get the default
    Annotated[X, reader]     what `reader` checks: `Rank`, `Word`, `Figure`, `RankList`
    Annotated[X, EMBEDDED]   of a dataclass X: its fields, which stand in the same object
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, fields
from enum import StrEnum
from functools import partial
from types import NoneType, UnionType
from typing import Annotated, Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

_MAX_WORD = 200
_MAX_TEXT = 4096  # a path's
_MAX_ENTRIES = 64
MAX_RANK = 1 << 24
MAX_NUMBER = (1 << 63) - 1

EMBEDDED = "embedded"

T = TypeVar("T")
Reader = Callable[[Any], Any]


class FieldError(ValueError):
    """A field of a protocol message that is missing or has a wrong value; the text says which and why."""


def read_object(kind: type[T], document: Any) -> T:
    """Read a message's dataclass from JSON, field by field. Unknown ones are ignored; null or absent ones get defaults.

    Raises:
        FieldError: not an object, a field is wrong, or one without a default is absent.
    """
    if not isinstance(document, Mapping):
        raise FieldError("must be an object")
    embedded, own = _readers(kind)
    values: dict[str, Any] = {name: read_object(inner, document) for name, inner in embedded.items()}
    for name, (reader, is_required) in own.items():
        value = document.get(name)
        if value is not None:
            try:
                values[name] = reader(value)
            except (TypeError, ValueError, OverflowError) as error:
                raise FieldError(f'"{name}" {error}') from None
        elif is_required:
            raise FieldError(f'"{name}" is missing')
    return kind(**values)


def flat_fields(value: Any) -> Iterator[tuple[str, Any]]:
    """Names and values of a message's fields, those of embedded ones in their place: the reverse of `read_object`."""
    embedded, _ = _readers(type(value))
    for each in fields(value):
        inner = getattr(value, each.name)
        if each.name in embedded:
            yield from flat_fields(inner)
        else:
            yield each.name, inner


def _readers(kind: Any) -> tuple[dict[str, Any], dict[str, tuple[Reader, bool]]]:
    """The types of the embedded fields, and of each other field its reader and whether it has no default."""
    if kind not in _known_readers:
        embedded, own = {}, {}
        hints = get_type_hints(kind, include_extras=True)
        for each in fields(kind):
            hint = hints[each.name]
            if get_args(hint)[1:] == (EMBEDDED,):
                embedded[each.name] = get_args(hint)[0]
            else:
                own[each.name] = _reader(hint), each.default is MISSING and each.default_factory is MISSING
        _known_readers[kind] = embedded, own
    return _known_readers[kind]


_known_readers: dict[Any, tuple[dict[str, Any], dict[str, tuple[Reader, bool]]]] = {}


def _reader(annotation: Any) -> Reader:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return cast(Reader, arguments[1])
    if origin in (Union, UnionType):
        (inner,) = (each for each in arguments if each is not NoneType)
        return _reader(inner)
    if origin is dict:
        return _mapping_reader(_reader(arguments[1]))
    if origin in (list, tuple):
        return _list_reader(_reader(arguments[0]), origin)
    if annotation in _PLAIN:
        return _PLAIN[annotation]
    return cast(Reader, annotation) if issubclass(annotation, StrEnum) else partial(read_object, annotation)


def whole_number_between(least: int, most: int) -> Reader:
    """Reader of a message field: a whole number in these limits, both allowed."""

    def read(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise ValueError(f"must be a whole number from {least} to {most}")
        return value

    return read


_read_whole_number = whole_number_between(0, MAX_NUMBER)
"""Reads a whole number of at least 0 that a signed integer of 64 bits can hold."""
_read_rank = whole_number_between(0, MAX_RANK)
"""Reads a rank, or a number of ranks."""


def _read_number(value: Any) -> float:
    """Read a finite number of at least 0."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value < 0:
        raise ValueError("must be a number of at least 0")
    return float(value)


def _read_figure(value: Any) -> int | float:
    """Read a finite number."""
    if not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ValueError("must hold finite numbers")
    return value


def read_word(value: Any) -> str:
    """Read a message field: one line that is not empty."""
    if not isinstance(value, str) or not value or len(value) > _MAX_WORD or not value.isprintable():
        raise ValueError(f"must be 1 to {_MAX_WORD} printable characters")
    return value


def _read_text(value: Any) -> str:
    """Read any text of limited length."""
    if not isinstance(value, str) or len(value) > _MAX_TEXT:
        raise ValueError(f"must be at most {_MAX_TEXT} characters")
    return value


def _read_flag(value: Any) -> bool:
    """Read true or false."""
    if not isinstance(value, bool):
        raise ValueError("must be true or false")
    return value


def _mapping_reader(read_value: Reader) -> Reader:
    """Reader of an object of few entries, named by words."""

    def read(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict) or len(value) > _MAX_ENTRIES:
            raise ValueError(f"must be an object of at most {_MAX_ENTRIES} entries")
        return {read_word(name): read_value(entry) for name, entry in value.items()}

    return read


def _list_reader(read_value: Reader, kind: type = list) -> Reader:
    """Reader of a list; `kind` is the sequence type that it returns."""

    def read(value: Any) -> Any:
        if not isinstance(value, list):
            raise ValueError("must be a list")
        return kind(map(read_value, value))

    return read


def _read_rank_list(value: Any) -> tuple[int, ...]:
    """Read a list of ranks that is not empty."""
    if not isinstance(value, list) or not value:
        raise ValueError("must be a list of ranks")
    return tuple(map(_read_rank, value))


_PLAIN: dict[type, Reader] = {bool: _read_flag, int: _read_whole_number, float: _read_number, str: _read_text}

Rank = Annotated[int, _read_rank]
Word = Annotated[str, read_word]
Figure = Annotated[int | float, _read_figure]
RankList = Annotated[tuple[int, ...], _read_rank_list]
ByteLimit = Annotated[int, whole_number_between(1, MAX_NUMBER)]
