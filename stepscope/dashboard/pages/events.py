"""Page of the events in the metric history: health, gaps and verdicts in a time range."""

from __future__ import annotations

from functools import partial
from typing import Any

from dash import html
from dash.development.base_component import Component

from stepscope.core.errors import UsageError
from stepscope.core.text.numbers import count, counted, moment
from stepscope.dashboard.page_state import PageState
from stepscope.dashboard.pages.history import (
    ask_the_same,
    banner,
    event_duration,
    event_kind,
    event_place,
    history_option,
    listing,
    no_history,
    panel,
    time_choices,
)
from stepscope.dashboard.pages.tables import cell, run_link, sortable_table
from stepscope.dashboard.queries import FleetQueries
from stepscope.store.history.questions import HistoryEvent, HistoryEventKind
from stepscope.store.runs import RunStore

PATH = "/events"
_MAX_ROWS = 500
_COLUMNS = [
    ("Where", False, False),
    ("Kind", False, False),
    ("Began", False, True),
    ("Lasted", True, True),
    ("Code", False, False),
    ("What", False, False),
]


def make_events_page(fleet: FleetQueries | None, store: RunStore, state: PageState) -> Component:
    """Dashboard page of the events, or why there is nothing to show."""
    if fleet is None:
        return no_history()
    snapshot = fleet.events(state.span_seconds)
    return listing("Events", "event", "node, GPU, code", snapshot, partial(_panel, fleet, store, state))


def _panel(fleet: FleetQueries, store: RunStore, state: PageState, events: list[HistoryEvent]) -> Component:
    shown = events[:_MAX_ROWS]
    table: Any = sortable_table(
        "events",
        _COLUMNS,
        [_row(event, store) for event in shown],
        noun="event",
        caption="Events, the latest first; the buttons in the head sort",
    )
    if not events:
        table = html.P("No event in this time: every agent answered, and none had a health event.", className="ss-note")
    more = f"The latest {count(_MAX_ROWS)} of {counted(len(events), 'event')}. " if len(events) > len(shown) else ""
    return panel(
        "What happened in the cluster?",
        time_choices(PATH, state),
        banner("warn", more, "Choose a shorter time to see the others.") if more else None,
        table,
        ask_the_same(
            "events",
            f"stepscope history query up --by node --last {state.last} --events {history_option(fleet)}",
            f'stepscope.history("{fleet.location}").events(start="-{state.last}")',
        ),
        key="events",
        source="Events that the recorder keeps beside the samples, by its clock: health events of agents, gaps "
        "(nothing is known of that time), and changes of the live verdict of a run.",
    )


def _row(event: HistoryEvent, store: RunStore) -> Component:
    length = None if event.end_ns is None else event.end_ns - event.start_ns
    return html.Tr(
        [
            html.Th(_place(event, store), scope="row"),
            cell(event_kind(event), event.kind.value),
            cell(moment(event.start_ns), event.start_ns),
            cell(event_duration(event), length, number=True),
            cell(html.Code(event.code), event.code),
            cell(event.text, event.text),
        ]
    )


def _place(event: HistoryEvent, store: RunStore) -> Any:
    place, run = event_place(event), dict(event.labels).get("run", "")
    if event.kind is not HistoryEventKind.VERDICT or not run:
        return place
    try:
        store.path_of(run)
    except UsageError:
        return place
    return run_link(run, place)
