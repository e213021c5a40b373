"""Whose doing is it, and what would fixing it buy?"""

from __future__ import annotations

from stepscope.core.analysis import Analysis, RootCause, WhatIf
from stepscope.core.palette import heading_of_cause
from stepscope.core.words import UNKNOWN, cause_words, milliseconds, percent, reason_words
from stepscope.workflow.report_html.bars import share_bar, swatch
from stepscope.workflow.report_html.blocks import Column, panel, some_ranks, table
from stepscope.workflow.report_html.markup import Markup, join, tag

_WHAT_IF = [
    Column("Fix"),
    Column("Measured", True),
    Column("Step", True),
    Column("Gain", True),
    Column("Unprofiled", True),
    Column("Then binds"),
    Column("Replay error", True),
]


def root_causes(analysis: Analysis) -> Markup:
    """A bar a cause, the largest first."""
    rows = sorted((row for row in analysis.root_causes if row.fraction > 0), key=lambda row: -row.fraction)
    largest = max((max(row.fraction, *(row.interval or ())) for row in rows), default=0.0)
    items = [_row(row, largest, analysis.job.world_size) for row in rows]
    return panel(
        "What is the time spent on, and whose doing is it?",
        tag("ul", *items, class_="causes"),
        key="causes",
        note="Share of all ranks' time, with every wait charged to whoever was late; the line is the 90 % interval.",
    )


def what_if(analysis: Analysis) -> Markup | None:
    """The predicted step with one cause removed; nothing when nothing was replayed."""
    if not analysis.what_if:
        return None
    rows = [_fix(fix) for fix in analysis.what_if]
    body = table(_WHAT_IF, rows, num_all=len(rows), what="fixes")
    note = (
        "The job replayed with one cause removed; the replay error is that of the replay with nothing changed. "
        "Measured is of the steps replayed: those whose waits began before the traces are left out."
    )
    return panel("What would fixing it buy?", body, key="what-if", note=note)


def _row(row: RootCause, largest: float, world_size: int) -> Markup:
    heading = heading_of_cause(row.cause)
    details = [some_ranks(row.ranks, world_size=world_size)] if row.ranks else []
    details += [reason_words(reason) for reason in row.reasons]
    a_step = "" if row.ms_per_step is None else f"{milliseconds(row.ms_per_step)} a step"
    return tag(
        "li",
        tag("span", swatch(heading), " ", cause_words(row.cause)),
        share_bar(row.fraction, heading=heading, largest=largest, interval=row.interval),
        tag("b", percent(row.fraction), class_="num"),
        tag("span", a_step, class_="num"),
        tag("span", " · ".join(details), class_="note"),
    )


def _fix(fix: WhatIf) -> list[str | Markup]:
    change = tag("span", f" {fix.change}", class_="note") if fix.change else None
    return [
        join(cause_words(fix.fix), change),
        milliseconds(fix.measured_step_ms),
        milliseconds(fix.step_ms),
        percent(fix.gain),
        milliseconds(fix.calibrated_step_ms),
        UNKNOWN if fix.binds_next is None else cause_words(fix.binds_next),
        percent(fix.replay_error),
    ]
