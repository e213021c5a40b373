"""Frame of every kernel and copy of a job's traces, a row each, without a loop over rows.

column          unit    meaning
rank                    of the trace
category                kernel, memcpy or memset
name                    of the kernel, or the kind of the copy
start           ns      since the epoch, by the rank's own clock
duration_ns     ns
device, stream          where it ran
bytes           B       of a copy or memset; NA for kernels and where not recorded
correlation             number that it shares with the call that launched it; NA where not recorded
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from stepscope.trace.columns import DEVICE_CATEGORIES, NONE, TraceColumns
from stepscope.trace.file_names import ranks_by_name, read_file_name
from stepscope.workflow.inputs.trace_files import find_trace_files, open_ranks

_WORDS = [category.name.lower() for category in DEVICE_CATEGORIES]


def launches(paths: Sequence[str], capture: int | None) -> pd.DataFrame:
    """Kernels, copies and memsets of the traces in order of their ranks and start; arguments as for `load`.

    Raises:
        DataError: a file cannot be used.
    """
    files = find_trace_files(paths, capture=capture).paths
    names = ranks_by_name([read_file_name(path) for path in files])
    return frame_of_traces(
        (trace, trace.header.rank if trace.header.rank is not None else rank or 0)
        for path, rank in zip(files, names, strict=True)
        for trace in open_ranks(path)
    )


def frame_of_traces(traces: Iterable[tuple[TraceColumns, int]]) -> pd.DataFrame:
    """The frame of traces with their ranks; at least one."""
    parts = [_part(trace, rank) for trace, rank in sorted(traces, key=lambda one: one[1])]
    return pd.DataFrame({name: _joined([part[name] for part in parts]) for name in parts[0]})


def _joined(parts: Sequence[Any]) -> Any:
    if len(parts) == 1:
        return parts[0]
    if isinstance(parts[0], pd.Categorical):
        return pd.api.types.union_categoricals(list(parts))
    return pd.concat([pd.Series(part) for part in parts], ignore_index=True)


def _part(trace: TraceColumns, rank: int) -> dict[str, Any]:
    rows = trace.rows_of(*DEVICE_CATEGORIES)
    rows = rows[np.argsort(trace.start_ns[rows], kind="stable")]
    lanes = trace.lane[rows]
    devices, streams = (np.array([lane[place] for lane in trace.lanes] or [NONE]) for place in (0, 1))
    kinds = {int(category): place for place, category in enumerate(DEVICE_CATEGORIES)}
    codes = np.full(max(kinds) + 1, -1, np.int8)
    codes[list(kinds)] = list(kinds.values())
    return {
        "rank": np.full(len(rows), rank, np.int32),
        "category": pd.Categorical.from_codes(codes[trace.category[rows]], pd.Index(_WORDS)),
        "name": _categorical(trace.name[rows], trace.names),
        "start": pd.to_datetime(trace.start_ns[rows], unit="ns", utc=True),
        "duration_ns": trace.end_ns[rows] - trace.start_ns[rows],
        "device": devices[lanes],
        "stream": streams[lanes],
        "bytes": _with_unknown(trace.num_bytes[rows]),
        "correlation": _with_unknown(trace.correlation[rows]),
    }


def _categorical(codes: npt.NDArray[np.signedinteger], names: Sequence[str]) -> Any:
    """Texts by number; only those that occur are categories."""
    is_used = np.zeros(len(names), np.bool_)
    is_used[codes] = True
    numbers = np.cumsum(is_used) - 1
    used = [names[place] for place in np.flatnonzero(is_used).tolist()]
    return pd.Categorical.from_codes(numbers[codes], pd.Index(used, dtype="str"))


def _with_unknown(values: npt.NDArray[np.signedinteger]) -> Any:
    return pd.arrays.IntegerArray(values.astype(np.int64), values == NONE)
