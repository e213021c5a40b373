"""Did a CUDA graph run longer than the kernels that the trace has of it?

Of a graph with a conditional `while` node CUPTI records the first iteration only (pytorch/kineto#1062). The rest shows
as a host that waits for a device on which nothing seems to run.
"""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt

from stepscope.analyzer.ledger.activities import Activities
from stepscope.trace.columns import Category, TraceColumns

_WAITS_FOR_DEVICE = re.compile(r"^(cuda|hip|cu)(Device|Stream|Event|Ctx)Synchronize")
LEAST_SILENCE_NS = 1_000_000
"""A shorter silence may be the return of the call, or a clock."""
TIMES_AS_LONG = 10
"""The silence is so many times longer than what was seen of the graph."""


def has_untraced_iterations(trace: TraceColumns, activities: Activities, graph_launches: npt.NDArray[np.intp]) -> bool:
    """Whether a call that waits for the device outlasts all recorded work by far, right after a graph's kernels.

    Args:
        trace: the rank's events.
        activities: its device activities, by start.
        graph_launches: rows of the calls that launch graphs.
    """
    calls = trace.rows_named(_WAITS_FOR_DEVICE.match, Category.RUNTIME)
    calls = calls[trace.end_ns[calls] - trace.start_ns[calls] >= LEAST_SILENCE_NS]
    if not len(graph_launches) or not len(calls) or not len(activities):
        return False
    ended = np.maximum.accumulate(activities.end_ns)
    before = np.searchsorted(activities.start_ns, trace.end_ns[calls]) - 1  # the last to start while the call waits
    calls, before = calls[before >= 0], before[before >= 0]
    silence = trace.end_ns[calls] - np.maximum(ended[before], trace.start_ns[calls])
    ids = trace.correlation[activities.row]
    for place in before[silence >= LEAST_SILENCE_NS].tolist():
        graph = ids == ids[place]
        is_graph = ids[place] > 0 and bool(np.isin(ids[place], trace.correlation[graph_launches]))
        seen = int(activities.end_ns[graph].max() - activities.start_ns[graph].min())
        if is_graph and silence[before == place].max() > TIMES_AS_LONG * seen:
            return True
    return False
