"""Does the document of the analysis say what is in it, field by field?"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from types import ModuleType

import stepscope
from stepscope.core.documents import analysis

_PAGE = Path(stepscope.__file__).parents[1] / "docs" / "reference" / "documents.md"
_ROW = re.compile(r"^\| (\w+) \| (.+?) \| (.+) \|$", re.MULTILINE)


def told() -> dict[str, list[str]]:
    rows = _ROW.findall(_PAGE.read_text())
    return {name: re.findall(r"`(\w+)`", fields) for name, _, fields in rows if name != "class"}


def written(module: ModuleType) -> dict[str, list[str]]:
    classes = [value for value in vars(module).values() if isinstance(value, type) and dataclasses.is_dataclass(value)]
    return {cls.__name__: [field.name for field in dataclasses.fields(cls)] for cls in classes}


def test_every_field_that_is_written_is_documented_and_no_other() -> None:
    assert told() == written(analysis)
