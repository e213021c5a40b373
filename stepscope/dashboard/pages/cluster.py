"""Page of the cluster: key figures, the map of all GPUs, the most abnormal ones, and what is wrong now."""

from __future__ import annotations

import time
from typing import Any

import dash_mantine_components as dmc
from dash import html
from dash.development.base_component import Component

from stepscope.core.text.numbers import UNKNOWN, count, counted, form, listed, moment, percent, significant
from stepscope.dashboard.cluster_map import value_range
from stepscope.dashboard.components import attributes
from stepscope.dashboard.live_slots import slot
from stepscope.dashboard.page_state import ColourBy, PageState
from stepscope.dashboard.pages.history import (
    ask_the_same,
    banner,
    choices,
    clock,
    duration,
    empty,
    event_duration,
    event_kind,
    event_place,
    first_answer,
    history_option,
    live,
    no_answer,
    no_history,
    old_answer,
    panel,
)
from stepscope.dashboard.pages.shell import command_block
from stepscope.dashboard.queries import FleetQueries
from stepscope.workflow.history.cluster import ClusterState, MapMetric

PATH = "/cluster"
_MAX_EVENTS = 8


def make_cluster_page(fleet: FleetQueries | None, state: PageState) -> Component:
    """Dashboard page of the cluster, or why there is nothing to show."""
    if fleet is None:
        return no_history()
    snapshot = fleet.cluster(state.metric or None)
    if snapshot is None:
        return first_answer("Cluster")
    cluster = snapshot.value
    if cluster is None:
        return no_answer("Cluster", snapshot.problem or "")
    if cluster.at_ns is None or not cluster.nodes:
        return empty(
            "No agent has answered yet",
            html.P(["The metric history ", html.Code(fleet.location), " has no scrape of the last 24 hours."]),
            html.P("Record the agents of the cluster:"),
            command_block(f"stepscope history run {history_option(fleet)} --agent http://NODE:9455"),
        )
    return live(
        _head(cluster),
        _map(fleet, cluster, state),
        _abnormal(fleet, cluster),
        _events(fleet, cluster),
        banners=[old_answer(snapshot.problem), _stale(cluster), _partial(cluster)],
    )


def _head(cluster: ClusterState) -> Component:
    assert cluster.at_ns is not None
    age = duration((time.time_ns() - cluster.at_ns) / 1e9)
    when = clock(cluster.at_ns) if not cluster.is_stale else moment(cluster.at_ns)
    title = html.Div(
        [html.H1("Cluster"), slot(html.Span, "age", f"Newest data {when}, {age} ago", className="ss-note")]
    )
    gpus, up = len(cluster.gpus), cluster.num_up
    figures = [
        ("Nodes answering", f"{count(up)} of {count(len(cluster.nodes))}"),
        ("GPUs", count(gpus)),
        ("Allocated", _share(cluster.allocated, gpus)),
        ("Busy", _share(cluster.busy, gpus)),
        ("Power", _power(cluster.watts)),
        ("Open events", count(len(cluster.open_events))),
    ]
    drawn = [html.Div([html.Dt(name), html.Dd(value)], className="ss-kpi") for name, value in figures]
    return html.Div([title, slot(html.Dl, "figures", drawn, className="ss-kpis")], className="ss-page-head")


def _share(number: int | None, of: int) -> Any:
    if number is None:
        return UNKNOWN
    share = html.Span(f" {percent(number / of)}", className="ss-note") if of else None
    return [count(number), share]


def _power(watts: float | None) -> str:
    if watts is None:
        return UNKNOWN
    for size, unit in ((1e6, "MW"), (1e3, "kW")):
        if watts >= size:
            return f"{significant(watts / size)} {unit}"
    return f"{significant(watts)} W"


def _stale(cluster: ClusterState) -> Component | None:
    if not cluster.is_stale or cluster.at_ns is None:
        return None
    age = duration((time.time_ns() - cluster.at_ns) / 1e9)
    return banner(
        "bad",
        f"These data are {age} old. ",
        "The recorder has written nothing since; look whether it runs. Values below are not those of now.",
    )


