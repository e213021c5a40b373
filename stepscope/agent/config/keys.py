"""What is a key of the configuration? A field of a section's dataclass, with its help, limits and flag."""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

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
        default: its value where nobody says otherwise. Of type bool, int, float, str or tuple of str.
        help: one sentence.
        flag: option of `stepscope agent run` that sets it; empty: none.
        metavar: what the option's value looks like.
        least, most: limits of a number, both allowed.
        choices: all values that a text may have; none: any.
        is_secret: its value is never shown.
    """
    about = Key("", "", type(default), default, help, flag, metavar, least, most, tuple(choices), is_secret)
    made: Any = field(default=default, metadata={_METADATA: about})
    return typing.cast(_T, made)


@dataclass(frozen=True, slots=True)
class Key:
    """One setting.

    Attributes:
        section, name: where it is in the file.
        type: bool, int, float, str or tuple (of str).
        default: its value where nobody says otherwise.
        help, flag, metavar, least, most, choices, is_secret: see `key`.
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
        """The name of its option's value in Python."""
        return self.flag.removeprefix("--").replace("-", "_")


def keys_of(settings: type) -> dict[str, Key]:
    """All keys by their path, in the order in which they are written.

    Args:
        settings: a dataclass whose fields are sections: dataclasses of keys.
    """
    found = [one for section, of_section in sections_of(settings).items() for one in _keys(section, of_section)]
    return {one.path: one for one in found}


def sections_of(settings: type) -> dict[str, Callable[..., Any]]:
    """The sections' dataclasses by their names."""
    hints = typing.get_type_hints(settings)
    return {one.name: hints[one.name] for one in fields(settings)}


def _keys(section: str, of_section: Any) -> Iterable[Key]:
    for one in fields(of_section):
        yield replace(one.metadata[_METADATA], section=section, name=one.name)
