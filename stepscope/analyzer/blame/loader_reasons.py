"""The step waited for data: always, or in bursts, every how many batches? And who makes the batches?

A loader with w workers that is too slow, but not by much, delivers w batches quickly and then stalls: waits come with
period w (a real report: "freezes every num_workers iterations"). A loader that is far too slow makes every step wait.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from stepscope.analyzer.rank_view import RankView
from stepscope.core.analysis import Evidence
from stepscope.core.causes import Reason

FEWEST_BATCHES = 12
"""Fewer show no rhythm: a trace of three steps does not, a run that keeps its steps does."""

STEADY = 0.5
"""Waits whose standard deviation is under this share of their mean are the same at every batch."""

RHYTHM = 0.5
"""Least correlation of the waits with themselves one period later; chance stays under 0.35 on 60 batches."""

FEWEST_PERIODS = 3


def why_data_is_late(
    late: Sequence[RankView], waits_by_rank: Mapping[int, Sequence[int]]
) -> tuple[list[Reason], list[Evidence]]:
    """Reasons by the ranks that waited for their own loader.

    Args:
        late: their views, worst first.
        waits_by_rank: waits of each step as the run kept them (hundreds of steps); else the trace's few must do.
    """
    if not late:
        return [Reason.STARVED], []
    worst = late[0]
    waits = np.array(waits_by_rank.get(worst.rank, worst.host_work.load_waits_ns), np.int64)
    reasons, evidence = _rhythm(waits, worst.rank)
    if any(view.host_work.loads_in_process for view in late):
        reasons.append(Reason.NO_WORKERS)
    return reasons, evidence


def _rhythm(waits_ns: npt.NDArray[np.int64], rank: int) -> tuple[list[Reason], list[Evidence]]:
    if len(waits_ns) < FEWEST_BATCHES or not waits_ns.any():
        return [Reason.STARVED], []
    # one endless wait (an epoch's end, a cold cache) would drown the rest
    waits = np.minimum(waits_ns, np.quantile(waits_ns, 0.95, method="higher")).astype(np.float64)
    spread = float(waits.std() / waits.mean())
    uneven = Evidence("spread_of_waits", spread, "of the mean wait", STEADY, ranks=[rank])
    if spread < STEADY:
        return [Reason.STARVED], [uneven]
    period, correlation = _period(waits - waits.mean())
    if correlation < RHYTHM:
        return [Reason.BURSTY], [uneven]
    return [Reason.BURSTY], [uneven, Evidence("period_of_waits", period, "batches", ranks=[rank])]


def _period(deviation: npt.NDArray[np.float64]) -> tuple[int, float]:
    """The shortest lag at which the series repeats itself nearly as well as at any other, and how well."""
    size = len(deviation)
    lags = np.arange(2, size // FEWEST_PERIODS + 1)
    correlations = np.array([np.corrcoef(deviation[lag:], deviation[:-lag])[0, 1] for lag in lags])
    correlations = np.nan_to_num(correlations, nan=-1.0)
    best = float(correlations.max())
    return int(lags[np.argmax(correlations >= 0.9 * best)]), best
