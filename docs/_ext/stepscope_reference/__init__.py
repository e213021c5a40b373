"""Reference pages made from the code: a Sphinx extension, and functions that return the pages as Markdown.

A page asks for generated content with a line `<!-- generated: NAME -->`; NAME is a key of `PAGES`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from stepscope_reference.commands import commands
from stepscope_reference.configuration import configuration
from stepscope_reference.documents import documents
from stepscope_reference.errors import exit_codes
from stepscope_reference.faults import faults
from stepscope_reference.files import http_paths, run_files
from stepscope_reference.frames import figures, frames
from stepscope_reference.health import health
from stepscope_reference.metrics import metrics
from stepscope_reference.vocabulary import causes, gate_metrics, values

if TYPE_CHECKING:
    from sphinx.application import Sphinx

PAGES: Mapping[str, Callable[[], str]] = {
    "causes": causes,
    "commands": commands,
    "configuration": configuration,
    "documents": documents,
    "exit codes": exit_codes,
    "faults": faults,
    "figures": figures,
    "frames": frames,
    "gate metrics": gate_metrics,
    "health": health,
    "HTTP paths": http_paths,
    "metrics": metrics,
    "run files": run_files,
    "values": values,
}
"""Name in the marker -> the Markdown that takes the marker's place."""

MARKER = re.compile(r"^<!-- generated: (.+) -->$", re.MULTILINE)


def filled(text: str) -> str:
    """The page with generated content in the place of its markers."""
    return MARKER.sub(lambda found: PAGES[found[1]](), text)


def setup(app: Sphinx) -> dict[str, Any]:
    """Called by Sphinx."""
    app.connect("source-read", _source_read)
    return {"parallel_read_safe": True}


def _source_read(_app: Sphinx, _page: str, content: list[str]) -> None:
    content[0] = filled(content[0])
