"""Meanings of fields and enum members, read from docstrings in the source."""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import re
import textwrap
from collections.abc import Iterator
from enum import Enum
from itertools import pairwise
from typing import Any

_SECTION = re.compile(r"^Attributes:\n(.*?)(?=^\S|\Z)", re.MULTILINE | re.DOTALL)
_ENTRY = re.compile(r"^ {4}(\w[\w, ]*): (.+?)(?=^ {4}\w[\w, ]*: |\Z)", re.MULTILINE | re.DOTALL)


@functools.cache
def field_texts(kind: type) -> dict[str, str]:
    """Field of a dataclass -> its meaning, from a string below it or from `Attributes:`; "" where neither has one."""
    found: dict[str, str] = {}
    for base in reversed([one for one in kind.__mro__ if dataclasses.is_dataclass(one)]):
        found |= _from_section(base) | dict(_strings_below(base))
    return {field.name: found.get(field.name, "") for field in dataclasses.fields(kind)}


def member_texts(kind: type[Enum]) -> dict[str, str]:
    """Member of an enum -> the string below it; "" where there is none."""
    found = dict(_strings_below(kind))
    return {member.name: found.get(member.name, "") for member in kind}


def _from_section(kind: type) -> dict[str, str]:
    section = _SECTION.search(inspect.getdoc(kind) or "")
    entries = _ENTRY.findall(section[1]) if section else []
    return {name.strip(): " ".join(text.split()) for names, text in entries for name in names.split(",")}


def _strings_below(kind: type) -> Iterator[tuple[str, str]]:
    """Names in the body of a class, with the string that stands below each."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(definition, ast.ClassDef)
    for node, below in pairwise(definition.body):
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            target: Any = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
            if isinstance(target, ast.Name):
                yield target.id, " ".join(str(below.value.value).split())
