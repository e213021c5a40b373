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

LONG_WAIT_NS = 1_000_000
"""A batch that is ready is handed over in well under a millisecond (measured: 0.06 to 0.15 ms)."""

LONG_WAIT_SHARE = 0.25
"""And a wait counts as long only from this share of the longest tenth's on: small change is no burst."""

FEWEST_BURSTS = 3
"""Two bursts have one distance, which says nothing about a period."""

MOSTLY = 0.75
"""Of the distances between bursts this share must agree (to one batch) for a period."""


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
    if not len(waits_ns):
        return [Reason.STARVED], []
    long = waits_ns >= max(LONG_WAIT_NS, LONG_WAIT_SHARE * float(np.quantile(waits_ns, 0.9, method="higher")))
    share = Evidence("share_of_batches_waited_for", float(long.mean()), "ratio", 0.5, ranks=[rank])
    bursts = np.flatnonzero(long[1:] & ~long[:-1]) + 1
    if long.mean() > 0.5 or len(bursts) + bool(long[0]) < FEWEST_BURSTS:
        return [Reason.STARVED], [share]
    distances = np.diff(np.concatenate(([0], bursts)) if long[0] else bursts)
    period = float(np.median(distances))
    if np.mean(np.abs(distances - period) <= 1) < MOSTLY:
        return [Reason.BURSTY], [share]
    return [Reason.BURSTY], [share, Evidence("period_of_waits", period, "batches", ranks=[rank])]
