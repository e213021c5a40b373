"""Readable results of the analyzer for traces written by hand: microseconds, causes and categories by name."""

from __future__ import annotations

from stepscope.analyzer.job import analyse_job
from stepscope.analyzer.ledger.segments import CAUSE_ORDER, TO_ATTRIBUTE
from stepscope.analyzer.rank import view_rank
from stepscope.analyzer.rank_view import RankView
from stepscope.analyzer.summaries import JobContext
from stepscope.core.documents.analysis import Analysis, RootCause
from stepscope.core.vocabulary import CATEGORY_ORDER, COMPUTE_CATEGORIES, Cause, TimeCategory
from tests.analyzer.build import NS_PER_US, TraceBuilder

COMPUTE = "compute"
"""Stands for all compute categories together: which one is the roofline's business."""


def view_of(trace: TraceBuilder, *, whole_file: bool = False) -> RankView:
    return view_rank(trace.build(), trace.rank or 0, whole_file=whole_file)


def ledger_us(view: RankView) -> dict[str, float]:
    """Microseconds by category; categories without time are left out."""
    time: dict[str, float] = {}
    for code, duration in zip(view.segments.category.tolist(), view.segments.duration_ns.tolist(), strict=True):
        category = CATEGORY_ORDER[code]
        name = COMPUTE if category in COMPUTE_CATEGORIES else str(category)
        time[name] = time.get(name, 0.0) + duration / NS_PER_US
    return time


def attributed_us(view: RankView, category: TimeCategory) -> dict[str, float]:
    """Microseconds of one category by the cause they are attributed to."""
    time: dict[str, float] = {}
    segments = view.segments
    rows = zip(segments.category.tolist(), segments.cause.tolist(), segments.duration_ns.tolist(), strict=True)
    for code, cause_code, duration in rows:
        if CATEGORY_ORDER[code] is category:
            cause = "to attribute" if cause_code == TO_ATTRIBUTE else str(CAUSE_ORDER[cause_code])
            time[cause] = time.get(cause, 0.0) + duration / NS_PER_US
    return time


def analyse(*traces: TraceBuilder, whole_file: bool = False, context: JobContext | None = None) -> Analysis:
    """The whole answer for a job of handmade ranks; checks what must hold for every answer."""
    views = [view_of(trace, whole_file=whole_file) for trace in traces]
    analysis, booked = analyse_job(views, context or JobContext())
    assert abs(sum(analysis.ledger.values()) - 1.0) < 1e-9
    assert abs(sum(row.fraction for row in analysis.root_causes) - 1.0) < 1e-9
    for rank, view in zip(analysis.ranks, booked, strict=True):
        assert abs(sum(rank.ledger.values()) - 1.0) < 1e-9
        assert all(abs(sum(step.ledger.values()) - 1.0) < 1e-9 for step in rank.steps)
        assert int(view.segments.duration_ns.sum()) == view.window_ns
        assert (view.segments.start_ns[1:] == view.segments.end_ns[:-1]).all()
    assert 0.0 <= analysis.verdict.confidence <= 1.0
    costs, ledger = analysis.communication_by_dimension, analysis.ledger
    assert abs(sum(c.transfer for c in costs) - ledger[TimeCategory.COMMUNICATION]) < 1e-9
    assert abs(sum(c.wait for c in costs) - ledger[TimeCategory.WAIT] - ledger[TimeCategory.BUBBLE]) < 1e-9
    assert abs(sum(c.unsplit for c in costs) - ledger[TimeCategory.COMMUNICATION_UNSPLIT]) < 1e-9
    return analysis


def rank_us(analysis: Analysis, rank: int, category: TimeCategory) -> float:
    """Microseconds that a rank's window holds under a category."""
    found = next(row for row in analysis.ranks if row.rank == rank)
    return round(found.ledger[category] * found.window_ms * 1e3, 3)


def cause_us(analysis: Analysis, cause: Cause) -> float:
    """Microseconds of all windows together that a root cause costs."""
    total = sum(rank.window_ms for rank in analysis.ranks) * 1e3
    return round(sum(row.fraction for row in analysis.root_causes if row.cause is cause) * total, 3)


def row_of(analysis: Analysis, cause: Cause) -> RootCause:
    return next(row for row in analysis.root_causes if row.cause is cause)


def notice_codes(analysis: Analysis) -> list[str]:
    return [notice.code for notice in analysis.warnings]
