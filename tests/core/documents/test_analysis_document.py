"""Reference page of JSON documents: every field of the analysis, with its meaning where the type has one."""

from __future__ import annotations

import dataclasses
import re

import pytest

from stepscope.core.documents import analysis
from stepscope_reference import PAGES
from stepscope_reference.fields import field_texts
from stepscope_reference.markdown import text

_SECTIONS = [
    PAGES["documents"]().partition(f"## `{schema}`\n")[2].partition("\n## ")[0]
    for schema in (analysis.ANALYSIS_SCHEMA, analysis.CAPTURES_SCHEMA)
]
_ROWS: list[tuple[str, str]] = re.findall(r"^\| `([^`]+)` \| .+? \| (.*?) ?\|$", "\n".join(_SECTIONS), re.MULTILINE)
_TYPES = [kind for kind in vars(analysis).values() if isinstance(kind, type) and dataclasses.is_dataclass(kind)]


@pytest.mark.parametrize("kind", _TYPES, ids=lambda kind: kind.__name__)
def test_every_field_is_documented(kind: type) -> None:
    names = {step for path, _ in _ROWS for step in re.split(r"[.\[\]]+", path)}
    assert [name for name in field_texts(kind) if name not in names] == []
    meanings = {meaning for _, meaning in _ROWS}
    assert [meaning for meaning in field_texts(kind).values() if text(meaning) not in meanings] == []


def test_nothing_else_is_documented() -> None:
    names = {step for path, _ in _ROWS for step in re.split(r"[.\[\]]+", path) if step not in ("", "*")}
    assert names == {name for kind in _TYPES for name in field_texts(kind)}
