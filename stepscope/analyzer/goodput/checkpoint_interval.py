"""How often to write a checkpoint: Daly's optimum from the cost of one and the rate of failures.

J. T. Daly, A higher order estimate of the optimum checkpoint interval for restart dumps (2006), after J. W. Young.
Of few failures the rate is only known within the bounds of a Poisson count (F. Garwood, 1936).
"""

from __future__ import annotations

import math

from stepscope.core.documents.goodput import CheckpointAdvice

_TAIL = 0.05
"""On either side: the interval holds the true rate in 90% of jobs."""


def checkpoint_advice(
    num_failures: int, working_seconds: float, cost_seconds: float | None, step_seconds: float | None
) -> CheckpointAdvice:
    """Advice on the interval between checkpoints.

    Args:
        working_seconds: in which the failures happened.
        cost_seconds: of one checkpoint; None where it is not known.
        step_seconds: mean of a productive step; None where unknown.
    """
    between = working_seconds / num_failures if num_failures and working_seconds > 0 else None
    if cost_seconds is None or cost_seconds <= 0 or working_seconds <= 0:
        return CheckpointAdvice(num_failures, between, None, None, None, None)
    fewest, most = poisson_bounds(num_failures)
    seconds = None if between is None else optimum_seconds(cost_seconds, between)
    return CheckpointAdvice(
        num_failures=num_failures,
        seconds_between_failures=between,
        seconds=seconds,
        steps=None if seconds is None or not step_seconds else max(round(seconds / step_seconds), 1),
        low_seconds=optimum_seconds(cost_seconds, working_seconds / most),
        high_seconds=optimum_seconds(cost_seconds, working_seconds / fewest) if fewest else None,
    )


def optimum_seconds(cost_seconds: float, seconds_between_failures: float) -> float:
    """Training time between two checkpoints with the least loss to both checkpoints and repeated work."""
    if cost_seconds >= 2.0 * seconds_between_failures:
        return seconds_between_failures
    ratio = cost_seconds / (2.0 * seconds_between_failures)
    young = math.sqrt(2.0 * cost_seconds * seconds_between_failures)
    return young * (1.0 + math.sqrt(ratio) / 3.0 + ratio / 9.0) - cost_seconds


def poisson_bounds(number: int) -> tuple[float, float]:
    """Bounds of the mean of a Poisson count of which this many were seen; the lower is 0 for none."""
    low = 0.0 if number == 0 else _mean_with(number - 1, 1.0 - _TAIL)
    return low, _mean_with(number, _TAIL)


def _mean_with(number: int, probability: float) -> float:
    """The mean at which at most `number` are seen with this probability."""
    low, high = 0.0, number + 10.0 * math.sqrt(number + 1.0) + 10.0
    for _ in range(100):
        middle = (low + high) / 2.0
        low, high = (middle, high) if _at_most(number, middle) > probability else (low, middle)
    return (low + high) / 2.0


def _at_most(number: int, mean: float) -> float:
    """Probability of at most `number` events."""
    if mean <= 0:
        return 1.0
    logs = [k * math.log(mean) - mean - math.lgamma(k + 1) for k in range(number + 1)]
    return min(sum(math.exp(log) for log in logs), 1.0)
