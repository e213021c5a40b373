"""How fast is the communication, and who arrives last?"""

from __future__ import annotations

from dash import html
from dash.development.base_component import Component

from stepscope.core.analysis import Analysis, Collective
from stepscope.core.words import UNKNOWN, bandwidth, count, milliseconds, percent, ranks_words, size
from stepscope.dashboard.components.panel import panel
from stepscope.dashboard.components.table import Column, table

_COLUMNS = [
    Column("Operation"),
    Column("Group"),
    Column("Size", is_number=True),
    Column("Calls", is_number=True),
    Column("Bus bandwidth", is_number=True, hint="bytes over the wire / transfer time"),
    Column("Expected", is_number=True, hint="of the link"),
    Column("Transfer", is_number=True, hint="after the last arrival, all calls together"),
    Column("Wait", is_number=True, hint="until the last arrival, all calls and ranks together"),
    Column("Hidden", is_number=True, hint="share of its time under compute"),
    Column("Skew", is_number=True, hint="between the first and the last arrival, median of a call"),
    Column("Last to arrive"),
]


def communication_panel(analysis: Analysis) -> list[Component]:
    """A row for each kind, size and group; nothing on one rank."""
    if not analysis.collectives:
        return []
    slowest_first = sorted(analysis.collectives, key=lambda row: -_total_ms(row))
    rows = [_row(collective) for collective in slowest_first]
    return [
        panel(
            "How fast is the communication, and who arrives last?",
            [table(_COLUMNS, rows, caption="Collectives by kind, size and group", class_name="ss-wide")],
            name="communication",
            note="the most expensive first",
            source=(
                "Calls are matched across ranks by group and sequence number. Wait lasts until the last needed rank "
                "arrives, transfer is the rest. Bus bandwidth as nccl-tests define it, GB/s = 1e9 bytes a second."
            ),
        )
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
    slow = (
        row.busbw_gbs is not None and row.expected_busbw_gbs is not None and row.busbw_gbs < row.expected_busbw_gbs / 2
    )
    speed: object = bandwidth(row.busbw_gbs)
    if slow:
        speed = html.Span([bandwidth(row.busbw_gbs), html.Span("slow", className="ss-flag")])
    return [
        row.kind.replace("_", "-"),
        group,
        size(row.bytes),
        count(row.count),
        speed,
        bandwidth(row.expected_busbw_gbs),
        milliseconds(row.transfer_ms),
        milliseconds(row.wait_ms),
        percent(row.hidden),
        milliseconds(row.skew_ms),
        UNKNOWN if row.last_arriver is None else f"rank {row.last_arriver}",
    ]
