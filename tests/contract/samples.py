"""Sample values of types, and the keys and kinds of a JSON document.

A document's keys are read from what the product's own encoders make of samples, not from the types' fields: types may
be merged or renamed, and an encoder may rename or leave out a field, as long as the JSON stays the same.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

NUM_VARIANTS = 6
"""Enough for each member of a union, also where optional objects lie in optional objects."""

ANY_KEY = "*"
"""Key of a mapping whose keys are data."""

_PLAIN: dict[object, Callable[[], Any]] = {
    str: lambda: "text",
    int: lambda: 1,
    float: lambda: 0.5,
    bool: lambda: True,
    Path: lambda: Path("/folder/file"),
    type(None): lambda: None,
}
_KINDS = {dict: "object", list: "array", str: "string", int: "number", float: "number", bool: "boolean"}


def samples(kind: Any, **values: Any) -> list[Any]:
    """Values of a type: between them every member of each union, every list and mapping with content.

    Args:
        kind: a dataclass, or what a field of one is declared as.
        values: of fields that no sample is made of.
    """
    return [sample(kind, variant, **values) for variant in range(NUM_VARIANTS)]


def sample(kind: Any, variant: int = 0, **values: Any) -> Any:
    """One value of a type; those of other `variant`s have other members of its unions."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind in _PLAIN:
        return _PLAIN[kind]()
    if kind is Any:
        return ("text", 1, None)[variant % 3]
    if origin is typing.Annotated:
        return sample(arguments[0], variant)
    if origin is typing.Literal:
        return arguments[variant % len(arguments)]
    if origin in (typing.Union, types.UnionType):
        return sample(arguments[variant % len(arguments)], variant // len(arguments))
    if origin is tuple:
        return _sample_tuple(arguments, variant)
    if origin is not None and issubclass(origin, Mapping):
        return {key: sample(arguments[1], variant) for key in _keys(arguments[0])}
    if origin is not None and issubclass(origin, Iterable):
        members = samples(arguments[0])
        return members if origin.__module__ == "collections.abc" else origin(members)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return list(kind)[variant % len(kind)]
    made = {name: sample(of_field, variant) for name, of_field in _fields(kind).items() if name not in values}
    return kind(**made, **values)


def _sample_tuple(arguments: tuple[Any, ...], variant: int) -> tuple[Any, ...]:
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        return tuple(samples(arguments[0]))
    return tuple(sample(one, variant) for one in arguments)


def _keys(kind: Any) -> list[Any]:
    if isinstance(kind, type) and issubclass(kind, Enum):
        return list(kind)
    return [ANY_KEY] if kind is str else [1]


@functools.cache
def _fields(kind: Any) -> dict[str, Any]:
    """What those are declared as that a sample needs: a document's schema is what the type says."""
    names = [one.name for one in dataclasses.fields(kind) if one.name != "schema" or one.default is dataclasses.MISSING]
    hints = typing.get_type_hints(kind)
    return {name: hints[name] for name in names}


def keys_and_kinds(documents: Iterable[Any]) -> dict[str, str]:
    """Path of each value -> what it is in any of the JSON documents: `ranks[].step_ms` -> "null | number".

    Objects and arrays have a line of their own only where they are empty, or something else in another document. Where
    a document lacks a key that others have in the same place, "absent" is among the kinds. An object with a schema of
    its own is named by it.
    """
    kinds: dict[str, set[str]] = defaultdict(set)
    parents: dict[str, str] = {}
    num_seen: Counter[str] = Counter()
    num_objects: Counter[str] = Counter()

    def walk(value: Any, path: str) -> None:
        num_seen[path] += 1
        if path and isinstance(value, dict) and "schema" in value:
            kinds[path].add(f"document {value['schema']}")
            return
        kinds[path].add("null" if value is None else _KINDS[type(value)])
        if isinstance(value, dict):
            num_objects[path] += 1
            for key, inner in value.items():
                parents[f"{path}.{key}" if path else key] = path
                walk(inner, f"{path}.{key}" if path else key)
        elif isinstance(value, list):
            parents[f"{path}[]"] = path
            for inner in value:
                walk(inner, f"{path}[]")

    for document in documents:
        walk(document, "")
    for path, parent in parents.items():
        if path != f"{parent}[]" and num_seen[path] < num_objects[parent]:
            kinds[path].add("absent")
    inner_paths = {parents[path] for path in kinds if path in parents}
    return {
        path: " | ".join(sorted(found))
        for path, found in sorted(kinds.items())
        if path and not (path in inner_paths and found <= {"object", "array"} and len(found) == 1)
    }
