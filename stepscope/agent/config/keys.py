"""Key of the configuration: a field of a section with its help, limits and flag, and the parsing of its values."""

from __future__ import annotations

import math
import tomllib
import typing
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

from stepscope.core.errors import UsageError

_T = TypeVar("_T")
_METADATA = "stepscope"


def key(
    default: _T,
    help: str,  # noqa: A002 - what click and argparse call it
    *,
    flag: str = "",
    metavar: str = "",
    least: float = float("-inf"),
    most: float = float("inf"),
    choices: Iterable[str] = (),
    is_secret: bool = False,
) -> _T:
    """A field of a section.

    Args:
        default: of type bool, int, float, str or tuple of str.
        help: one sentence.
        flag: option of `stepscope agent run` that sets it; empty: none.
        metavar: placeholder of the option's value.
        least, most: limits of a number, inclusive.
        choices: all allowed texts; none: any.
        is_secret: its value is never shown.
    """
    about = Key("", "", type(default), default, help, flag, metavar, least, most, tuple(choices), is_secret)
    made: Any = field(default=default, metadata={_METADATA: about})
    return typing.cast(_T, made)


@dataclass(frozen=True, slots=True)
class Key:
    """One setting.

    Attributes:
        section, name: its place in the file.
        type: bool, int, float, str or tuple (of str).
        default, help, flag, metavar, least, most, choices, is_secret: see `key`.
    """

    section: str
    name: str
    type: type
    default: Any
    help: str
    flag: str
    metavar: str
    least: float
    most: float
    choices: tuple[str, ...]
    is_secret: bool

    @property
    def path(self) -> str:
        """`section.name`."""
        return f"{self.section}.{self.name}"

    @property
    def parameter(self) -> str:
        """Name of its option's parameter in Python."""
        return self.flag.removeprefix("--").replace("-", "_")


def keys_of(settings: type) -> dict[str, Key]:
    """All keys by path, of a dataclass whose fields are sections, which are dataclasses of keys."""
    found = [one for section, of_section in sections_of(settings).items() for one in _keys(section, of_section)]
    return {one.path: one for one in found}


def sections_of(settings: type) -> dict[str, Callable[..., Any]]:
    """Dataclasses of the sections by name."""
    hints = typing.get_type_hints(settings)
    return {one.name: hints[one.name] for one in fields(settings)}


def _keys(section: str, of_section: Any) -> Iterable[Key]:
    for one in fields(of_section):
        yield replace(one.metadata[_METADATA], section=section, name=one.name)


_TYPE_NAMES = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a string",
    tuple: "a list of strings",
}


def typed_value(key: Key, value: Any, *, where: str) -> Any:
    """The value in the key's type.

    Args:
        value: as parsed by TOML or click.
        where: its origin, for the error.

    Raises:
        UsageError: it has another type or is outside of the key's limits.
    """
    if key.type is float and type(value) is int:
        value = float(value)
    if key.type is tuple and isinstance(value, list | tuple) and all(isinstance(one, str) for one in value):
        value = tuple(value)
    if type(value) is not key.type:
        raise UsageError(f"must be {_TYPE_NAMES[key.type]}, not {_shown(key, value)}", where=where)
    if isinstance(value, int | float) and not (key.least <= value <= key.most and math.isfinite(value)):
        raise UsageError(f"must be {_limits(key)}, not {_shown(key, value)}", where=where)
    if key.choices and value not in key.choices:
        allowed = ", ".join(choice or '""' for choice in key.choices)
        raise UsageError(f"must be one of {allowed}, not {_shown(key, value)}", where=where)
    return value


def value_from_text(key: Key, text: str, *, where: str) -> Any:
    """Parse an environment variable: as in TOML, but strings without quotes, lists also with commas.

    Raises:
        UsageError: it is not a value of the key.
    """
    value: Any = text
    if key.type is tuple and not text.lstrip().startswith("["):
        value = [part.strip() for part in text.split(",") if part.strip()]
    elif key.type is not str:
        try:
            document = tomllib.loads(f"value = {text.strip()}")
            value = document["value"] if len(document) == 1 else text
        except (ValueError, RecursionError):
            pass
    return typed_value(key, value, where=where)


def _limits(key: Key) -> str:
    if key.most == math.inf:
        return "a number" if key.least == -math.inf else f"at least {key.least:g}"
    return f"{key.least:g} to {key.most:g}"


def _shown(key: Key, value: Any) -> str:
    return "that" if key.is_secret else repr(value) if isinstance(value, str) else str(value)
