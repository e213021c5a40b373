"""Frames from documents: a row an object of a list, a column a field, with the names and values of `--json`.

A field that is an object, or has a number or text by key, becomes columns `field.name`, an interval `field.low` and
`field.high`. Of numbers unknown is NaN (`Int64`'s NA of whole ones), of texts None.
"""

from __future__ import annotations

import typing
from collections.abc import Collection, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from types import NoneType
from typing import Any

import pandas as pd


def table(
    kind: type, rows: Sequence[Any], *, index: str | Sequence[str] = (), without: Collection[str] = ()
) -> pd.DataFrame:
    """Frame of objects of one type.

    Args:
        kind: their dataclass.
        index: fields that identify a row; none: rows are numbered.
        without: fields to leave out.
    """
    types = column_types(kind)
    columns: dict[str, Any] = {}
    for name, of in types.items():
        if name not in without:
            columns.update(_columns(name, of, [getattr(row, name) for row in rows]))
    frame = pd.DataFrame(columns)
    return frame.set_index([index] if isinstance(index, str) else list(index)) if index else frame


def column_types(kind: Any) -> dict[str, Any]:
    """Type of each field of a dataclass, without "or None"."""
    hints = typing.get_type_hints(kind)
    return {field.name: _known(hints[field.name]) for field in fields(kind)}


def _known(of: Any) -> Any:
    members = [one for one in typing.get_args(of) if one is not NoneType]
    return members[0] if len(members) == 1 and NoneType in typing.get_args(of) else of


def _columns(name: str, of: Any, values: list[Any]) -> dict[str, Any]:
    series, arguments = pd.Series, typing.get_args(of)
    if of is float:
        return {name: series(values, dtype="float64")}
    if of is int:
        return {name: series(values, dtype="Int64" if None in values else "int64")}
    if of is bool:
        return {name: series(values, dtype="boolean" if None in values else "bool")}
    if isinstance(of, type) and issubclass(of, Enum):
        return {name: series([None if value is None else value.value for value in values], dtype="str")}
    if of is str:
        return {name: series(values, dtype="str")}
    if is_dataclass(of):
        inner = column_types(of).items()
        return {
            column: one
            for field, kind in inner
            for column, one in _columns(
                f"{name}.{field}", kind, [None if value is None else getattr(value, field) for value in values]
            ).items()
        }
    if typing.get_origin(of) is tuple and arguments == (float, float):
        ends = ("low", "high")
        return {
            f"{name}.{end}": series([None if value is None else value[place] for value in values], dtype="float64")
            for place, end in enumerate(ends)
        }
    if typing.get_origin(of) is dict and arguments[1] in (float, int, str):
        keys = list(dict.fromkeys(key for value in values for key in value or ()))
        dtype = "str" if arguments[1] is str else "float64"
        return {
            f"{name}.{plain(key)}": series([(value or {}).get(key) for value in values], dtype=dtype) for key in keys
        }
    return {name: series([plain(value) for value in values], dtype="object")}


def plain(value: Any) -> Any:
    """A value as JSON has it: enum members as their words, objects as mappings, also inside of lists."""
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, dict):
        return {plain(key): plain(one) for key, one in value.items()}
    return [plain(one) for one in value] if isinstance(value, (list, tuple)) else value
