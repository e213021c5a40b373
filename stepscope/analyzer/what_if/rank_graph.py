"""Dependency graph of one rank: host calls, device activities, and what waits for what.

Weights are what the work itself takes (host work between calls, activities, transfers) and a handful of constants of
the machine. When something ran is kept to order the graph and to measure the replay against, never as a weight.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stepscope.analyzer.intervals import Nanoseconds
from stepscope.core.vocabulary.causes import Cause
from stepscope.trace.columns import IntColumn

HOST_WORK: tuple[Cause, ...] = (
    Cause.HOST_BOUND,
    Cause.PROFILER,
    Cause.CHECKPOINT,
    Cause.DATA_LOADING,
    Cause.SYNCHRONIZATION,
)
"""What host time can be, in the order of the columns of `HostCalls.work_ns`."""

HOST_COLUMN = {cause: column for column, cause in enumerate(HOST_WORK)}


@dataclass(frozen=True, slots=True)
class Edges:
    """`target[i]` waits for `source[i]`; indices into the arrays that the owner names."""

    source: IntColumn
    target: IntColumn

    def __len__(self) -> int:
        return len(self.source)


@dataclass(frozen=True, slots=True)
class HostCalls:
    """The calls that launch work or wait for it, by start.

    Attributes:
        key_ns: when each returned (no later than its activity started): orders the graph.
        work_ns: shape (calls, HOST_WORK): host time since the call it follows, with its own duration, by what it was.
        label: column of HOST_WORK that the call itself stands in.
        follows: the call whose return it follows, or NONE.
        follows_own: the previous call of its own thread where that is another one, or NONE.
        first_activity: what it launched (a graph: the first of it), or NONE.
        opens_ns: when the host began: a call that follows none follows this moment.
        is_needed: whether the host itself uses what the call waits for (without a device): no fix spares it the wait.
    """

    key_ns: Nanoseconds
    work_ns: npt.NDArray[np.int64]
    label: IntColumn
    follows: IntColumn
    follows_own: IntColumn
    first_activity: IntColumn
    opens_ns: int
    is_needed: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.key_ns)


@dataclass(frozen=True, slots=True)
class DeviceWork:
    """The device's activities, by start.

    Attributes:
        start_ns, end_ns: as measured.
        work: codes of `Work`.
        step: number of the host step it was launched in, or NONE.
        word: a number that is the same for the same kernel on every rank.
        inside: column of HOST_WORK of the span it was launched in (checkpoint, loader), or NONE.
        launched_by: its call, or NONE.
        is_history: launched before the trace began and executed first: it stays where it was measured.
        call: place in the rank's communication calls, or NONE.
    """

    start_ns: Nanoseconds
    end_ns: Nanoseconds
    work: IntColumn
    step: IntColumn
    word: IntColumn
    inside: IntColumn
    launched_by: IntColumn
    is_history: npt.NDArray[np.bool_]
    call: IntColumn

    def __len__(self) -> int:
        return len(self.start_ns)

    @property
    def duration_ns(self) -> Nanoseconds:
        return self.end_ns - self.start_ns


@dataclass(frozen=True, slots=True)
class RankGraph:
    """One rank's part of the graph.

    Attributes:
        streams: each activity with its predecessor on the stream.
        stream_gap_ns: by edge of `streams`: what this kind of succession costs on this device.
        events: waits between streams.
        blocking: activity -> the call that returns only once it has ended.
        blocking_ns: by edge of `blocking`: from the activity's end to the return.
        queue: activity -> the call that can only return once it has started (back-pressure).
        launch_ns: from a call's return to the start on an idle stream; may be slightly negative.
        boundaries: activity that begins each step of the window.
        last: activities that may end the last step.
        ends_when_asked: communications whose end says when the thread asked for them, not when they were done (gloo's
            sends and receives, where the thread did not have to wait).
    """

    host: HostCalls
    device: DeviceWork
    streams: Edges
    stream_gap_ns: Nanoseconds
    events: Edges
    event_ns: int
    blocking: Edges
    blocking_ns: Nanoseconds
    queue: Edges
    launch_ns: int
    boundaries: IntColumn
    last: IntColumn
    ends_when_asked: IntColumn
