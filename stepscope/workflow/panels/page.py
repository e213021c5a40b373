"""All panels of an analysis in their order, as the dashboard's page and the report show them."""

from __future__ import annotations

from importlib.resources import files

from stepscope.core.documents.analysis import AnalysedJob, Analysis
from stepscope.core.text.numbers import counted, milliseconds, moment, percent
from stepscope.core.text.wording import device_words, mesh_words
from stepscope.workflow.panels.communication import communication_panel, pipeline_panel
from stepscope.workflow.panels.elements import Child, Element, name, tag
from stepscope.workflow.panels.kernels import kernels_panel
from stepscope.workflow.panels.ledger import ledger_panel
from stepscope.workflow.panels.verdict import (
    quality_block,
    root_causes_panel,
    verdict_card,
    warnings_panel,
    what_if_panel,
)


def page_head(title: str, job: AnalysedJob, *, started_ns: int | None = None) -> Element:
    """The run, its size, and when it began."""
    mesh = mesh_words(job.mesh)
    missing = "" if len(job.ranks) == job.world_size else f"{len(job.ranks)} of "
    facts = [
        device_words(job),
        f"{missing}{counted(job.world_size, 'rank')}",
        f"{counted(job.num_steps, 'step')} captured",
        "" if started_ns is None else moment(started_ns),
    ]
    line = [tag("h1", name(title)), tag("span", name(mesh), class_="ss-badge") if mesh else None]
    note = tag("div", " · ".join(name(fact) for fact in facts if fact), class_="ss-note")
    return tag("header", tag("div", tag("div", line, class_="ss-title-line"), note), class_="ss-page-head")


def all_panels(analysis: Analysis, timeline: Child, *, with_steps: bool = False) -> list[Child]:
    """Trace quality first, then the verdict, then its evidence.

    Args:
        timeline: the panel of the time lines, which page and report draw differently.
        with_steps: also a bar per step, where the time lines have no table of steps.
    """
    return [
        quality_block(analysis),
        _figures(analysis.job),
        verdict_card(analysis),
        root_causes_panel(analysis),
        what_if_panel(analysis),
        ledger_panel(analysis, with_steps=with_steps),
        timeline,
        communication_panel(analysis),
        pipeline_panel(analysis),
        kernels_panel(analysis),
        warnings_panel(analysis),
    ]


def _figures(job: AnalysedJob) -> Element:
    figures = {
        "Step, captured": milliseconds(job.step_ms),
        "Step, unprofiled": None if job.unprofiled_step_ms is None else milliseconds(job.unprofiled_step_ms),
        "MFU": None if job.mfu is None else percent(job.mfu),
        "HFU": None if job.hfu is None or job.hfu == job.mfu else percent(job.hfu),
    }
    shown = [
        tag("div", tag("dt", title), tag("dd", value), class_="ss-kpi") for title, value in figures.items() if value
    ]
    return tag("dl", shown, class_="ss-kpis")


def style_sheet(file_name: str) -> str:
    """A style sheet: `panels.css` of all panels, `report.css` of the report around them."""
    return (files(__package__) / "assets" / file_name).read_text(encoding="utf-8")
