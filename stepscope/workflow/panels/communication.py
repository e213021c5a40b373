"""Panels of communication and of the pipeline's bubble."""

from __future__ import annotations

from stepscope.core.documents.analysis import Analysis, Collective, DimensionCost, Pipeline, RankArrivals
from stepscope.core.hardware.gpu_catalogue import SLOW_BELOW
from stepscope.core.text.numbers import UNKNOWN, bandwidth, count, counted, milliseconds, percent, size
from stepscope.core.text.wording import bubble_parts
from stepscope.workflow.panels import elements as html

MAX_COLLECTIVES = 60
MAX_ARRIVALS = 8
"""Rows shown; the document holds all."""

_COLLECTIVE_COLUMNS = [
    html.Column("Operation"),
    html.Column("Group"),
    html.number_column("Size"),
    html.number_column("Calls"),
    html.number_column("Bus bandwidth", "bytes over the wire / transfer time"),
    html.number_column("Expected", "of the link at this size"),
    html.number_column("Transfer", "after the last arrival, all calls together"),
    html.number_column("hidden", "share of the transfer under compute"),
    html.number_column("Wait", "until the last arrival, all calls and ranks together"),
    html.number_column("hidden", "share of the waiting under compute"),
    html.number_column("Skew", "between the first and the last arrival, median of a call"),
    html.Column("Last to arrive"),
]
_DIMENSION_COLUMNS = [
    html.Column("Dimension"),
    html.number_column("Calls"),
    html.number_column("Transfer", "exposed: only communication runs"),
    html.number_column("Wait", "exposed, the pipeline's bubble included"),
    html.number_column("Unknown", "exposed, but arrivals are not known"),
    html.number_column("Hidden", "under compute, calls at once each in full"),
]
_ARRIVAL_COLUMNS = [
    html.Column("Rank"),
    html.number_column("Late on average", "after the first to arrive"),
    html.number_column("Last", "of the collectives that need everybody"),
]


def communication_panel(analysis: Analysis) -> html.Element | None:
    """Panel of communication: a row for each kind, size and group; None on one rank."""
    if not analysis.collectives:
        return None
    ordered = sorted(analysis.collectives, key=lambda row: -((row.transfer_ms or 0.0) + (row.wait_ms or 0.0)))
    tables: list[html.Child] = [
        html.table(
            _COLLECTIVE_COLUMNS,
            [_collective(row, analysis.job.world_size) for row in ordered[:MAX_COLLECTIVES]],
            caption="Collectives by kind, size and group",
            num_all=len(ordered),
            what="kinds of collectives",
            class_="ss-wide ss-collectives",
        )
    ]
    if analysis.communication_by_dimension:
        costs = [_dimension(cost) for cost in analysis.communication_by_dimension]
        tables.append(html.table(_DIMENSION_COLUMNS, costs, caption="Share of all ranks' time by parallel dimension"))
    late = [row for row in analysis.arrivals if row.mean_late_ms > 0][:MAX_ARRIVALS]
    if late:
        tables.append(html.table(_ARRIVAL_COLUMNS, [_arrival(row) for row in late], caption="The latest ranks"))
    return html.panel(
        "How fast is the communication, and who arrives last?",
        tables,
        key="communication",
        note="the most expensive first",
        source=(
            "Calls are matched across ranks by group and sequence number, else by their order in the step. Wait "
            "lasts until the last needed rank arrives, transfer is the rest. Bus bandwidth by nccl-tests' rules, "
            "GB/s = 1e9 bytes a second; expected by NCCL's model of the link."
        ),
    )


def _collective(row: Collective, world_size: int) -> list[html.Child]:
    members = _members(row.group, world_size)
    flag = _flag(row)
    return [
        html.name(row.kind.replace("_", "-")),
        f"{html.name(row.dimension.upper())} · {members}" if row.dimension else members,
        size(row.bytes),
        count(row.count),
        html.tag("span", bandwidth(row.busbw_gbs), html.tag("span", flag, class_="ss-flag") if flag else None),
        bandwidth(row.expected_busbw_gbs),
        milliseconds(row.transfer_ms),
        percent(row.hidden_transfer),
        milliseconds(row.wait_ms),
        percent(row.hidden_wait),
        milliseconds(row.skew_ms),
        _last_arriver(row),
    ]


def _members(group: str, world_size: int) -> str:
    """'0,1,2,3' -> 'ranks 0–3'; a name stays as it is."""
    parts = group.split(",")
    is_ranks = all(part.isdecimal() and len(part) < 10 for part in parts)
    return html.short_ranks([int(part) for part in parts], world_size=world_size) if is_ranks else html.name(group)


def _flag(row: Collective) -> str | None:
    """A remark on the bandwidth: a small message is bound by latency, whatever the link."""
    if row.latency_bound:
        return "small"
    if row.busbw_gbs is None or row.expected_busbw_gbs is None:
        return None
    return "slow" if row.busbw_gbs < SLOW_BELOW * row.expected_busbw_gbs else None


def _last_arriver(row: Collective) -> str:
    if row.last_arriver is None:
        return UNKNOWN
    times = "" if row.times_last is None else f" ({count(row.times_last)} of {count(row.count)})"
    return f"rank {row.last_arriver}{times}"


def _dimension(cost: DimensionCost) -> list[html.Child]:
    return [
        html.name(cost.dimension.upper()) if cost.dimension else "not known",
        count(cost.num_calls),
        percent(cost.transfer),
        percent(cost.wait),
        percent(cost.unsplit),
        percent(cost.hidden_wait + cost.hidden_transfer + cost.hidden_unsplit),
    ]


def _arrival(row: RankArrivals) -> list[html.Child]:
    times_last = f"{count(row.times_last)} of {count(row.num_collectives)}"
    return [f"rank {row.rank}", milliseconds(row.mean_late_ms), times_last]


def pipeline_panel(analysis: Analysis) -> html.Element | None:
    """Panel of the pipeline's bubble: structural + imbalance + variance; None without a pipeline."""
    pipeline = analysis.pipeline
    if pipeline is None:
        return None
    parts = bubble_parts(pipeline)
    largest = max(share for _, share, _, _ in parts)
    items = [
        html.tag(
            "li",
            html.tag("span", part, class_="ss-cause-name"),
            html.share_bar(share, category=category, largest=largest),
            html.tag("span", percent(share), class_="ss-num ss-cause-share"),
            html.tag("span", meaning, class_="ss-note ss-cause-details"),
            class_=f"ss-cause ss-cause-short{' ss-sum' if part == 'Measured' else ''}",
        )
        for part, share, category, meaning in parts
    ]
    return html.panel(
        "How large is the pipeline's bubble, and why?",
        html.tag("ul", items, class_="ss-causes"),
        key="pipeline",
        note=_layout_words(pipeline),
        source=(
            "One period of the observed schedule is replayed without host delay: at the mean of all stages "
            "(structural), at each stage's own mean (imbalance), as measured (variance)."
        ),
    )


def _layout_words(pipeline: Pipeline) -> str:
    chunks = f", {counted(pipeline.chunks, 'chunk')} a stage" if pipeline.chunks > 1 else ""
    return (
        f"{html.name(pipeline.schedule)}, {counted(pipeline.stages, 'stage')}, "
        f"{counted(pipeline.micro_batches, 'micro-batch')}{chunks}, "
        f"period {milliseconds(pipeline.period_ms)}"
    )
