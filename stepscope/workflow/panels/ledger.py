"""Panel of the time breakdown by rank and by step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import partial

from stepscope.core.documents.analysis import Analysis, Ledger, RankLedger, StepLedger
from stepscope.core.text.numbers import UNKNOWN, counted, milliseconds, percent
from stepscope.core.text.wording import category_words, is_on_cpu
from stepscope.core.vocabulary import CATEGORY_ORDER, TimeCategory
from stepscope.workflow.panels import elements as html

MAX_RANKS = 64
"""More rows are not a picture any more, and a table of them is thousands of nodes that few open."""
MAX_STEPS = 40


def ledger_panel(analysis: Analysis, *, with_steps: bool = False) -> html.Element:
    """Panel of the time breakdown: a bar per rank that adds up to 100%, a table, and perhaps a bar per step."""
    categories = present_categories(analysis)
    ranks = most_different_ranks(analysis, MAX_RANKS)
    bar = partial(_bar, on_cpu=is_on_cpu(analysis.job))
    job = [bar("all", analysis.ledger, milliseconds(analysis.job.step_ms), "All ranks")] if len(ranks) > 1 else []
    bars = [bar(str(r.rank), r.ledger, milliseconds(r.step_ms), f"Rank {r.rank}") for r in ranks]
    chart = [
        html.legend(categories, on_cpu=is_on_cpu(analysis.job)),
        html.tag("div", _bars_head("rank", "step"), job, bars, class_="ss-bar-rows"),
    ]
    return html.panel(
        "Where did the time of each rank go?",
        html.tabs("ledger", {"Chart": chart, "Table": _table(analysis, ranks, categories)}),
        html.more(len(analysis.ranks) - len(ranks), "ranks, less different from the job,"),
        _by_step(analysis) if with_steps else None,
        key="ledger",
        note=f"of the {counted(analysis.job.num_steps, 'profiled step')}; numbers in the bars are percent",
        source=(
            "Time breakdown of the profiled steps: every instant is attributed to exactly one category, by priority: a "
            "kernel computes > communication alone > a copy alone > nothing runs. Hidden communication runs under "
            "compute and is not in the bar."
        ),
    )


def present_categories(analysis: Analysis) -> list[TimeCategory]:
    """Time categories that a panel shows: those that take time on any rank."""
    return [c for c in CATEGORY_ORDER if any(rank.ledger.get(c, 0.0) > 0 for rank in analysis.ranks)]


def most_different_ranks(analysis: Analysis, most: int) -> list[RankLedger]:
    """Ranks that a panel shows: up to `most`, whose time breakdowns differ most from the job's."""
    if len(analysis.ranks) <= most:
        return analysis.ranks

    def distance(rank: RankLedger) -> float:
        return sum(abs(rank.ledger.get(category, 0.0) - share) for category, share in analysis.ledger.items())

    return sorted(sorted(analysis.ranks, key=distance, reverse=True)[:most], key=lambda rank: rank.rank)


def _bar(
    title: str, ledger: Ledger, figure: str, label: str, *, scale: float = 1.0, on_cpu: bool = False
) -> html.Element:
    cells = [
        html.tag("span", title, class_="ss-num"),
        html.stacked_bar(ledger, label=label, scale=scale, on_cpu=on_cpu),
        html.tag("span", figure, class_="ss-num"),
    ]
    return html.tag("div", cells, class_="ss-bar-row ss-bar-all" if title == "all" else "ss-bar-row")


def _bars_head(title: str, figure: str) -> html.Element:
    cells = [html.tag("span", title), html.tag("span"), html.tag("span", figure)]
    return html.tag("div", cells, class_="ss-bar-row ss-bar-head", aria_hidden="true")


def _table(analysis: Analysis, ranks: list[RankLedger], categories: list[TimeCategory]) -> html.Child:
    columns = [
        html.Column("Rank"),
        html.number_column("Window"),
        html.number_column("Step"),
        *(html.number_column(category_words(category, on_cpu=is_on_cpu(analysis.job))) for category in categories),
        html.number_column("Hidden communication", "runs under compute; not part of the 100%"),
    ]
    rows = [_job_row(analysis, categories)] if len(ranks) > 1 else []
    rows += [
        [
            str(rank.rank),
            milliseconds(rank.window_ms),
            milliseconds(rank.step_ms),
            *(percent(rank.ledger.get(category, 0.0)) for category in categories),
            percent(rank.hidden_communication),
        ]
        for rank in ranks
    ]
    return html.table(columns, rows, caption="Share of each category in each rank's profiled steps", class_="ss-wide")


def _job_row(analysis: Analysis, categories: list[TimeCategory]) -> list[str]:
    """All ranks together; a window has no job-wide length."""
    shares = [percent(analysis.ledger.get(category, 0.0)) for category in categories]
    windows = sum(rank.window_ms for rank in analysis.ranks)
    hidden = sum(rank.hidden_communication * rank.window_ms for rank in analysis.ranks) / windows if windows else None
    return ["all", UNKNOWN, milliseconds(analysis.job.step_ms), *shares, percent(hidden)]


def _by_step(analysis: Analysis) -> html.Child:
    by_index: dict[int, list[StepLedger]] = defaultdict(list)
    for rank in analysis.ranks:
        for step in rank.steps:
            by_index[step.index].append(step)
    if len(by_index) < 2:
        return None
    indices = sorted(by_index)[:MAX_STEPS]
    mean_ms = {index: sum(step.ms for step in by_index[index]) / len(by_index[index]) for index in indices}
    longest = max(mean_ms.values()) or 1.0
    bar = partial(_bar, on_cpu=is_on_cpu(analysis.job))
    bars = [
        bar(str(index), _mean_ledger(by_index[index]), milliseconds(ms), f"Step {index}", scale=ms / longest)
        for index, ms in mean_ms.items()
    ]
    note = "Mean over ranks, lengths to scale. The last step ends with the trace, not with the next step's beginning."
    return [
        html.tag("h3", "By step"),
        html.tag("p", note, class_="ss-note"),
        html.tag("div", _bars_head("step", "length"), bars, class_="ss-bar-rows"),
        html.more(len(by_index) - len(indices), "steps"),
        _slowest_ranks(analysis.ranks, indices),
    ]


def _mean_ledger(steps: Sequence[StepLedger]) -> Ledger:
    total_ms = sum(step.ms for step in steps) or 1.0
    return {c: sum(step.ledger.get(c, 0.0) * step.ms for step in steps) / total_ms for c in CATEGORY_ORDER}


def _slowest_ranks(ranks: Sequence[RankLedger], indices: list[int]) -> html.Element | None:
    """The slowest rank of each step, where there are several."""
    if len(ranks) < 2:
        return None
    rows = []
    for index in indices:
        lengths = [(step.ms, rank.rank) for rank in ranks for step in rank.steps if step.index == index]
        ms, rank = max(lengths, key=lambda pair: pair[0])
        rows.append(f"step {index}: rank {rank} {milliseconds(ms)}")
    return html.tag(
        "details",
        html.tag("summary", "The slowest rank of each step"),
        html.tag("p", "; ".join(rows), class_="ss-note"),
    )
