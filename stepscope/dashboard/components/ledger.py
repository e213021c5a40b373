"""Panel of the time breakdown by rank."""

from __future__ import annotations

from dash import html
from dash.development.base_component import Component

from stepscope.core.documents.analysis import Analysis, RankLedger
from stepscope.core.text.numbers import UNKNOWN, milliseconds, percent
from stepscope.core.text.wording import category_words
from stepscope.core.vocabulary.categories import CATEGORY_ORDER, TimeCategory
from stepscope.dashboard.components.elements import (
    Column,
    attributes,
    figure_or_table,
    legend,
    panel,
    stacked_bar,
    table,
)
from stepscope.workflow.panels.ledger import most_different_ranks

MAX_RANKS = 64
"""More rows than this are no picture any more, and a table of them all is thousands of nodes before anyone asks."""


def ledger_panel(analysis: Analysis) -> Component:
    """A bar a rank that adds up to 100 %, and the same as a table."""
    shown = [heading for heading in CATEGORY_ORDER if _is_present(heading, analysis)]
    ranks = most_different_ranks(analysis, MAX_RANKS)
    return panel(
        "Where did each rank's time go?",
        [
            figure_or_table(_chart(analysis, ranks, shown), _table(analysis, ranks, shown), name="ledger"),
            *_left_out(analysis),
        ],
        name="ledger",
        note="numbers in the bars are percent of the rank's window",
        source=(
            "Ledger: every instant is booked under exactly one heading, by priority: a kernel computes > communication "
            "alone > a copy alone > nothing runs. Hidden communication runs under compute and is not in the bar."
        ),
    )


def _left_out(analysis: Analysis) -> list[Component]:
    if len(analysis.ranks) <= MAX_RANKS:
        return []
    text = f"The {MAX_RANKS} ranks that differ most from the job; all {len(analysis.ranks)} are in the output of "
    return [html.P([text, html.Code("stepscope analyze RUN --json"), "."], className="ss-note ss-left-out")]


def _chart(analysis: Analysis, ranks: list[RankLedger], shown: list[TimeCategory]) -> Component:
    rows = [_bar_row("all", analysis.ledger, milliseconds(analysis.job.step_ms), "All ranks")] if len(ranks) > 1 else []
    rows += [_bar_row(str(rank.rank), rank.ledger, milliseconds(rank.step_ms), f"Rank {rank.rank}") for rank in ranks]
    head = html.Div(
        [html.Span("rank"), html.Span(), html.Span("step")],
        className="ss-bar-row ss-bar-head",
        **attributes({"aria-hidden": "true"}),
    )
    return html.Div([legend(shown), html.Div([head, *rows], className="ss-bar-rows")])


def _bar_row(name: str, ledger: dict[TimeCategory, float], step: str, label: str) -> Component:
    return html.Div(
        [html.Span(name, className="ss-num"), stacked_bar(ledger, label=label), html.Span(step, className="ss-num")],
        className="ss-bar-row" + (" ss-bar-all" if name == "all" else ""),
    )


def _table(analysis: Analysis, ranks: list[RankLedger], shown: list[TimeCategory]) -> Component:
    columns = [
        Column("Rank"),
        Column("Window", is_number=True),
        Column("Step", is_number=True),
        *(Column(category_words(heading), is_number=True) for heading in shown),
        Column("Hidden communication", is_number=True, hint="runs under compute; not part of the 100 %"),
    ]
    rows = [_job_row(analysis, shown)] if len(ranks) > 1 else []
    rows += [_table_row(rank, shown) for rank in ranks]
    return table(columns, rows, caption="Share of each heading in each rank's window", class_name="ss-wide")


def _job_row(analysis: Analysis, shown: list[TimeCategory]) -> list[str]:
    """All ranks together; a window has no job-wide length."""
    shares = [percent(analysis.ledger.get(heading, 0.0)) for heading in shown]
    whole = sum(rank.window_ms for rank in analysis.ranks)
    hidden = sum(rank.hidden_communication * rank.window_ms for rank in analysis.ranks) / whole if whole else None
    return ["all", UNKNOWN, milliseconds(analysis.job.step_ms), *shares, percent(hidden)]


def _table_row(rank: RankLedger, shown: list[TimeCategory]) -> list[str]:
    shares = [percent(rank.ledger.get(heading, 0.0)) for heading in shown]
    return [
        str(rank.rank),
        milliseconds(rank.window_ms),
        milliseconds(rank.step_ms),
        *shares,
        percent(rank.hidden_communication),
    ]


def _is_present(heading: TimeCategory, analysis: Analysis) -> bool:
    return any(rank.ledger.get(heading, 0.0) > 0 for rank in analysis.ranks)
