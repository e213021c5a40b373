"""Why was the time spent, once waiting is charged to whoever was late? And what would fixing it buy?"""

from __future__ import annotations

from dash import html
from dash.development.base_component import Component

from stepscope.core.analysis import Analysis, RootCause, WhatIf
from stepscope.core.causes import HEALTHY_CAUSES
from stepscope.core.palette import heading_of_cause
from stepscope.core.words import UNKNOWN, cause_words, milliseconds, percent, ranks_words, reason_words
from stepscope.dashboard.components.bars import share_bar, swatch
from stepscope.dashboard.components.panel import panel
from stepscope.dashboard.components.table import Column, table


def root_causes_panel(analysis: Analysis) -> Component:
    """A bar a cause, the largest first; losses and useful work are told apart."""
    rows = sorted(analysis.root_causes, key=lambda row: -row.fraction)
    largest = max((max(row.fraction, *(row.interval or ())) for row in rows), default=0.0)
    items = [_item(row, largest, analysis.job.world_size) for row in rows if row.fraction > 0]
    body = html.Ul(items, className="ss-causes") if items else html.P("No cause is recorded.", className="ss-note")
    return panel(
        "What is the time spent on, and whose doing is it?",
        [body],
        name="root-causes",
        note="of all ranks' time, adds up to 100\u202f%",
        source=(
            "Root-cause table: the ledger after blame. Waiting is charged to the rank that arrived last and to what it "
            "did differently until then. The thin line over a bar is the 90 % interval (bootstrap over steps)."
        ),
    )


def what_if_panel(analysis: Analysis) -> list[Component]:
    """The predicted step with one cause removed; nothing when nothing was replayed."""
    if not analysis.what_if:
        return []
    columns = [
        Column("Fix"),
        Column("Measured", is_number=True, hint="of the steps replayed, without those whose waits began before"),
        Column("Step", is_number=True),
        Column("Gain", is_number=True),
        Column("Calibrated", is_number=True, hint="host gaps scaled to the unprofiled step"),
        Column("Then binds"),
        Column("Replay error", is_number=True, hint="error of the replay with nothing changed"),
    ]
    rows = [_what_if_row(fix) for fix in analysis.what_if]
    return [
        panel(
            "What would fixing it buy?",
            [table(columns, rows, caption="Predicted step time with one cause removed")],
            name="what-if",
            source=(
                "The job is rebuilt as a graph of launches, streams and collectives and replayed without one cause. "
                "Gain = 1 − predicted / replayed step."
            ),
        )
    ]


def _item(row: RootCause, largest: float, world_size: int) -> Component:
    heading = heading_of_cause(row.cause)
    details = [ranks_words(row.ranks, world_size=world_size)] if row.ranks else []
    details += [reason_words(reason) for reason in row.reasons]
    if row.interval:
        low, high = map(percent, row.interval)
        details += [f"{low} to {high}"] if low != high else []
    healthy = " ss-healthy" if row.cause in HEALTHY_CAUSES else ""
    return html.Li(
        [
            html.Span([swatch(heading), html.Span(cause_words(row.cause))], className="ss-cause-name"),
            share_bar(row.fraction, heading=heading, largest=largest, interval=row.interval),
            html.Span(percent(row.fraction), className="ss-num ss-cause-share"),
            html.Span(
                f"{milliseconds(row.ms_per_step)} a step" if row.ms_per_step is not None else "", className="ss-num"
            ),
            html.Span(" · ".join(details), className="ss-note ss-cause-details"),
        ],
        className=f"ss-cause{healthy}",
    )


def _what_if_row(fix: WhatIf) -> list[str]:
    return [
        cause_words(fix.fix),
        milliseconds(fix.measured_step_ms),
        milliseconds(fix.step_ms),
        percent(fix.gain),
        milliseconds(fix.calibrated_step_ms),
        cause_words(fix.binds_next) if fix.binds_next else UNKNOWN,
        percent(fix.replay_error),
    ]
