"""Where did each rank's time go?"""

from __future__ import annotations

from dash import html
from dash.development.base_component import Component

from stepscope.core.analysis import Analysis, RankLedger
from stepscope.core.headings import Heading
from stepscope.core.timeline import HEADING_ORDER
from stepscope.dashboard.components.attributes import attributes
from stepscope.dashboard.components.bars import legend, stacked_bar
from stepscope.dashboard.components.panel import figure_or_table, panel
from stepscope.dashboard.components.table import Column, table
from stepscope.dashboard.words import heading_words, milliseconds, percent

MAX_BARS = 64
"""More rows than this are no picture any more; the table has them all."""


def ledger_panel(analysis: Analysis) -> Component:
    """A bar a rank that adds up to 100 %, and the same as a table."""
    shown = [heading for heading in HEADING_ORDER if _is_present(heading, analysis)]
    return panel(
        "Where did each rank's time go?",
        [figure_or_table(_chart(analysis, shown), _table(analysis, shown), name="ledger")],
        name="ledger",
        note="numbers in the bars are percent of the rank's window",
        source=(
            "Ledger: every instant is booked under exactly one heading, by priority: a kernel computes > communication "
            "alone > a copy alone > nothing runs. Hidden communication runs under compute and is not in the bar."
        ),
    )


def _chart(analysis: Analysis, shown: list[Heading]) -> Component:
    ranks = analysis.ranks
    left_out = []
    if len(ranks) > MAX_BARS:
        ranks = _most_different(analysis)
        text = f"The {MAX_BARS} ranks that differ most from the job are drawn; the table has all {len(analysis.ranks)}."
        left_out = [html.P(text, className="ss-note")]
    rows = [_bar_row("all", analysis.ledger, milliseconds(analysis.job.step_ms), "All ranks")] if len(ranks) > 1 else []
    rows += [_bar_row(str(rank.rank), rank.ledger, milliseconds(rank.step_ms), f"Rank {rank.rank}") for rank in ranks]
    head = html.Div(
        [html.Span("rank"), html.Span(), html.Span("step")],
        className="ss-bar-row ss-bar-head",
        **attributes({"aria-hidden": "true"}),
    )
    return html.Div([legend(shown), html.Div([head, *rows], className="ss-bar-rows"), *left_out])


def _bar_row(name: str, ledger: dict[Heading, float], step: str, label: str) -> Component:
    return html.Div(
        [html.Span(name, className="ss-num"), stacked_bar(ledger, label=label), html.Span(step, className="ss-num")],
        className="ss-bar-row" + (" ss-bar-all" if name == "all" else ""),
    )


def _table(analysis: Analysis, shown: list[Heading]) -> Component:
    columns = [
        Column("Rank"),
        Column("Window", is_number=True),
        Column("Step", is_number=True),
        *(Column(heading_words(heading), is_number=True) for heading in shown),
        Column("Hidden communication", is_number=True, hint="runs under compute; not part of the 100 %"),
    ]
    rows = [_table_row(rank, shown) for rank in analysis.ranks]
    return table(columns, rows, caption="Share of each heading in each rank's window", class_name="ss-wide")


def _table_row(rank: RankLedger, shown: list[Heading]) -> list[str]:
    shares = [percent(rank.ledger.get(heading, 0.0)) for heading in shown]
    return [
        str(rank.rank),
        milliseconds(rank.window_ms),
        milliseconds(rank.step_ms),
        *shares,
        percent(rank.hidden_communication),
    ]


def _is_present(heading: Heading, analysis: Analysis) -> bool:
    return any(rank.ledger.get(heading, 0.0) > 0 for rank in analysis.ranks)


def _most_different(analysis: Analysis) -> list[RankLedger]:
    def distance(rank: RankLedger) -> float:
        return sum(abs(rank.ledger.get(heading, 0.0) - share) for heading, share in analysis.ledger.items())

    return sorted(sorted(analysis.ranks, key=distance, reverse=True)[:MAX_BARS], key=lambda rank: rank.rank)
