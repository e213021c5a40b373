"""Page of one run: trace quality first, then the verdict, then its evidence."""

from __future__ import annotations

import dash_mantine_components as dmc
from dash import html
from dash.development.base_component import Component

from stepscope.core.documents.analysis import Analysis, Job
from stepscope.core.errors import DataError
from stepscope.core.text.numbers import count, form, milliseconds, moment, percent
from stepscope.core.text.wording import device_words, mesh_words
from stepscope.dashboard.components.communication import communication_panel, pipeline_panel
from stepscope.dashboard.components.kernels import kernels_panel
from stepscope.dashboard.components.ledger import ledger_panel
from stepscope.dashboard.components.timeline import timeline_panel
from stepscope.dashboard.components.verdict import (
    quality_block,
    root_causes_panel,
    verdict_card,
    warnings_panel,
    what_if_panel,
)
from stepscope.dashboard.pages.placeholders import not_analysed, not_found, unreadable
from stepscope.store.runs import NotAnalysedError, RunStatus, RunStore, RunSummary, UnknownRunError


def make_page(store: RunStore, run_id: str) -> Component:
    """The run, or why it cannot be shown."""
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
    problem = []
    if summary.problem:
        problem = [
            dmc.Alert(summary.problem, title="A file of this run cannot be read", color="yellow", variant="light")
        ]
    return html.Div(
        [
            _head(summary, analysis.job),
            *problem,
            quality_block(analysis),
            html.Dl(_figures(analysis.job), className="ss-kpis"),
            verdict_card(analysis),
            root_causes_panel(analysis),
            *what_if_panel(analysis),
            ledger_panel(analysis),
            timeline_panel(summary.id, analysis),
            *pipeline_panel(analysis),
            *communication_panel(analysis),
            *kernels_panel(analysis),
            *warnings_panel(analysis.warnings),
        ],
        className="ss-stack",
    )


def _head(summary: RunSummary, job: Job) -> Component:
    mesh = mesh_words(job.mesh)
    facts = [
        device_words(job),
        f"{count(job.world_size)} {form(job.world_size, 'rank')}",
        f"{count(job.num_steps)} {form(job.num_steps, 'step')} captured",
    ]
    if summary.started_ns is not None:
        facts.append(moment(summary.started_ns))
    badge = [dmc.Badge(mesh, variant="light", size="lg", tt="none", className="ss-mesh")] if mesh else []
    return html.Div(
        [
            html.Div(
                [
                    html.Div([html.H1(summary.id), *badge], className="ss-title-line"),
                    html.Div(" · ".join(facts), className="ss-note"),
                ]
            ),
        ],
        className="ss-page-head",
    )


def _figures(job: Job) -> list[Component]:
    figures = [("Step, captured", milliseconds(job.step_ms))]
    if job.unprofiled_step_ms is not None:
        figures.append(("Step, unprofiled", milliseconds(job.unprofiled_step_ms)))
    if job.mfu is not None:
        figures.append(("MFU", percent(job.mfu)))
    if job.hfu is not None and job.hfu != job.mfu:
        figures.append(("HFU", percent(job.hfu)))
    return [html.Div([html.Dt(name), html.Dd(value)], className="ss-kpi") for name, value in figures]