def _partial(cluster: ClusterState) -> Component | None:
    down = [node.name for node in cluster.nodes if not node.is_up]
    if not down or cluster.is_stale:
        return None
    answer = form(cluster.num_up, "answers", "answer")
    number = f"{count(cluster.num_up)} of {counted(len(cluster.nodes), 'node')} {answer}. "
    missing = f"No data of {listed(down, 6)}. "
    return banner("warn", number, missing, dmc.Anchor("Show events", href="/events?last=1h"))


def _map(fleet: FleetQueries, cluster: ClusterState, state: PageState) -> Component:
    metric = cluster.metric
    if metric is None:
        return panel(
            "Which GPUs are unlike the others of their job?",
            html.P("The history has none of the metrics that the map shows. Agents measure them where NVML answers."),
            command_block("stepscope doctor"),
            key="map",
        )
    is_deviation = state.colour is ColourBy.DEVIATION
    title = (
        f"Which GPUs differ in {_inline(metric)} from the rest of their job?"
        if is_deviation
        else f"What is the {_inline(metric)} of every GPU?"
    )
    source = (
        f"{metric.metric}, means of a minute. "
        + (
            "The colour is the difference from the median of the same job's GPUs over the last 5 minutes, "
            "minute by minute; a load that all of them have moves none of them. "
            if is_deviation
            else "The colour is the newest minute. "
        )
        + f"Agents are asked every {significant(fleet.interval)} s; the page follows within seconds."
    )
    name = metric.metric.removeprefix("stepscope_")
    query = f"metric={metric.key}&colour={state.colour}"
    label = (
        f"Map of {counted(len(cluster.gpus), 'GPU')} of {counted(len(cluster.nodes), 'node')}, one cell each; "
        "arrow keys move, the table below the map has the values"
    )
    picture = html.Div(
        id="gpu-map",
        className="ss-map",
        **attributes({"data-map": f"/api/v1/cluster/map?{query}", "data-label": label, "data-query": query}),
    )
    controls = html.Div(
        [
            choices(
                "Metric",
                [(one.title, PATH + state.query(metric=one.key), one is metric) for one in cluster.metrics],
            ),
            choices(
                "Colour",
                [
                    ("Deviation", PATH + state.query(colour=ColourBy.DEVIATION), is_deviation),
                    ("Value", PATH + state.query(colour=ColourBy.VALUE), not is_deviation),
                ],
            ),
        ],
        className="ss-controls",
    )
    top = " --top 10" if is_deviation else ""
    return panel(
        title,
        controls,
        _legend(cluster, metric, is_deviation=is_deviation),
        picture,
        ask_the_same(
            "map",
            f"stepscope history query {metric.metric} --by gpu{top} --last 5min {history_option(fleet)}",
            f'stepscope.history("{fleet.location}").range("{name}", by=["gpu", "job"], start="-5min", step="1min")',
        ),
        key="map",
        source=source,
    )


def _inline(metric: MapMetric) -> str:
    """The metric's title within a sentence."""
    return metric.title if metric.title[:2].isupper() else metric.title[:1].lower() + metric.title[1:]


def _legend(cluster: ClusterState, metric: MapMetric, *, is_deviation: bool) -> Component:
    if is_deviation:
        if metric.is_relative:
            ends = f"−{metric.scale:.0%}", f"+{metric.scale:.0%}"
        else:
            is_share = metric.metric.endswith("_ratio")
            amount = f"{metric.scale * 100:.0f} points" if is_share else f"{metric.scale:.0f} °C"
            ends = f"−{amount}", f"+{amount}"
        words = [ends[0], "median of its job", ends[1]]
    else:
        low, high = value_range(cluster, metric)
        words = [metric.words(low), metric.words((low + high) / 2), metric.words(high)]
    kind = "ss-scale-deviation" if is_deviation else "ss-scale-value"
    scale = html.Div(
        [
            html.Div(className=f"ss-scale {kind}"),
            html.Div([html.Span(one) for one in words], className="ss-scale-words"),
        ],
        className="ss-scale-box",
    )
    marks = [("none", "no value"), ("down", "node does not answer"), ("event", "open health event")]
    if is_deviation:
        marks.insert(0, ("alone", "no job to compare with"))
    items = [
        html.Li([html.Span(className=f"ss-map-mark ss-map-mark-{key}", **attributes({"aria-hidden": "true"})), text])
        for key, text in marks
    ]
    return html.Div(
        [
            slot(html.Div, "scale", scale, className="ss-scale-slot"),
            html.Ul(items, className="ss-legend ss-map-legend"),
        ],
        className="ss-map-head",
    )


