"""Device activities (kernels, copies, memsets) with the host call that launched each."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from stepscope.analyzer.intervals import Nanoseconds
from stepscope.analyzer.roofline.kernel_family import is_communication
from stepscope.trace.columns import DEVICE_CATEGORIES, NONE, Category, IntColumn, TraceColumns
from stepscope.trace.rows import launch_rows, row_mask, sorted_order

_PEER_COPY = "Memcpy PtoP"
"""Copies of a collective that uses the copy engines (async tensor parallelism, symmetric memory)."""


class Work(IntEnum):
    """Kind of work of a device activity."""

    COMPUTE = 0
    COMMUNICATION = 1
    COPY = 2


@dataclass(frozen=True, slots=True)
class Activities:
    """A rank's device activities, by start (ties: lower stream id first).

    Attributes:
        row: index into the trace's columns.
        stream: stream id.
        work: Work codes.
        launch_ns, launch_end_ns: start and end of the host call that launched it, or NONE when the trace lacks it.
        launch_lane: index of that call's thread in the trace's lanes, or NONE.
        launch_row: that call's row in the trace's columns, or NONE.
    """

    row: IntColumn
    start_ns: Nanoseconds
    end_ns: Nanoseconds
    stream: IntColumn
    work: IntColumn
    launch_ns: Nanoseconds
    launch_lane: IntColumn
    launch_end_ns: Nanoseconds
    launch_row: IntColumn

    def __len__(self) -> int:
        return len(self.row)

    def of(self, *work: Work) -> npt.NDArray[np.intp]:
        """Positions of the activities of these kinds."""
        is_wanted = np.zeros(len(Work), np.bool_)
        is_wanted[list(work)] = True
        return np.flatnonzero(is_wanted[self.work])


def device_activities(trace: TraceColumns) -> Activities:
    """Time breakdown: collect kernels, copies and memsets; link each to its launch by correlation id."""
    rows = trace.rows_of(*DEVICE_CATEGORIES)
    streams = np.array([lane.thread for lane in trace.lanes] or [0], np.int64)[trace.lane[rows]]
    order = sorted_order(trace.start_ns[rows], streams)
    rows, streams = rows[order], streams[order]
    launch = launch_rows(trace, rows)
    linked = launch != NONE
    return Activities(
        row=rows,
        start_ns=trace.start_ns[rows],
        end_ns=trace.end_ns[rows],
        stream=streams,
        work=_work_of(trace, rows),
        launch_ns=np.where(linked, trace.start_ns[launch], NONE),
        launch_lane=np.where(linked, trace.lane[launch], NONE),
        launch_end_ns=np.where(linked, trace.end_ns[launch], NONE),
        launch_row=launch,
    )


def _work_of(trace: TraceColumns, rows: npt.NDArray[np.intp]) -> IntColumn:
    """Work codes: communication by the row's arguments or name, also copies from GPU to GPU."""
    communicates = trace.named(rows, is_communication)
    communicates |= row_mask(trace, trace.communication.row)[rows]
    is_kernel = trace.category[rows] == Category.KERNEL
    between_gpus = trace.named(rows, lambda name: _PEER_COPY in name)
    work = np.where(is_kernel, Work.COMPUTE, Work.COPY).astype(np.int8)
    work[(communicates & is_kernel) | (between_gpus & ~is_kernel)] = Work.COMMUNICATION
    return work
