"""Is the device work that a trace's launches asked for there? The profiler can lose some of it."""

from __future__ import annotations

import re

import numpy as np

from stepscope.analyzer.ledger.activities import Activities
from stepscope.trace.columns import Category, TraceColumns

_ASKS_FOR_WORK = re.compile(
    r"^(cuda|hip|cu)(LaunchKernel|LaunchCooperativeKernel|Memcpy\w*Async|Memset\w*Async|GraphLaunch)"
)


def lost_launches(trace: TraceColumns, activities: Activities) -> float:
    """Share of the calls that ask for device work and have none in the trace; 0 without such calls."""
    calls = trace.rows_of(Category.RUNTIME)
    calls = calls[trace.named(calls, _ASKS_FOR_WORK.match) & (trace.correlation[calls] > 0)]
    lost = ~np.isin(trace.correlation[calls], trace.correlation[activities.row])
    return float(lost.mean()) if len(lost) else 0.0
