"""What does a person see who opens the agent's address? How its sources are, and where the rest is."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from stepscope import __version__
from stepscope.agent.source_state import SourceState

_STYLE = "body{font:15px system-ui;margin:2em}td,th{text-align:left;padding:.2em 1.5em .2em 0;vertical-align:top}"


def landing_page(states: Sequence[SourceState]) -> str:
    """The page as HTML; how the sources are."""
    rows = "".join(_row(state) for state in states)
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>stepscope agent</title><style>{_STYLE}</style>"
        f"<h1>stepscope agent {escape(__version__)}</h1>"
        '<p><a href="metrics">Metrics</a> · <a href="api/v1/node">Node</a> · '
        '<a href="healthz">Health</a> · <a href="readyz">Readiness</a></p>'
        "<table><tr><th>source<th>state<th>values<th>missing<th>age<th></tr>"
        f"{rows}</table></html>\n"
    )


def _row(state: SourceState) -> str:
    age = "" if state.age_seconds is None else f"{state.age_seconds:.1f} s"
    cells = (
        state.name,
        state.reason.value if state.reason else "up",
        str(len(state.collection.readings)),
        str(len(state.collection.missing)),
        age,
        state.detail,
    )
    return "<tr>" + "".join(f"<td>{escape(cell)}" for cell in cells) + "</tr>"
