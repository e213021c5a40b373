"""From what age is an open step worth a look? By what the steps before it took: for training as for the agent."""

from __future__ import annotations

from collections.abc import Iterable

_LEAST_SECONDS = 12.0
"""Nothing is alarmed by a look: it leaves time to judge the job and to say so within 30 s of a stop (docs/hang.md)."""

_TIMES_MEDIAN, _TIMES_USUAL_LONGEST = 4.0, 2.0
_USUAL = 0.95
"""One step in twenty may hold a checkpoint, and is no measure of the others."""


def worth_a_look_seconds(steps: Iterable[float]) -> float:
    """That age, seconds.

    Args:
        steps: seconds that the last ones took, at least one, in any order.
    """
    ordered = sorted(steps)
    median, usual = ordered[len(ordered) // 2], ordered[int(_USUAL * (len(ordered) - 1))]
    return max(_LEAST_SECONDS, _TIMES_MEDIAN * median, _TIMES_USUAL_LONGEST * usual)
