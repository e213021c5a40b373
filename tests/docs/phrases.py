"""Old phrases with their replacements, and the texts for users that are searched for them.

`PYTHONPATH=docs/_ext python -m tests.docs.phrases` prints all that remain; `--write` also updates `pending.txt`.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import click

import stepscope
from stepscope.cli import root
from stepscope_reference import PAGES

ROOT = Path(stepscope.__file__).parents[1]
PENDING = Path(__file__).with_name("pending.txt")
"""Files and commands whose texts are still to be rewritten, one a line. Only ever shorter; empty when all are."""

PHRASES: Mapping[str, str] = {
    r"(is|are|was|be|time|been) booked|booked (as|by|in|no|on|to|under|with)|books? (each|every|it|its|the|what)\b": (
        "attributed to, attributes"
    ),
    r"under (a|each|every|exactly one|its|one|the|which) headings?|(the|all) headings|heading of (a|the)\b": "category",
    r"charged? (a wait|each wait|it|the wait|to|waits)\b|charged to": "attributed to, caused by",
    r"captured (and|once|or not|ranks?|steps?|time|window)|are captured|is captured|was captured": "profiled",
    r"named from": "threshold",
    r"launch(es)? too slowly": "CPU-bound",
    r"(host is |the host )(never )?late\b|late hosts?\b": "CPU launch delays",
    r"data ready at once": "without data-loading waits",
    r"gaps between (queued )?kernels": "GPU launch gaps",
    r"\b(host|compute|memory) bound\b": "CPU-bound, compute-bound, memory-bound",
    r"\bcaptur(ed|ing) (slowed|took|steps?|time)|without the first and captured": "profiled, profiling",
    r"(job is|job was|called) healthy\b|a healthy job\b|healthy: \d": "no bottleneck",
    r"replay [-+]?\d+\.\d+ ?%": "model error",
    r"\d %(?!\w)": "27.0%",
    r"then binds|binds next": "next bottleneck",
    r"of (its|their|the) roofs?\b": "% of roofline",
    r"\b(it|they|that|this|time|verdict) stands? on\b": "evidence",
    r"(are|be|is|not|was|were) told\b(?! apart| from)|told (by|in|of)\b|tells? (of|nothing|which|anything)\b": (
        "reported, listed, known; raw or parsed"
    ),
    r"late figures?": "deferred scalars",
    r"\b(standings|sayings|designations|graveyard)\b": (
        "group progress, assignment sources, device lookup, process reaper"
    ),
    r"\bseldom\b|so often\b": "rarely; an interval",
    r"worth a look": "a threshold with its value",
    r"\bthat lives\b": "live",
    r"(?<!there )\bis no(?! longer| more| other)\b|\bare no [a-z]+s\b": "is not a ...",
    r"\bends? with (status |code )?\d": "exits with status N",
}
"""Expression -> what to write."""

_ERROR = re.compile(r"(?:Error|Exception)$|^from_os_error$|^none_usable$")
_LOGS = frozenset({"debug", "error", "exception", "info", "warning"})


class Hit(NamedTuple):
    """One old phrase in a text.

    Attributes:
        place: file or command.
        found: the phrase as it stands there.
        instead: what to write.
    """

    place: str
    found: str
    instead: str


def hits(texts: Iterable[tuple[str, str]]) -> Iterator[Hit]:
    """Old phrases in texts, each given with its place."""
    for place, text in texts:
        line = " ".join(text.split())
        for expression, instead in PHRASES.items():
            for found in re.finditer(expression, line, re.IGNORECASE):
                yield Hit(place, line[max(found.start() - 30, 0) : found.end() + 30], instead)


def helps() -> Iterator[tuple[str, str]]:
    """Every command with what its `--help` prints."""
    yield from _below(root, click.Context(root, info_name="stepscope"))


def errors() -> Iterator[tuple[str, str]]:
    """Every text in the source that is raised or logged, with its file."""
    package = Path(stepscope.__file__).parent
    for path in sorted(package.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and _is_for_users(node.func)]
        for call in calls:
            for given in (*call.args, *(keyword.value for keyword in call.keywords)):
                yield str(path.relative_to(ROOT)), "".join(_literals(given))


def documents() -> Iterator[tuple[str, str]]:
    """Every page that people have written, with the output of commands."""
    for page in sorted([*ROOT.glob("docs/**/*.md"), *ROOT.glob("*.md")]):
        if page.name != "CHANGELOG.md":
            yield str(page.relative_to(ROOT)), page.read_text(encoding="utf-8")


def verdicts() -> Iterator[tuple[str, str]]:
    """Every text in the source of which verdicts, tables and pages are made, with its file."""
    package = Path(stepscope.__file__).parent
    for path in sorted(path for pattern in _SOURCES_OF_VERDICTS for path in package.glob(pattern)):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        texts = [
            node.value
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings
        ]
        yield str(path.relative_to(ROOT)), "; ".join(texts)


_SOURCES_OF_VERDICTS = (
    "core/text/*.py",
    "analyzer/*.py",
    "analyzer/blame/*.py",
    "analyzer/compare/*.py",
    "analyzer/job_time/*.py",
    "analyzer/kernels/*.py",
    "analyzer/what_if/*.py",
    "cli/terminal/*.py",
    "cli/run_records.py",
    "cli/traces.py",
    "workflow/panels/*.py",
    "dashboard/*.py",
    "dashboard/pages/*.py",
)


def deployment() -> Iterator[tuple[str, str]]:
    """Every file in deploy/: scripts, alerts, settings and the dashboard with its program."""
    for path in sorted((ROOT / "deploy").rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            yield str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")


def generated() -> Iterator[tuple[str, str]]:
    """Every page that is made from the code, but for what errors and helps hold."""
    for name, make in PAGES.items():
        if name != "commands":
            yield f"generated: {name}", make()


def pending() -> frozenset[str]:
    """Places whose texts are still to be rewritten."""
    return frozenset(PENDING.read_text(encoding="utf-8").split("\n")) - {""}


def all_texts() -> Iterator[tuple[str, str]]:
    """All of them."""
    for texts in (helps, errors, documents, deployment, generated, verdicts):
        yield from texts()


def _below(command: click.Command, context: click.Context) -> Iterator[tuple[str, str]]:
    yield context.command_path, command.get_help(context)
    if isinstance(command, click.Group):
        for verb in command.list_commands(context):
            inner = command.get_command(context, verb)
            assert inner is not None, verb
            yield from _below(inner, click.Context(inner, context, verb))


def _is_for_users(function: ast.expr) -> bool:
    if isinstance(function, ast.Attribute):
        return function.attr in _LOGS
    return isinstance(function, ast.Name) and bool(_ERROR.search(function.id))


def _literals(node: ast.expr) -> Iterator[str]:
    """Literal parts of a text; a value that is put in becomes X."""
    for part in ast.walk(node):
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            yield part.value
        elif isinstance(part, ast.FormattedValue):
            yield ""


def main(*options: str) -> None:
    """Print what is left."""
    left = list(hits(all_texts()))
    for hit in left:
        click.echo(f"{hit.place}: ...{hit.found}... -> {hit.instead}")
    if "--write" in options:
        PENDING.write_text("".join(f"{place}\n" for place in sorted({hit.place for hit in left})), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
