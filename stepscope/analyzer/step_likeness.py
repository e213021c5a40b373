"""Are the captured steps alike? Only then does another step's length tell what capturing adds.

A checkpoint every third step, or loader workers that deliver at once, make some steps many times as long as others: a
median of other steps is then of another kind, and the difference is not the profiler's.
"""

from __future__ import annotations

from collections.abc import Mapping

from stepscope.analyzer.rank_view import RankView

UNLIKE_FROM = 2.0
"""The longest whole step of a rank over its shortest. Recorded: up to 1.4 where the fault strikes every step, 7 to 50
where it strikes some."""


def unlike_steps_ms(views: Mapping[int, RankView]) -> tuple[float, float] | None:
    """Shortest and longest whole step of the rank whose steps differ most, in ms; None where all ranks' are alike."""
    lengths = [view.window.whole_step_ns for view in views.values()]
    spans = [(float(of_rank.min()), float(of_rank.max())) for of_rank in lengths if len(of_rank)]
    shortest, longest = max(spans, key=lambda span: span[1] / max(span[0], 1.0), default=(0.0, 0.0))
    return (shortest / 1e6, longest / 1e6) if longest > UNLIKE_FROM * shortest else None


def comparable_step_ms(views: Mapping[int, RankView], unprofiled_step_ms: float | None) -> float | None:
    """The unprofiled step, where captured ones can be compared with it."""
    return unprofiled_step_ms if unlike_steps_ms(views) is None else None
