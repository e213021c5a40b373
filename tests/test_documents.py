"""Do the documents point at what is there, and is nothing left to fill in?"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import stepscope

_ROOT = Path(stepscope.__file__).parents[1]
_DOCUMENTS = sorted([*_ROOT.glob("*.md"), *_ROOT.glob("docs/*.md")])
_LINK = re.compile(r"\]\((?!https?://|#)([^)#]+)")
_MODULE = re.compile(r"`(\w+\.py)`")


@pytest.mark.parametrize("document", _DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere_and_nothing_is_left_to_fill_in(document: Path) -> None:
    text = document.read_text()
    assert "@@" not in text
    broken = [link for link in _LINK.findall(text) if not (document.parent / link).exists()]
    assert broken == []


def test_every_module_that_the_architecture_names_exists() -> None:
    text = (_ROOT / "ARCHITECTURE.md").read_text()
    there = {path.name for path in _ROOT.glob("stepscope/**/*.py")}
    assert set(_MODULE.findall(text)) <= there
