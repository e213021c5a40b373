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

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from stepscope.core.errors import DataError, none_usable
from stepscope.core.vocabulary import Notice
from stepscope.trace.columns import DEVICE_CATEGORIES, NONE, TraceColumns
from stepscope.trace.file_names import ranks_by_name, read_file_name
from stepscope.workflow.inputs.trace_files import find_trace_files, open_ranks

_WORDS = [category.name.lower() for category in DEVICE_CATEGORIES]


def launches(paths: Sequence[str], capture: int | None) -> tuple[pd.DataFrame, list[Notice]]:
    """Kernels, copies and memsets of the traces in order of their ranks and start; arguments as for `load`.

    Returns:
        The frame, and a notice of each file that cannot be used.

    Raises:
        DataError: no file can be used.
    """
    files = find_trace_files(paths, capture=capture)
    names = ranks_by_name([read_file_name(path) for path in files.paths])
    errors: list[DataError] = []

    def traces() -> Iterator[tuple[TraceColumns, int]]:
        for path, rank in zip(files.paths, names, strict=True):
            try:
                opened = open_ranks(path)
            except DataError as error:
                errors.append(error)
                continue
            for trace in opened:
                yield trace, trace.header.rank if trace.header.rank is not None else rank or 0

    frame = frame_of_traces(traces())
    if len(errors) == len(files.paths):
        raise none_usable(errors, "files", what_next="give the traces that torch.profiler exports")
    return frame, [*files.notices, *(Notice("unusable_file", str(error)) for error in errors)]


def frame_of_traces(traces: Iterable[tuple[TraceColumns, int]]) -> pd.DataFrame:
    """The frame of traces with their ranks; of each trace only the columns of the frame are held."""
    parts = sorted(((rank, _part(trace, rank)) for trace, rank in traces), key=lambda one: one[0])
    names = parts[0][1] if parts else ()
    return pd.DataFrame({name: _joined([part[name] for _, part in parts]) for name in names})


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
