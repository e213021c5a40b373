"""Is the device work that a trace's launches asked for there? The profiler can lose some of it."""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt

from stepscope.analyzer.ledger.activities import Activities
from stepscope.trace.columns import Category, TraceColumns

_ASKS_FOR_WORK = re.compile(
    r"^(cuda|hip|cu)(LaunchKernel|LaunchCooperativeKernel|Memcpy\w*Async|Memset\w*Async|GraphLaunch)"
)


def lost_launches(trace: TraceColumns, activities: Activities) -> float:
    """Share of the calls that ask for device work and have none in the trace; 0 without such calls."""
    _, lost = _asking_calls(trace, activities)
    return float(lost.mean()) if len(lost) else 0.0


def lost_at_start(trace: TraceColumns, activities: Activities) -> int:
    """How many calls lost their work before the first that did not: the profiler was not recording the device yet."""
    calls, lost = _asking_calls(trace, activities)
    if not len(lost) or lost.all():
        return 0
    first_kept = trace.start_ns[calls[~lost]].min()
    return int(np.count_nonzero(trace.start_ns[calls[lost]] < first_kept))


def _asking_calls(trace: TraceColumns, activities: Activities) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.bool_]]:
    calls = trace.rows_of(Category.RUNTIME)
    calls = calls[trace.named(calls, _ASKS_FOR_WORK.match) & (trace.correlation[calls] > 0)]
    return calls, ~np.isin(trace.correlation[calls], trace.correlation[activities.row])
