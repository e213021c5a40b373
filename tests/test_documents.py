"""Documents: links, named modules, folders, generated pages, and the demo's output in the README."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

import stepscope
from stepscope.analyzer.blame.advice import Advice
from stepscope.analyzer.blame.remedies import ACTIONS, REMEDIES, templates_of
from stepscope.core.text import wording
from stepscope.core.text.verdict import BOTTLENECK
from stepscope.core.vocabulary import Cause
from stepscope_reference import MARKER, PAGES
from tests.dashboard import example_run as example

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


def test_the_demo_in_the_readme_has_the_words_of_the_code() -> None:
    lines = _demo_block()
    text = " ".join(line.strip() for line in lines)
    on_cpu = replace(example.make_analysis(example.make_timelines()).job, device_kind="cpu")
    titles = {wording.cause_title_of_job(cause, on_cpu) for cause in Cause}
    head = next(line for line in lines if line.startswith(BOTTLENECK))
    assert head.removeprefix(f"{BOTTLENECK}  ").partition(":")[0] in titles
    rows = lines[next(at for at, line in enumerate(lines) if line.startswith(" ──")) + 1 :]
    categories = {re.split(r"\s{2,}", line.strip())[0] for line in rows[: rows.index("")]}
    assert categories
    assert categories <= titles
    remedies = {template for entry in (*REMEDIES.values(), *ACTIONS.values()) for template in templates_of(entry)}
    written = [
        wording.action_words(remedy.format_map(Advice(on_cpu=True, micro_batches=2).options)) for remedy in remedies
    ]
    assert any(f"Fix       {remedy}{'; then' if ':' in remedy else ':'} about " in text for remedy in written)
    assert "Confidence " in text
    assert not re.search(r"\de[+-]\d", text)
