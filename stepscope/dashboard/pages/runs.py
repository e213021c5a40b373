"""Pages of the runs: a table of all with their verdicts, and the panels of one."""

from __future__ import annotations

import time
from typing import Any

import dash_mantine_components as dmc
from dash import html
from dash.development.base_component import Component

from stepscope.core.errors import DataError
from stepscope.core.protocol.verdicts import LiveVerdict
from stepscope.core.text.live_verdict import live_verdict_line
from stepscope.core.text.numbers import UNKNOWN, count, form, milliseconds, moment, percent
from stepscope.core.text.wording import cause_words, mesh_words
from stepscope.core.vocabulary import HEALTHY_CAUSES
from stepscope.dashboard.components import attributes, timeline_canvas_panel, to_dash
from stepscope.dashboard.pages.shell import no_runs, not_analysed, not_found, unreadable
from stepscope.dashboard.pages.tables import cell, run_link, search_field, table_head
from stepscope.store.runs import NotAnalysedError, RunStatus, RunStore, RunSummary, UnknownRunError
from stepscope.workflow.panels.elements import swatch, tag
from stepscope.workflow.panels.palette import category_of_cause
from stepscope.workflow.panels.report import all_panels, page_head

_STATUS = {
    RunStatus.ANALYSED: ("Analysed", "✓"),
    RunStatus.NOT_ANALYSED: ("Not analysed", "○"),
    RunStatus.UNREADABLE: ("Unreadable", "!"),
}

_COLUMNS = [
    ("Run", False, False),
    ("Started", False, True),
    ("Ranks", True, True),
    ("Step", True, True),
    ("Verdict", False, False),
    ("Share", True, True),
    ("Status", False, False),
]


def make_runs_page(store: RunStore) -> Component:
    """Dashboard page of all runs, or why there is none."""
    try:
        runs = store.list_runs()
    except DataError as error:
        return unreadable("The directory of runs", str(error))
    if not runs:
        return no_runs(str(store.root.resolve()))
    return html.Div([_head(runs), _table(runs)], className="ss-stack")


def _head(runs: list[RunSummary]) -> Component:
    number = f"{count(len(runs))} {form(len(runs), 'run')}"
    return html.Div(
        [
            html.Div(
                [
                    html.H1("Runs"),
                    html.Span(number, className="ss-note ss-listing-count", id="runs-count", role="status"),
                ]
            ),
            search_field("runs", "Search the runs", "Search run, GPU, verdict…"),
        ],
        className="ss-page-head",
    )


def _table(runs: list[RunSummary]) -> Component:
    """The table; assets/30-tables.js sorts and searches it by the cells' `data-value`."""
    body = html.Tbody([_row(run) for run in runs])
    caption = html.Caption("Runs, the latest first; the buttons in the head sort", className="ss-sr")
    return html.Div(
        [
            html.Div(
                html.Table(
                    [caption, table_head(_COLUMNS), body],
                    className="ss-table ss-runs ss-runs-list ss-sortable",
                    id="runs-table",
                    **attributes({"data-noun": "run", "data-nouns": "runs"}),
                ),
                className="ss-scroll",
                tabIndex=0,
                role="region",
                **attributes({"aria-label": "Runs"}),
            ),
            html.P("No run matches.", id="runs-none", className="ss-note ss-none", hidden=True),
        ],
        className="ss-panel ss-panel-table",
    )


def _row(run: RunSummary) -> Component:
    about = [html.Div(run.gpu, className="ss-note")] if run.gpu else []
    if run.live_verdict:
        about.append(html.Div(_live_line(run.live_verdict), className="ss-note"))
    if run.problem:
        about.append(html.Div(run.problem, className="ss-note ss-problem", title=run.problem))
    return html.Tr(
        [
            html.Th([run_link(run.id, run.id, className="ss-run-name"), *about], scope="row"),
            cell(moment(run.started_ns), run.started_ns),
            cell(_ranks(run), run.world_size, number=True),
            cell(milliseconds(run.step_ms), run.step_ms, number=True),
            cell(_verdict(run), _cause(run)),
            cell(_cost(run), run.cause_fraction, number=True),
            cell(_status(run), run.status.value),
        ]
    )


def _live_line(verdict: LiveVerdict) -> str:
    return f"While it ran: {live_verdict_line(verdict, time.time_ns())}"


def _ranks(run: RunSummary) -> Any:
    mesh = mesh_words(run.mesh)
    return [html.Span(count(run.world_size)), html.Div(mesh, className="ss-note") if mesh else None]


def _cause(run: RunSummary) -> str | None:
    return None if run.cause is None else cause_words(run.cause, on_cpu=run.device_kind == "cpu")


def _verdict(run: RunSummary) -> Any:
    if run.cause is None:
        return UNKNOWN
    return html.Span(
        [to_dash(swatch(category_of_cause(run.cause))), _cause(run)], className="ss-chip", title=run.summary
    )


def _cost(run: RunSummary) -> Any:
    if run.cause_fraction is None:
        return UNKNOWN
    each = f"{milliseconds(run.cause_ms_per_step)} per step" if run.cause_ms_per_step is not None else None
    if run.cause in HEALTHY_CAUSES:
        each = "no bottleneck"
    return [html.Span(percent(run.cause_fraction)), html.Div(each, className="ss-note") if each else None]


def _status(run: RunSummary) -> Any:
    words, sign = _STATUS[run.status]
    chip: list[Any] = [html.Span(sign, className="ss-status-sign", **attributes({"aria-hidden": "true"}))]
    chip.append(html.Span(words, className="ss-status-words"))
    return html.Span(chip, className=f"ss-status ss-status-{run.status.value}", title=words)


def make_run_page(store: RunStore, run_id: str) -> Component:
    """Dashboard page of a run, or why it cannot be shown."""
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
    head = to_dash(page_head(summary.id, analysis.job, started_ns=summary.started_ns))
    problem = []
    if summary.problem:
        problem = [
            dmc.Alert(summary.problem, title="A file of this run cannot be read", color="yellow", variant="light")
        ]
    live = [html.P(_live_line(summary.live_verdict), className="ss-note")] if summary.live_verdict else []
    panels = tag("div", all_panels(analysis, timeline_canvas_panel(summary.id, analysis)), class_="ss-stack")
    return html.Div([head, *live, *problem, to_dash(panels)], className="ss-stack")
