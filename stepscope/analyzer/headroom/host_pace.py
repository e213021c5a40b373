"""Host pace of a rank: what its threads need to launch a step's work, without waiting for the device or for data."""

from __future__ import annotations

import numpy as np

from stepscope.analyzer.intervals import covered_time, join, union
from stepscope.analyzer.ledger.activities import Activities
from stepscope.analyzer.ledger.host_spans import HostSpans
from stepscope.analyzer.ledger.steps import HostSteps
from stepscope.trace.columns import NONE

_LONG_LAUNCH = 20.0
"""Ratio to the usual launch from which on one waited for room in the launch queue."""


def host_pace_ns(activities: Activities, steps: HostSteps, spans: HostSpans) -> float | None:
    """Median over a rank's profiled steps; None without steps.

    Args:
        spans: of the thread of the training loop.
    """
    if not len(steps):
        return None
    linked = activities.launch_ns != NONE
    start, end = activities.launch_ns[linked], activities.launch_end_ns[linked]
    length = end - start
    is_long = length > _LONG_LAUNCH * max(float(np.median(length)) if len(length) else 0.0, 1.0)
    waits = join(spans.blocked, union(start[is_long], end[is_long]), *spans.annotated.values())
    waited = covered_time(steps.start_ns, steps.end_ns, waits)
    return float(np.median(steps.end_ns - steps.start_ns - waited))
