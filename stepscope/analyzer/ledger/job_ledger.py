"""Time breakdown of a job and of its ranks, as the analysis shows them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from stepscope.analyzer.ledger.device_ledger import fractions
from stepscope.analyzer.ledger.segments import Segments
from stepscope.analyzer.rank_view import RankView
from stepscope.core.documents import analysis
from stepscope.core.vocabulary import CATEGORY_ORDER


def job_ledger(views: Mapping[int, RankView]) -> analysis.Ledger:
    """Time breakdown of a job: share of each category in the sum of all ranks' windows."""
    total = sum(view.window_ns for view in views.values())
    parts = [(fractions(view.segments, view.window_ns), view.window_ns / total) for view in views.values()]
    return {category: sum(ledger[category] * weight for ledger, weight in parts) for category in CATEGORY_ORDER}


def rank_ledger(view: RankView) -> analysis.RankLedger:
    """Time breakdown of a rank: shares by category, of its window and of each step."""
    bounds = view.step_bounds_ns
    steps = []
    for index, start, end in zip(view.window.index.tolist(), bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        part = _cut(view.segments, start, end)
        steps.append(analysis.StepLedger(index, (end - start) / 1e6, fractions(part, end - start)))
    return analysis.RankLedger(
        rank=view.rank,
        window_ms=view.window_ns / 1e6,
        step_ms=float(np.mean(view.window.whole_step_ns)) / 1e6,
        ledger=fractions(view.segments, view.window_ns),
        hidden_communication=view.hidden_communication_ns / view.window_ns,
        steps=steps,
        span_ms=None if view.facts.span_ns is None else view.facts.span_ns / 1e6,
        rank_source=view.header.rank_source,
        file=view.header.file,
        place=view.header.place,
    )


def _cut(segments: Segments, start: int, end: int) -> Segments:
    first, last = np.searchsorted(segments.end_ns, start, side="right"), np.searchsorted(segments.start_ns, end)
    inside = slice(first, last)
    return Segments(
        np.maximum(segments.start_ns[inside], start),
        np.minimum(segments.end_ns[inside], end),
        segments.category[inside],
        segments.cause[inside],
    )
