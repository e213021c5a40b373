"""Which device rows claim to last beyond the next one's start on their stream, and where are they cut?

ROCm's profiler sometimes records durations that overrun by orders of magnitude, although a HIP stream runs one thing
at a time, so they are cut at the next start. On NVIDIA kernels of one stream do overlap (programmatic dependent
launch, branches of a graph), so nothing is ever cut there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from stepscope.trace.columns import DEVICE_CATEGORIES, TraceColumns, TraceHeader


def is_rocm(header: TraceHeader, metadata: Mapping[str, object]) -> bool:
    """Whether the trace comes from AMD's stack, by its version keys or device names."""
    keys_tell = any(name.startswith(("hip_", "roctracer_", "rocprofiler_")) for name in metadata)
    return keys_tell or any(device.name.startswith("AMD ") for device in header.devices)


def clip_overruns(trace: TraceColumns) -> TraceColumns:
    """Cut ends at the next start on the same lane, in place, and count them.

    Rows that start together stay as they are: nothing tells which one ran first.
    """
    rows = trace.rows_of(*DEVICE_CATEGORIES)
    rows = rows[np.lexsort((trace.start_ns[rows], trace.lane[rows]))]
    this, following = rows[:-1], rows[1:]
    overruns = (trace.lane[this] == trace.lane[following]) & (trace.end_ns[this] > trace.start_ns[following])
    overruns &= trace.start_ns[this] < trace.start_ns[following]
    cut, until = this[overruns], trace.start_ns[following[overruns]]
    cut_ns = int((trace.end_ns[cut] - until).sum())
    trace.end_ns[cut] = until
    return replace(trace, quality=replace(trace.quality, clipped=len(cut), clipped_ns=cut_ns))
