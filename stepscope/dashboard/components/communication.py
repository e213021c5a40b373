"""Panels of communication and of the pipeline's bubble."""

from __future__ import annotations

from dash import html
from dash.development.base_component import Component

from stepscope.core.documents.analysis import Analysis, Collective, DimensionCost, Pipeline, RankArrivals
from stepscope.core.hardware.links import SLOW_BELOW
from stepscope.core.text.numbers import UNKNOWN, bandwidth, count, counted, milliseconds, percent, ranks_words, size
from stepscope.core.text.wording import bubble_parts
from stepscope.dashboard.components.elements import Column, panel, share_bar, table

_COLUMNS = [
    Column("Operation"),
    Column("Group"),
    Column("Size", is_number=True),
    Column("Calls", is_number=True),
    Column("Bus bandwidth", is_number=True, hint="bytes over the wire / transfer time"),
    Column("Expected", is_number=True, hint="of the link at this size"),
    Column("Transfer", is_number=True, hint="after the last arrival, all calls together"),
    Column("hidden", is_number=True, hint="share of the transfer under compute"),
    Column("Wait", is_number=True, hint="until the last arrival, all calls and ranks together"),
    Column("hidden", is_number=True, hint="share of the waiting under compute"),
    Column("Skew", is_number=True, hint="between the first and the last arrival, median of a call"),
    Column("Last to arrive"),
]


_DIMENSION_COLUMNS = [
    Column("Dimension"),
    Column("Calls", is_number=True),
    Column("Transfer", is_number=True, hint="exposed: only communication runs"),
    Column("Wait", is_number=True, hint="exposed, the pipeline's bubble included"),
    Column("Unknown", is_number=True, hint="exposed, but arrivals are not known"),
    Column("Hidden", is_number=True, hint="under compute, calls at once each in full"),
]
_ARRIVAL_COLUMNS = [
    Column("Rank"),
    Column("Late on average", is_number=True, hint="after the first to arrive"),
    Column("Last", is_number=True, hint="of the collectives that need everybody"),
]

MOST_COLLECTIVES = 60
MOST_ARRIVALS = 8
"""Rows shown; the document holds all."""


def communication_panel(analysis: Analysis) -> list[Component]:
    """A row for each kind, size and group; nothing on one rank."""
    if not analysis.collectives:
        return []
    slowest_first = sorted(analysis.collectives, key=lambda row: -_total_ms(row))
    rows = [_row(collective) for collective in slowest_first[:MOST_COLLECTIVES]]
    tables = [table(_COLUMNS, rows, caption="Collectives by kind, size and group", class_name="ss-wide ss-collectives")]
    if analysis.communication_by_dimension:
        costs = [_cost(cost) for cost in analysis.communication_by_dimension]
        tables.append(table(_DIMENSION_COLUMNS, costs, caption="Share of all ranks' time by parallel dimension"))
    late = [row for row in analysis.arrivals if row.mean_late_ms > 0][:MOST_ARRIVALS]
    if late:
        tables.append(table(_ARRIVAL_COLUMNS, [_arrival(row) for row in late], caption="The latest ranks"))
    return [
        panel(
            "How fast is the communication, and who arrives last?",
            tables,
            name="communication",
            note="the most expensive first",
            source=(
                "Calls are matched across ranks by group and sequence number, else by their order in the step. Wait "
                "lasts until the last needed rank arrives, transfer is the rest. Bus bandwidth by nccl-tests' rules, "
                "GB/s = 1e9 bytes a second; expected by NCCL's model of the link."
            ),
        )
    ]


def _cost(cost: DimensionCost) -> list[object]:
    return [
        cost.dimension.upper() if cost.dimension else "not known",
        count(cost.num_calls),
        percent(cost.transfer),
        percent(cost.wait),
        percent(cost.unsplit),
        percent(cost.hidden_wait + cost.hidden_transfer + cost.hidden_unsplit),
    ]


def _arrival(row: RankArrivals) -> list[object]:
    return [
        f"rank {row.rank}",
        milliseconds(row.mean_late_ms),
        f"{count(row.times_last)} of {count(row.num_collectives)}",
    ]


def _total_ms(row: Collective) -> float:
    return (row.transfer_ms or 0.0) + (row.wait_ms or 0.0)


def _members(group: str) -> str:
    """'0,1,2,3' -> 'ranks 0–3'; a name stays as it is."""
    parts = group.split(",")
    return ranks_words([int(part) for part in parts]) if all(part.isdecimal() for part in parts) else group


def _row(row: Collective) -> list[object]:
    members = _members(row.group)
    group = f"{row.dimension.upper()} · {members}" if row.dimension else members
    flag = _flag(row)
    speed: object = bandwidth(row.busbw_gbs)
    if flag:
        speed = html.Span([bandwidth(row.busbw_gbs), html.Span(flag, className="ss-flag")])
    return [
        row.kind.replace("_", "-"),
        group,
        size(row.bytes),
        count(row.count),
        speed,
        bandwidth(row.expected_busbw_gbs),
        milliseconds(row.transfer_ms),
        percent(row.hidden_transfer),
        milliseconds(row.wait_ms),
        percent(row.hidden_wait),
        milliseconds(row.skew_ms),
        _last(row),
    ]


def _flag(row: Collective) -> str | None:
    """What is to be said of the bandwidth: a small message is bound by latency, whatever the link."""
    if row.latency_bound:
        return "small"
    if row.busbw_gbs is None or row.expected_busbw_gbs is None:
        return None
    return "slow" if row.busbw_gbs < SLOW_BELOW * row.expected_busbw_gbs else None


def _last(row: Collective) -> str:
    if row.last_arriver is None:
        return UNKNOWN
    often = "" if row.times_last is None else f" ({count(row.times_last)} of {count(row.count)})"
    return f"rank {row.last_arriver}{often}"


def pipeline_panel(analysis: Analysis) -> list[Component]:
    """Measured bubble = structural + imbalance + variance, beside the textbook's; nothing without a pipeline."""
    pipeline = analysis.pipeline
    if pipeline is None:
        return []
    parts = bubble_parts(pipeline)
    largest = max(share for _, share, _, _ in parts)
    items = [
        html.Li(
            [
                html.Span(name, className="ss-cause-name"),
                share_bar(share, heading=heading, largest=largest),
                html.Span(percent(share), className="ss-num ss-cause-share"),
                html.Span(meaning, className="ss-note ss-cause-details"),
            ],
            className=f"ss-cause ss-cause-short{' ss-sum' if name == 'Measured' else ''}",
        )
        for name, share, heading, meaning in parts
    ]
    return [
        panel(
            "How large is the pipeline's bubble, and why?",
            [html.Ul(items, className="ss-causes")],
            name="pipeline",
            note=_layout_words(pipeline),
            source=(
                "One period of the observed schedule is replayed without host delay: at the mean of all stages "
                "(structural), at each stage's own mean (imbalance), as measured (variance)."
            ),
        )
    ]


def _layout_words(pipeline: Pipeline) -> str:
    chunks = f", {pipeline.chunks} chunks a stage" if pipeline.chunks > 1 else ""
    return (
        f"{pipeline.schedule}, {counted(pipeline.stages, 'stage')}, "
        f"{counted(pipeline.micro_batches, 'micro-batch')}{chunks}, "
        f"period {milliseconds(pipeline.period_ms)}"
    )
