"""Is the device work that a trace's launches asked for there? The profiler can lose some of it."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from stepscope.analyzer.ledger.activities import Activities
from stepscope.analyzer.membership import are_among
from stepscope.trace.columns import Category, TraceColumns

_ASKS_FOR_WORK = re.compile(
    r"^(cuda|hip|cu)(LaunchKernel|LaunchCooperativeKernel|Memcpy\w*Async|Memset\w*Async|GraphLaunch)"
)


@dataclass(frozen=True, slots=True)
class Losses:
    """Calls that asked for device work and have none in the trace.

    Attributes:
        share: of all calls that ask for some; 0 without such calls.
        num_at_start: those before the first whose work is there: the profiler was not recording the device yet.
    """

    share: float
    num_at_start: int


def lost_launches(trace: TraceColumns, activities: Activities) -> Losses:
    """What the trace lacks of the work that its calls asked for."""
    calls = trace.rows_named(_ASKS_FOR_WORK.match, Category.RUNTIME)
    calls = calls[trace.correlation[calls] > 0]
    if not len(calls):
        return Losses(0.0, 0)
    kept = are_among(trace.correlation[calls], trace.correlation[activities.row])
    share = 1.0 - float(kept.mean())
    if not kept.any():
        return Losses(share, 0)
    first_kept = trace.start_ns[calls[kept]].min()
    return Losses(share, int(np.count_nonzero(trace.start_ns[calls[~kept]] < first_kept)))
