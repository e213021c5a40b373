"""Parts of pages that show the metric history: panels, time ranges, tables, banners, and pages without data."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

import dash_mantine_components as dmc
from dash import html
from dash.development.base_component import Component

from stepscope.core.text.numbers import counted, form
from stepscope.dashboard.components import attributes, to_dash
from stepscope.dashboard.live_slots import slot
from stepscope.dashboard.page_state import SPANS, PageState
from stepscope.dashboard.pages.shell import command_block, shell_word
from stepscope.dashboard.pages.tables import search_field
from stepscope.dashboard.queries import FleetQueries, Snapshot
from stepscope.store.history.questions import HistoryEvent, HistoryEventKind
from stepscope.workflow.panels import elements

_T = TypeVar("_T")

_SPAN_TITLES = {
    "15min": "15 minutes",
    "1h": "1 hour",
    "6h": "6 hours",
    "24h": "24 hours",
    "7d": "7 days",
    "30d": "30 days",
}
_KIND_WORDS = {
    HistoryEventKind.HEALTH: ("Health", "!"),
    HistoryEventKind.GAP: ("No data", "…"),
    HistoryEventKind.VERDICT: ("Verdict", "i"),
}


def live(head: Any, *parts: Any, banners: Sequence[Component | None] = ()) -> Component:
    """A live page: of it the slots are made again every few seconds."""
    shown = slot(html.Div, "banners", [one for one in banners if one is not None], className="ss-banners")
    return html.Div([head, shown, *parts], className="ss-stack")


def panel(title: str, *body: Any, key: str, note: str = "", source: str = "") -> Component:
    """A panel with Dash components in it."""
    made: Component = to_dash(elements.panel(title, key=key, note=note, source=source))
    made.children = [*made.children, *(part for part in body if part is not None)]
    return made


def ask_the_same(key: str, command: str, python: str) -> Component:
    """How to get a panel's answer on the command line and in Python."""
    return html.Details(
        [
            html.Summary("Command and Python"),
            html.Div([command_block(command), command_block(python)], className="ss-ask-lines"),
        ],
        id=f"{key}-ask",
        className="ss-ask",
    )


def history_option(fleet: FleetQueries) -> str:
    """The option that names the history, for a command on a page."""
    return f"--history {shell_word(fleet.location)}"


def choices(label: str, options: Sequence[tuple[str, str, bool]]) -> Component:
    """Links of which one is chosen: title, address, and whether it is the chosen one, of each."""
    links = [
        dmc.Anchor(
            title,
            href=address,
            underline="never",
            className="ss-choice",
            **attributes({"aria-current": "true"} if is_chosen else {}),
        )
        for title, address, is_chosen in options
    ]
    return html.Div(
        [html.Span(label, className="ss-choices-label"), *links],
        className="ss-choices",
        role="group",
        **attributes({"aria-label": label}),
    )


def time_choices(path: str, state: PageState, spans: Sequence[str] = tuple(SPANS)) -> Component:
    """Choice of the time range of a page."""
    return choices("Last", [(_SPAN_TITLES[one], path + state.query(last=one), one == state.last) for one in spans])


def banner(kind: str, title: str, *body: Any) -> Component:
    """A line above the panels: `warn` or `bad`."""
    return html.Div(
        [html.Strong(title), *body],
        className=f"ss-banner ss-banner-{kind}",
        role="status" if kind == "warn" else "alert",
    )


def no_history() -> Component:
    """Page about the cluster of a dashboard without a metric history."""
    return _state(
        "No metric history",
        html.P(
            "This page shows what the agents of a cluster measure, and the dashboard was started without a history."
        ),
        html.P("Record agents, and show them:"),
        command_block("stepscope dashboard --history DIR --agent http://NODE:9455"),
    )


def first_answer(title: str) -> Component:
    """Page whose first answer is still being made; it shows itself once that is there."""
    return live(
        html.H1(title),
        slot(html.Div, "waiting", []),
        html.P("Reading the metric history. The first answer can take some seconds…", role="status"),
        dmc.Skeleton(height=44),
        dmc.Skeleton(height=320),
        dmc.Skeleton(height=240),
    )


def no_answer(title: str, problem: str) -> Component:
    """Page whose question the history could not answer yet; it is asked again by itself."""
    return live(
        html.H1(title),
        slot(html.Div, "failing", []),
        html.P("It is asked again every few seconds.", className="ss-note"),
        banners=[banner("bad", "The metric history cannot be read. ", problem)],
    )


def old_answer(problem: str | None) -> Component | None:
    """Banner of a page whose last answer is shown, as a newer one could not be had."""
    if problem is None:
        return None
    return banner("bad", "The metric history cannot be read; this is its last answer. ", problem)


def empty(title: str, *body: Any) -> Component:
    """Page without anything to show, with the reason and what to do."""
    return live(_state(title, *body), slot(html.Div, "empty", []))


def listing(
    title: str, noun: str, searched: str, snapshot: Snapshot[list[_T]] | None, make: Callable[[list[_T]], Component]
) -> Component:
    """Page of a table of all things of a kind: how many they are, a search field, and the panel of them.

    Args:
        noun: of one thing; its plural begins the ids.
        searched: what the search field finds: "node, GPU, code".
        snapshot: None before the first answer.
        make: the panel.
    """
    if snapshot is None:
        return first_answer(title)
    found = snapshot.value
    if found is None:
        return no_answer(title, snapshot.problem or "")
    key = form(2, noun)
    number = slot(
        html.Span, f"{key}-count", counted(len(found), noun), className="ss-note ss-listing-count", role="status"
    )
    head = html.Div(
        [html.Div([html.H1(title), number]), search_field(key, f"Search the {key}", f"Search {searched}…")],
        className="ss-page-head",
    )
    return live(head, make(found), banners=[old_answer(snapshot.problem)])


def _state(title: str, *body: Any) -> Component:
    return html.Div([html.H1(title), *body], className="ss-state")


def clock(time_ns: int) -> str:
    """'14:03:20 UTC'."""
    return datetime.fromtimestamp(time_ns // 10**9, tz=UTC).strftime("%H:%M:%S UTC")


def duration(seconds: float) -> str:
    """'42 s', '3 min', '2.5 h', '3 d'."""
    for size, unit in ((86400.0, "d"), (3600.0, "h")):
        if seconds >= size:
            return f"{seconds / size:.1f}".removesuffix(".0") + f" {unit}"
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{max(seconds, 0):.0f} s"


def event_place(event: HistoryEvent) -> str:
    """What an event is of: node and GPU, or the run."""
    labels = dict(event.labels)
    if event.kind is HistoryEventKind.VERDICT:
        return f"run {labels.get('run', '')}"
    node = labels.get("instance", "")
    return f"{node} GPU {labels['gpu']}" if labels.get("gpu") else node or "all nodes"


def event_kind(event: HistoryEvent) -> Component:
    """Sign and word of an event's kind."""
    words, sign = _KIND_WORDS[event.kind]
    chip = [html.Span(sign, className="ss-status-sign", **attributes({"aria-hidden": "true"})), html.Span(words)]
    return html.Span(chip, className=f"ss-status ss-event-{event.kind.value}")


def event_duration(event: HistoryEvent) -> str:
    """How long an event lasted, or that it lasts."""
    if event.end_ns is None:
        if event.kind is HistoryEventKind.VERDICT:
            return "current"
        return f"open for {duration((time.time_ns() - event.start_ns) / 1e9)}"
    return duration((event.end_ns - event.start_ns) / 1e9)
