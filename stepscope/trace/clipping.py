"""Which device rows claim to last beyond the next one's start on their stream, and where are they cut?

ROCm's profiler sometimes records durations that overrun by orders of magnitude, although a HIP stream runs one thing
at a time, so they are cut at the next start. On NVIDIA kernels of one stream do overlap (programmatic dependent
launch, branches of a graph), so nothing is ever cut there.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from stepscope.trace.columns import DEVICE_CATEGORIES, IntColumn, TraceHeader


def is_rocm(header: TraceHeader, metadata: Mapping[str, object]) -> bool:
    """Whether the trace comes from AMD's stack, by its version keys or device names."""
    keys_tell = any(name.startswith(("hip_", "roctracer_", "rocprofiler_")) for name in metadata)
    return keys_tell or any(device.name.startswith("AMD ") for device in header.devices)


def clip_overruns(
    *, category: IntColumn, lane: IntColumn, start_ns: npt.NDArray[np.int64], end_ns: npt.NDArray[np.int64]
) -> int:
    """Cut ends at the next start on the same lane, in place; how many were cut.

    Rows that start together stay as they are: nothing tells which one ran first.
    """
    rows = np.flatnonzero(np.isin(category, DEVICE_CATEGORIES))
    rows = rows[np.lexsort((start_ns[rows], lane[rows]))]
    this, following = rows[:-1], rows[1:]
    overruns = (lane[this] == lane[following]) & (end_ns[this] > start_ns[following])
    overruns &= start_ns[this] < start_ns[following]
    end_ns[this[overruns]] = start_ns[following[overruns]]
    return int(overruns.sum())