def _abnormal(fleet: FleetQueries, cluster: ClusterState) -> Component:
    rows = []
    for one in cluster.abnormal:
        labels, node, job = dict(cluster.gpus[one.cell]), cluster.node_of(one.cell), cluster.jobs[one.cell]
        number = f"GPU {labels.get('gpu', '')}"
        rows.append(
            html.Tr(
                [
                    html.Th(
                        [
                            html.Button(
                                f"{node.name} {number}",
                                type="button",
                                className="ss-find",
                                **attributes({"data-cell": str(one.cell), "title": "Show it on the map"}),
                            )
                        ],
                        scope="row",
                    ),
                    html.Td(node.rack or UNKNOWN),
                    html.Td(
                        dmc.Anchor(f"{job[0]} {job[1]}", href=f"/jobs?q={job[1]}")
                        if job and job[1].isalnum()
                        else (" ".join(job) if job else UNKNOWN)
                    ),
                    html.Td([html.Div(line) for line in one.why]),
                ]
            )
        )
    head = [html.Th(title, scope="col") for title in ("GPU", "Rack", "Job", "Why")]
    caption = "The most abnormal GPUs, the worst first"
    table = html.Div(
        html.Table(
            [html.Caption(caption, className="ss-sr"), html.Thead(html.Tr(head)), html.Tbody(rows)],
            className="ss-table ss-abnormal",
        ),
        className="ss-scroll",
        tabIndex=0,
        role="region",
        **attributes({"aria-label": caption}),
    )
    metric = cluster.metric
    words = f" by {_inline(metric)}" if metric else ""
    none = html.P(f"No GPU is far from its job{words}, and no health event is open.", className="ss-note")
    ask = None
    if metric is not None:
        name = metric.metric.removeprefix("stepscope_")
        ask = ask_the_same(
            "abnormal",
            f"stepscope history query {metric.metric} --top 10 --last 5min --events {history_option(fleet)}",
            f'stepscope.history("{fleet.location}").range("{name}", by=["gpu", "job"], start="-5min", step="1min")',
        )
    return panel(
        "Which GPUs are most abnormal, and why?",
        slot(html.Div, "abnormal", table if rows else none),
        ask,
        key="abnormal",
        note=f"At most 10{words}; open health events count most",
        source="GPUs with an open health event, and those at least a tenth of the map's scale away from the median of "
        "their job over the last 5 minutes. A deviation says that a GPU is unlike the others, not that it is broken.",
    )


def _events(fleet: FleetQueries, cluster: ClusterState) -> Component:
    events = cluster.open_events
    items = [
        html.Li(
            [
                event_kind(event),
                html.Span(
                    [html.Strong(event_place(event)), html.Span(event.text or event.code, className="ss-event-text")]
                ),
                html.Span(event_duration(event), className="ss-note"),
            ]
        )
        for event in events[:_MAX_EVENTS]
    ]
    more = len(events) - len(items)
    link = dmc.Anchor(f"{counted(more, 'more open event')}" if more > 0 else "All events", href="/events")
    return panel(
        "What is wrong now?",
        slot(
            html.Div,
            "now",
            [
                html.Ul(items, className="ss-event-list")
                if items
                else html.P("No event is open.", className="ss-note"),
                html.P(link, className="ss-left-out"),
            ],
        ),
        ask_the_same(
            "now",
            f"stepscope history query up --by node --last 24h --events {history_option(fleet)}",
            f'stepscope.history("{fleet.location}").events(start="-24h")',
        ),
        key="now",
        source="Gaps (an agent that does not answer) and health events of agents, as the recorder keeps them: those "
        "of the last day that have no end.",
    )
