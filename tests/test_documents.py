"""Documents: links, named modules, folders, generated pages, and the demo's output in the README."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import stepscope
from stepscope.analyzer.blame.remedies import ACTIONS, COSTS, REMEDIES
from stepscope.core.text import wording
from stepscope.core.vocabulary import Cause
from stepscope_reference import MARKER, PAGES

_ROOT = Path(stepscope.__file__).parents[1]
_DOCUMENTS = sorted([*_ROOT.glob("*.md"), *_ROOT.glob("docs/**/*.md")])
_LINK = re.compile(r"\]\((?!https?://|#)([^)#]+)")
_MODULE = re.compile(r"`(\w+\.py)`")


@pytest.mark.parametrize("document", _DOCUMENTS, ids=lambda path: str(path.relative_to(_ROOT)))
def test_links_lead_somewhere_and_nothing_is_left_to_fill_in(document: Path) -> None:
    text = document.read_text()
    assert "@@" not in text
    broken = [link for link in _LINK.findall(text) if not (document.parent / link).exists()]
    assert broken == []


def test_every_module_that_the_architecture_names_exists() -> None:
    text = (_ROOT / "ARCHITECTURE.md").read_text()
    there = {path.name for path in _ROOT.glob("stepscope/**/*.py")}
    assert set(_MODULE.findall(text)) <= there


def test_the_architecture_has_a_line_for_every_folder() -> None:
    text = (_ROOT / "ARCHITECTURE.md").read_text()
    rooms = re.findall(r"^\| \**([\w/]+?)/\** \|", text, flags=re.MULTILINE)
    package = _ROOT / "stepscope"
    folders = [path for pattern in ("*/", "*/*/") for path in package.glob(pattern)]
    folders += [path.parent for path in package.glob("*/*/*/__init__.py")]
    folders = [path for path in folders if path.name != "__pycache__"]
    assert sorted(rooms) == sorted(str(path.relative_to(package)) for path in folders)


def test_every_generated_page_has_its_place() -> None:
    pages = _ROOT.glob("docs/**/*.md")
    assert sorted(name for page in pages for name in MARKER.findall(page.read_text())) == sorted(PAGES)


def _demo_block() -> list[str]:
    """The lines of README's first block without a command: what the demo prints."""
    blocks = re.findall(r"^```([^\n]*)\n(.*?)^```$", (_ROOT / "README.md").read_text(), flags=re.MULTILINE | re.DOTALL)
    body: str = next(body for language, body in blocks if not language)
    return body.splitlines()


def test_the_evidence_in_the_readme_is_said_as_the_code_says_it() -> None:
    labels = re.findall(r"^  - (.+?): ", "\n".join(_demo_block()), flags=re.MULTILINE)
    assert labels
    assert set(labels) <= set(wording._METRIC_TITLES.values())


def test_the_rest_of_the_demo_in_the_readme_has_the_words_of_the_code() -> None:
    lines = _demo_block()
    verdict = next(line for line in lines if line.startswith("VERDICT  "))
    after_headings = lines[next(at for at, line in enumerate(lines) if line.startswith(" ──")) + 1 :]
    causes = {re.split(r"\s{2,}", line.strip())[0] for line in after_headings if line.strip()}
    actions = {line.removeprefix("  > ") for line in lines if line.startswith("  > ")}
    also = [line.removeprefix("  also: ") for line in lines if line.startswith("  also: ")]
    known = {wording.cause_phrase(cause) for cause in Cause}
    assert verdict.removeprefix("VERDICT  ").partition("  ")[0] in known
    assert causes
    assert causes <= known
    assert actions
    assert actions <= {*REMEDIES.values(), *(one for several in ACTIONS.values() for one in several)}
    assert all(line.startswith(tuple(COSTS.values())) for line in also)
    assert not any(re.search(r"\de[+-]\d", line) for line in lines)
