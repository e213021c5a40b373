"""Panel of the time breakdown by rank and by step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from stepscope.core.documents.analysis import Analysis, Ledger, RankLedger, StepLedger
from stepscope.core.text.numbers import milliseconds
from stepscope.core.vocabulary.categories import CATEGORY_ORDER, TimeCategory
from stepscope.workflow.panels.elements import Markup, join, legend, more, panel, stacked_bar, tag

MOST_RANKS = 64
MOST_STEPS = 40


def ledger(analysis: Analysis) -> Markup:
    """A bar a rank and a bar a step, each adding up to 100 %."""
    shown = [h for h in CATEGORY_ORDER if any(rank.ledger.get(h, 0.0) > 0 for rank in analysis.ranks)]
    ranks = most_different_ranks(analysis, MOST_RANKS)
    rows = [_row("all", analysis.ledger, milliseconds(analysis.job.step_ms), "All ranks")] if len(ranks) > 1 else []
    rows += [_row(str(r.rank), r.ledger, milliseconds(r.step_ms), f"Rank {r.rank}") for r in ranks]
    left_out = len(analysis.ranks) - len(ranks)
    return panel(
        "Where did the time go?",
        legend(shown),
        tag("h3", "By rank"),
        tag("div", _head("rank", "step"), *rows, class_="bars"),
        more(left_out, "ranks, less different from the job,"),
        _by_step(analysis),
        key="ledger",
        note="Every instant of every rank's window stands under exactly one heading; numbers are percent.",
    )


def _by_step(analysis: Analysis) -> Markup | None:
    by_index: dict[int, list[StepLedger]] = defaultdict(list)
    for rank in analysis.ranks:
        for step in rank.steps:
            by_index[step.index].append(step)
    if len(by_index) < 2:
        return None
    steps = [(index, _mean_ms(by_index[index]), _together(by_index[index])) for index in sorted(by_index)[:MOST_STEPS]]
    longest = max(ms for _, ms, _ in steps) or 1.0
    rows = [_row(str(index), part, milliseconds(ms), f"Step {index}", scale=ms / longest) for index, ms, part in steps]
    note = "Mean over ranks, lengths to scale. The last step ends with the trace, not with the next step's beginning."
    return join(
        tag("h3", "By step"),
        tag("p", note, class_="note"),
        tag("div", _head("step", "length"), *rows, class_="bars"),
        more(len(by_index) - len(steps), "steps"),
        _slowest_steps(analysis.ranks, sorted(by_index)[:MOST_STEPS]),
    )


def _slowest_steps(ranks: Sequence[RankLedger], indices: list[int]) -> Markup | None:
    """Each step of the rank that is slowest in it, where ranks differ."""
    if len(ranks) < 2:
        return None
    rows = []
    for index in indices:
        ms, rank = max(
            ((step.ms, rank.rank) for rank in ranks for step in rank.steps if step.index == index),
            key=lambda pair: pair[0],
        )
        rows.append(f"step {index}: rank {rank} {milliseconds(ms)}")
    return tag("details", tag("summary", "The slowest rank of each step"), tag("p", "; ".join(rows), class_="note"))


def _mean_ms(steps: Sequence[StepLedger]) -> float:
    return sum(step.ms for step in steps) / len(steps)


def _together(steps: Sequence[StepLedger]) -> dict[TimeCategory, float]:
    whole = sum(step.ms for step in steps) or 1.0
    return {h: sum(step.ledger.get(h, 0.0) * step.ms for step in steps) / whole for h in CATEGORY_ORDER}


def _row(name: str, part: Ledger, figure: str, label: str, *, scale: float = 1.0) -> Markup:
    bar = stacked_bar(part, label=label, scale=scale)
    return tag("div", tag("span", name, class_="num"), bar, tag("span", figure, class_="num"))


def _head(name: str, figure: str) -> Markup:
    return tag("div", tag("span", name, class_="num"), tag("span"), tag("span", figure, class_="num"), class_="head")


def most_different_ranks(analysis: Analysis, most: int) -> list[RankLedger]:
    """Up to `most` ranks, in order: all of them, else those whose ledgers differ most from the job's."""
    if len(analysis.ranks) <= most:
        return analysis.ranks

    def distance(rank: RankLedger) -> float:
        return sum(abs(rank.ledger.get(heading, 0.0) - share) for heading, share in analysis.ledger.items())

    return sorted(sorted(analysis.ranks, key=distance, reverse=True)[:most], key=lambda rank: rank.rank)
