"""How do the sections make one page? No script, no request: colours, pictures and style are inside."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files

from stepscope.core.analysis import Analysis
from stepscope.core.palette import DARK, LIGHT, variables
from stepscope.core.timeline import RankTimeline
from stepscope.workflow.report_html import causes, ledger, tables, timeline, verdict
from stepscope.workflow.report_html.bars import definitions
from stepscope.workflow.report_html.markup import Markup, name, tag

POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
"""Should an escape ever fail, a browser still runs nothing and asks nobody."""


def render(analysis: Analysis, timelines: Sequence[RankTimeline], *, title: str, version: str) -> str:
    """The whole document.

    Args:
        analysis: what is shown.
        timelines: the ranks' time lines; empty leaves that section out.
        title: what the run is called.
        version: of stepscope, for the last line.
    """
    footer = tag(
        "footer", f"Made by stepscope {version} from {analysis.schema}. Every number: docs/how-numbers-are-made.md"
    )
    body = tag(
        "body",
        definitions(),
        tag(
            "main",
            verdict.head(title, analysis),
            verdict.quality(analysis),
            verdict.figures(analysis),
            verdict.verdict(analysis),
            causes.root_causes(analysis),
            causes.what_if(analysis),
            ledger.ledger(analysis),
            timeline.timeline(analysis, timelines),
            tables.collectives(analysis),
            tables.pipeline(analysis),
            tables.kernels(analysis),
            tables.warnings(analysis),
            footer,
        ),
    )
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=POLICY),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", f"{name(title)} – stepscope"),
        Markup(f"<style>{_style()}</style>"),
    )
    return "<!DOCTYPE html>\n" + tag("html", head, body, lang="en") + "\n"


def _style() -> str:
    sheet = (files(__package__) / "assets" / "report.css").read_text(encoding="utf-8")
    dark = f"@media screen and (prefers-color-scheme: dark){{:root{{{variables(DARK)}}}}}"
    return f":root{{{variables(LIGHT)}}}{dark}\n{sheet}"
