"""Dependency graph of one rank: host calls, device activities, and what each of them waits for.

Weights are the durations of the work itself (host work between calls, activities, transfers) and a few constants of
the machine, such as the launch latency. Measured start times order the graph and are compared with the replay; they
never become weights.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stepscope.analyzer.intervals import Nanoseconds
from stepscope.core.vocabulary import Cause
from stepscope.trace.columns import NONE, IntColumn, TraceColumns

HOST_WORK: tuple[Cause, ...] = (
    Cause.HOST_BOUND,
    Cause.PROFILER,
    Cause.CHECKPOINT,
    Cause.DATA_LOADING,
    Cause.SYNCHRONIZATION,
)
"""Kinds of host time, in the order of the columns of `HostCalls.work_ns`."""

HOST_COLUMN = {cause: column for column, cause in enumerate(HOST_WORK)}

Mask = npt.NDArray[np.bool_]
Counts = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Edges:
    """Edges of a graph: `target[i]` waits for `source[i]`; both are indices into arrays that the owner names."""

    source: IntColumn
    target: IntColumn

    @classmethod
    def none(cls) -> Edges:
        """No edges."""
        return cls(np.empty(0, np.intp), np.empty(0, np.intp))

    @classmethod
    def joined(cls, parts: Sequence[Edges]) -> Edges:
        """The edges of all parts."""
        return cls(np.concatenate([part.source for part in parts]), np.concatenate([part.target for part in parts]))

    def only(self, kept: Mask) -> Edges:
        """The edges for which `kept` is true."""
        return Edges(self.source[kept], self.target[kept])

    def known(self) -> Edges:
        """The edges whose source is not NONE."""
        return self.only(self.source != NONE)

    def __len__(self) -> int:
        return len(self.source)


@dataclass(frozen=True, slots=True)
class HostCalls:
    """Host calls that launch work or wait for it, by start.

    Attributes:
        key_ns: when each returned (no later than its activity started); orders the graph.
        work_ns: shape (calls, HOST_WORK): host time since the call it follows and in the call itself, by kind.
        label: column of HOST_WORK for the call itself.
        follows: the call whose return it follows, or NONE.
        follows_own: the previous call of its own thread if that is a different one, or NONE.
        first_activity: the activity it launched (the first one of a CUDA graph), or NONE.
        opens_ns: start of the host's timeline, which a call that follows none follows.
        is_needed: whether the host itself uses what the call waits for (ranks without a device), so that no fix can
            remove the wait.
    """

    key_ns: Nanoseconds
    work_ns: Counts
    label: IntColumn
    follows: IntColumn
    follows_own: IntColumn
    first_activity: IntColumn
    opens_ns: int
    is_needed: Mask

    def __len__(self) -> int:
        return len(self.key_ns)


@dataclass(frozen=True, slots=True)
class DeviceWork:
    """Device activities of one rank, by start.

    Attributes:
        start_ns, end_ns: as measured.
        work: codes of `Work`.
        step: number of the host step in which it was launched, or NONE.
        name_hash: hash of the kernel's name and grid, equal on every rank.
        span: column of HOST_WORK of the checkpoint or data-loading span in which it was launched, or NONE.
        launched_by: its host call, or NONE.
        is_history: launched before the trace began, and first on its stream: keeps its measured time.
        call: index among the rank's communication calls, or NONE.
    """

    start_ns: Nanoseconds
    end_ns: Nanoseconds
    work: IntColumn
    step: IntColumn
    name_hash: IntColumn
    span: IntColumn
    launched_by: IntColumn
    is_history: Mask
    call: IntColumn

    def __len__(self) -> int:
        return len(self.start_ns)

    @property
    def duration_ns(self) -> Nanoseconds:
        return self.end_ns - self.start_ns


@dataclass(frozen=True, slots=True)
class RankGraph:
    """Dependency graph of one rank.

    Attributes:
        streams: each activity and its predecessor on the stream.
        stream_gap_ns: by edge of `streams`: typical gap of this kind of succession on this device.
        events: waits between streams.
        event_ns: typical latency of such a wait.
        blocking: activity -> the call that returns only once it has ended.
        blocking_ns: by edge of `blocking`: from the activity's end to the return of the call.
        queue: activity -> the call that can return only once it has started (launch queue full).
        launch_ns: from a call's return to the start on an idle stream; may be slightly negative.
        boundaries: the activity that begins each step of the window.
        begins_ns: where a single step begins instead, on the idle device before that activity; or None.
        last: activities that may end the last step.
        ends_when_asked: communications whose recorded end is when the thread asked for them rather than when they were
            done (gloo's sends and receives for which the thread did not have to wait).
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
    begins_ns: int | None = None


def hash_names(trace: TraceColumns) -> Counts:
    """Hash of each name of a trace (of operators and kernels), equal on every rank."""
    return np.array([zlib.crc32(name.encode(errors="replace")) for name in trace.names] or [0], np.int64)
