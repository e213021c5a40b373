"""Page of the jobs in the metric history, with how well they use their GPUs and the runs that they were."""

from __future__ import annotations

from functools import partial
from typing import Any

from dash import html
from dash.development.base_component import Component

from stepscope.core.errors import DataError
from stepscope.core.text.numbers import UNKNOWN, count, counted, moment, percent
from stepscope.dashboard.components import attributes
from stepscope.dashboard.page_state import PageState
from stepscope.dashboard.pages.history import (
    ask_the_same,
    banner,
    duration,
    history_option,
    listing,
    no_history,
    panel,
    time_choices,
)
from stepscope.dashboard.pages.shell import shell_word
from stepscope.dashboard.pages.tables import cell, run_link, sortable_table
from stepscope.dashboard.queries import FleetQueries, JobRow
from stepscope.store.runs import RunStore

PATH = "/jobs"
_MAX_ROWS = 500
_COLUMNS = [
    ("Job", False, False),
    ("State", False, False),
    ("User", False, False),
    ("Team", False, False),
    ("GPUs", True, True),
    ("Nodes", True, True),
    ("SM activity", True, True),
    ("Worst GPU", True, True),
    ("Seen", False, True),
    ("Runs", False, False),
]


def make_jobs_page(fleet: FleetQueries | None, store: RunStore, state: PageState) -> Component:
    """Dashboard page of the jobs, or why there is nothing to show."""
    if fleet is None:
        return no_history()
    snapshot = fleet.jobs(state.span_seconds)
    return listing("Jobs", "job", "job, user, team, run", snapshot, partial(_panel, fleet, store, state))


def _panel(fleet: FleetQueries, store: RunStore, state: PageState, rows: list[JobRow]) -> Component:
    try:
        known = {run.id for run in store.list_runs()}
    except DataError:
        known = set()
    shown = rows[:_MAX_ROWS]
    table: Any = sortable_table(
        "jobs",
        _COLUMNS,
        [_row(row, known) for row in shown],
        noun="job",
        caption="Jobs that had GPUs, live ones first; the buttons in the head sort",
    )
    if not rows:
        table = html.P(
            "No job had a GPU in this time, as far as the agents know. They learn of jobs from Slurm, Kubernetes or "
            "processes; choose a longer time, or see stepscope agent check on a node.",
            className="ss-note",
        )
    more = f"The latest {count(_MAX_ROWS)} of {counted(len(rows), 'job')}. " if len(rows) > len(shown) else ""
    return panel(
        "Which jobs have GPUs, and do they use them?",
        time_choices(PATH, state),
        banner("warn", more, "Choose a shorter time to see the others.") if more else None,
        table,
        ask_the_same(
            "jobs",
            f"stepscope history jobs --last {state.last} {history_option(fleet)} --runs {shell_word(str(store.root))}",
            f'stepscope.history("{fleet.location}").range("gpu_sm_active_ratio", by="job", start="-{state.last}")',
        ),
        key="jobs",
        source="Jobs by stepscope_gpu_job_info. SM activity is the mean of stepscope_gpu_sm_active_ratio over the "
        "job's GPUs and the time; a GPU that jobs share counts for none. Worst GPU: the one farthest from the median "
        "of a live job over the last 5 minutes, in percentage points. Runs are joined by the ranks that agents know, "
        "and by the scheduler's job that a run recorded.",
    )


def _row(row: JobRow, known: set[str]) -> Component:
    job, worst = row.job, row.worst
    name = f"{job.kind} {job.id}".strip()
    sign, words = ("●", "Live") if job.is_live else ("○", "Ended")
    state: list[Any] = [html.Span(sign, className="ss-state-dot", **attributes({"aria-hidden": "true"})), words]
    difference: Any = UNKNOWN
    if worst is not None:
        labels = dict(worst.labels)
        points = f"{worst.difference * 100:+.1f}".replace("-", "−")
        place = f"{labels.get('instance', '')} GPU {labels.get('gpu', '')}"
        difference = [html.Span(f"{points} points"), html.Div(place, className="ss-note")]
    length = duration((job.last_ns - job.first_ns) / 1e9)
    nodes = html.Span(count(len(job.nodes)), title=", ".join(job.nodes[:20]))
    return html.Tr(
        [
            html.Th(name, scope="row"),
            cell(html.Span(state, className=f"ss-job-{words.lower()}"), words),
            cell(job.user or UNKNOWN, job.user),
            cell(job.team or UNKNOWN, job.team),
            cell(count(job.num_gpus), job.num_gpus, number=True),
            cell(nodes, len(job.nodes), number=True),
            cell(percent(row.sm_active), row.sm_active, number=True),
            cell(difference, abs(worst.difference) if worst else None, number=True),
            cell([html.Span(moment(job.last_ns)), html.Div(f"for {length}", className="ss-note")], job.last_ns),
            cell([_run(run, known) for run in job.runs[:5]] or UNKNOWN, " ".join(job.runs)),
        ]
    )


def _run(run: str, known: set[str]) -> Component:
    if run not in known:
        return html.Div(run)
    return html.Div(run_link(run, run))
