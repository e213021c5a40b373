"""Page of one run: the panels of its analysis."""

from __future__ import annotations

import dash_mantine_components as dmc
from dash import html
from dash.development.base_component import Component

from stepscope.core.documents.analysis import Analysis
from stepscope.core.errors import DataError
from stepscope.dashboard.components import timeline_panel, to_dash
from stepscope.dashboard.pages.placeholders import not_analysed, not_found, unreadable
from stepscope.store.runs import NotAnalysedError, RunStatus, RunStore, RunSummary, UnknownRunError
from stepscope.workflow.panels.elements import tag
from stepscope.workflow.panels.page import all_panels, page_head


def make_page(store: RunStore, run_id: str) -> Component:
    """The page of a run, or why it cannot be shown."""
    try:
        summary = store.get(run_id)
        if summary.status is RunStatus.UNREADABLE and summary.problem:
            return unreadable(run_id, summary.problem, path=summary.path)
        analysis = store.load_analysis(run_id)
    except UnknownRunError:
        return not_found(f"There is no run {run_id} in {store.root.resolve()}.")
    except NotAnalysedError:
        return not_analysed(run_id, summary.path)
    except DataError as error:
        return unreadable(run_id, str(error), path=summary.path)
    return _page(summary, analysis)


def _page(summary: RunSummary, analysis: Analysis) -> Component:
    head = to_dash(page_head(summary.id, analysis.job, started_ns=summary.started_ns))
    problem = []
    if summary.problem:
        problem = [
            dmc.Alert(summary.problem, title="A file of this run cannot be read", color="yellow", variant="light")
        ]
    panels = tag("div", all_panels(analysis, timeline_panel(summary.id, analysis)), class_="ss-stack")
    return html.Div([head, *problem, to_dash(panels)], className="ss-stack")
