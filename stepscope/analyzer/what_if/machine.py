"""What do a launch, a succession on a stream and a return from waiting cost on this machine? Constants, not lags.

One number each for the whole rank: single gaps are never copied.
"""

from __future__ import annotations

import numpy as np

from stepscope.analyzer.intervals import Nanoseconds
from stepscope.analyzer.ledger.activities import Activities, Work
from stepscope.analyzer.what_if.observed_calls import ObservedCalls
from stepscope.analyzer.what_if.rank_graph import Edges
from stepscope.trace.columns import NONE

QUEUED_FOR_NS = 20_000
"""Launched this long before its stream was free: the gap before it is the device's own."""

LONGEST_OWN_GAP_NS = 10_000
"""A longer gap on a stream waits for something."""

USUAL_GAP_NS = 1_500
USUAL_LAUNCH_NS = 1_000
USUAL_EVENT_NS = 2_000
"""Where a trace has no sample; medians of the recorded H100 runs."""

USUAL_SYNC_NS = 5_000
"""Own cost of a synchronize call, and from the end of the work to its return, where a trace has no sample."""


def stream_gaps(activities: Activities, edges: Edges) -> Nanoseconds:
    """By edge: the mean gap of such a succession (kernel after copy, ...) among activities that were long queued."""
    before, after = edges.source, edges.target
    gap = activities.start_ns[after] - activities.end_ns[before]
    free = activities.end_ns[before] - QUEUED_FOR_NS
    launched = activities.launch_ns[after]
    sample = ((launched == NONE) | (launched < free)) & (gap >= 0) & (gap < LONGEST_OWN_GAP_NS)
    kind = activities.work[before].astype(np.int64) * len(Work) + activities.work[after]
    usual = np.full(len(Work) ** 2, USUAL_GAP_NS, np.int64)
    count = np.bincount(kind[sample], minlength=len(usual))
    total = np.bincount(kind[sample], weights=gap[sample], minlength=len(usual))
    usual[count > 0] = (total[count > 0] / count[count > 0]).astype(np.int64)
    result: Nanoseconds = usual[kind]
    return result


def launch_latency(activities: Activities, calls: ObservedCalls, edges: Edges, events: Edges) -> int:
    """From a call's return to the start of what it launched on an idle stream, waiting for no other: the median."""
    free = np.zeros(len(activities), np.int64)
    free[edges.target] = activities.end_ns[edges.source]
    launches = np.flatnonzero(
        (calls.first_activity != NONE) & ~np.isin(np.arange(len(calls)), _followed_by_return(calls))
    )
    first = calls.first_activity[launches]
    idle = (free[first] < calls.start_ns[launches]) & (activities.work[first] == Work.COMPUTE)
    idle &= ~np.isin(first, events.target)
    latency = activities.start_ns[first][idle] - calls.end_ns[launches][idle]
    return int(np.median(latency)) if len(latency) else USUAL_LAUNCH_NS


def _followed_by_return(calls: ObservedCalls) -> Nanoseconds:
    """Launches of copies that block: their end is a cut, no return."""
    returns = np.flatnonzero(calls.waits_for != NONE)
    copies = calls.waits_for[returns]
    launch_of = np.full(int(calls.first_activity.max(initial=0)) + 1, NONE, np.int64)
    launches = np.flatnonzero(calls.first_activity != NONE)
    launch_of[calls.first_activity[launches]] = launches
    return launch_of[copies]


def event_latency(activities: Activities, edges: Edges) -> int:
    """From an activity's end to the start of one on another stream that waited for it: the median of short ones."""
    gap = activities.start_ns[edges.target] - activities.end_ns[edges.source]
    gap = gap[gap < LONGEST_OWN_GAP_NS]
    return int(np.median(gap)) if len(gap) else USUAL_EVENT_NS


def return_latency(activities: Activities, calls: ObservedCalls, edges: Edges) -> Nanoseconds:
    """By edge: from the end of the work to the return. After a blocking copy the host's own copying is part of it."""
    late = calls.end_ns[edges.target] - activities.end_ns[edges.source]
    is_copy = calls.waits_for[edges.target] == edges.source
    waited = ~is_copy & (activities.end_ns[edges.source] > calls.start_ns[edges.target])
    least = np.full(len(calls), np.iinfo(np.int64).max)  # of several streams the last to end is the one waited for
    np.minimum.at(least, edges.target[waited], late[waited])
    sample = least[least < np.iinfo(np.int64).max]
    usual = int(np.median(sample)) if len(sample) else USUAL_SYNC_NS
    return np.where(is_copy, late, usual)


def own_time(calls: ObservedCalls, held_up: Nanoseconds | np.ndarray, blocked: Nanoseconds | np.ndarray) -> Nanoseconds:
    """What each call took of the host itself.

    A launch held up by back-pressure takes what launches usually take; a call that waited for device work a little;
    a synchronize call that no device work explains, all of its time.
    """
    own = calls.end_ns - calls.start_ns
    launches = calls.first_activity != NONE
    free = launches & ~held_up
    usual = int(np.median(own[free])) if free.any() else USUAL_SYNC_NS
    own = np.where(launches & held_up, np.minimum(own, usual), own)
    own = np.where(calls.blocks & blocked, np.minimum(own, USUAL_SYNC_NS), own)
    result: Nanoseconds = np.where(calls.waits_for != NONE, 0, own)
    return result
