"""Files of several ranks: assigns every row to its rank and splits the columns.

Tools merge ranks to view them together: SGLang writes process ids as "[TP01] 4711", TraceFuse writes the rank into
every event's arguments, simple scripts append the lists. Correlation ids collide between ranks, so each row gets its
rank first and nothing is looked up across ranks. Without labels, host rows belong to the rank of their process, and
device rows are assigned by whatever links most of them to launches of one process: their position in the file, their
correlation ids, their device.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from stepscope.core.errors import NotATraceError
from stepscope.trace.columns import (
    DEVICE_CATEGORIES,
    NONE,
    Category,
    CommunicationCalls,
    IntColumn,
    RankSource,
    ReadQuality,
    SyncWaits,
    TraceColumns,
    TraceHeader,
)
from stepscope.trace.file_names import natural_order, ranks_by_name, read_file_name

_MIN_EXPLAINED = 0.5
"""Least share of device rows that launches of the assigned process must explain."""
_MIN_ROWS_SHARE = 0.01
"""Least rows of a rank as a share of the busiest process's: ranks of a job run much the same operators."""
_MAX_RIVAL_SHARE = 0.8
"""A device belongs to a process when every other process explains at most this share of what it explains."""


def split_ranks(trace: TraceColumns, listed: Sequence[int] = ()) -> list[TraceColumns]:
    """Kineto trace format: split a merged file into one trace a rank; the trace itself where it holds one rank.

    Args:
        trace: everything in the file.
        listed: the ranks that the file's metadata lists, in the order in which they were merged.

    Raises:
        NotATraceError: device rows cannot be assigned to processes.
    """
    lanes = [trace.lanes[place] for place in np.flatnonzero(np.bincount(trace.lane, minlength=len(trace.lanes)))]
    parts = sorted({lane.part for lane in lanes if lane.part}, key=natural_order)
    if len(parts) > 1:
        owner_of_lane = [parts.index(lane.part) if lane.part in parts else NONE for lane in trace.lanes]
        owner = np.array(owner_of_lane, np.int64)[trace.lane]
        ranks = _ranks_of_parts(parts, listed)
        source = RankSource.HEADER if ranks else RankSource.ORDER
        return _split(trace, owner, parts, ranks or range(len(parts)), source)
    processes = _host_processes(trace)
    if len(processes) < 2:
        return [trace]
    owner = _owners(trace, processes)
    names = [f"process {process}" for process in processes]
    if len(listed) == len(processes):
        return _split(trace, owner, names, listed, RankSource.HEADER)
    return _split(trace, owner, names, *_ranks_by_order(trace, owner, processes))


def _ranks_of_parts(parts: Sequence[str], listed: Sequence[int]) -> list[int]:
    """Ranks from the labels, else from the metadata; empty where neither gives them all."""
    ranks = [rank for rank in ranks_by_name([read_file_name(part) for part in parts]) if rank is not None]
    if len(set(ranks)) == len(parts):
        return ranks
    return list(listed) if len(listed) == len(parts) else []


def _ranks_by_order(trace: TraceColumns, owner: IntColumn, processes: Sequence[int]) -> tuple[list[int], RankSource]:
    """Ranks by the order of their devices; else by order in the file, or by process id where rows are interleaved."""
    rows = trace.rows_of(*DEVICE_CATEGORIES)
    device = np.array([lane.process for lane in trace.lanes], np.int64)[trace.lane[rows]]
    devices = [sorted(set(device[owner[rows] == place].tolist())) for place in range(len(processes))]
    source = RankSource.ORDER
    if all(devices) and len({number for mine in devices for number in mine}) == sum(map(len, devices)):
        source = RankSource.DEVICE
        order = sorted(range(len(processes)), key=lambda place: devices[place])
    elif (np.diff(owner[owner != NONE]) < 0).any():
        order = sorted(range(len(processes)), key=lambda place: processes[place])
    else:
        order = list(range(len(processes)))
    return [order.index(place) for place in range(len(processes))], source


def _host_processes(trace: TraceColumns) -> list[int]:
    """Processes that ran operators (or, without operators, made runtime calls), in the file's order.

    One with next to no rows beside another is a helper or damage, not a rank.
    """
    if len({lane.process for lane in trace.lanes if not lane.on_device and lane.process >= 0}) < 2:
        return []
    for category in (Category.CPU_OP, Category.RUNTIME):
        lanes, first, counts = np.unique(trace.lane[trace.rows_of(category)], return_index=True, return_counts=True)
        rows_of: Counter[int] = Counter()
        for place in np.argsort(first).tolist():
            rows_of[trace.lanes[lanes[place]].process] += int(counts[place])
        least = _MIN_ROWS_SHARE * max(rows_of.values(), default=0)
        if rows_of:
            return [process for process, count in rows_of.items() if process >= 0 and count >= least]
    return []


def _owners(trace: TraceColumns, processes: Sequence[int]) -> IntColumn:
    """For each row the index of its process, or NONE."""
    place = {process: number for number, process in enumerate(processes)}
    of_lane = [NONE if lane.on_device else place.get(lane.process, NONE) for lane in trace.lanes]
    owner = np.array(of_lane, np.int64)[trace.lane]
    rows = trace.rows_of(*DEVICE_CATEGORIES)
    launches = Launches(trace, owner)
    blocks = max(
        _blocks(owner, len(processes)), key=lambda block: launches.num_answered(rows, block[rows]), default=None
    )
    if blocks is not None and (
        not len(rows) or not len(launches) or launches.share(rows, blocks[rows]) >= _MIN_EXPLAINED
    ):
        return np.where(owner == NONE, blocks, owner)
    found = _by_correlation(trace, rows, launches, len(processes))
    if found is None:
        found = _by_device(trace, rows, launches, len(processes))
    if found is None:
        raise NotATraceError(
            f"holds the events of {len(processes)} processes, and its device rows cannot be assigned to them",
            where=trace.header.path,
            what_next="give the files as they were before they were merged, one a rank",
        )
    owner[rows] = found
    return _with_device_annotations(trace, owner, rows)


def _blocks(owner: IntColumn, num_processes: int) -> list[IntColumn]:
    """Owners by position where each process's rows are contiguous: device rows follow the host's, or precede them."""
    known = np.flatnonzero(owner != NONE)
    _, first = np.unique(owner[known], return_index=True)
    _, back = np.unique(owner[known][::-1], return_index=True)
    first, last = known[first], known[::-1][back]
    order = np.argsort(first)
    if (last[order][:-1] > first[order][1:]).any():
        return []
    places = np.arange(len(owner))
    follow = np.maximum(np.searchsorted(first[order], places, side="right") - 1, 0)
    precede = np.minimum(np.searchsorted(last[order], places, side="left"), num_processes - 1)
    return [order[follow], order[precede]]


def _by_correlation(
    trace: TraceColumns, rows: npt.NDArray[np.intp], launches: Launches, num_processes: int
) -> IntColumn | None:
    """Owners of device rows whose correlation ids only one process uses; None when ids collide or link no row."""
    candidates = np.stack([launches.links(rows, np.full(len(rows), place)) for place in range(num_processes)])
    owner = np.where(candidates.sum(axis=0) == 1, candidates.argmax(axis=0), NONE)
    linked = candidates.any(axis=0)
    if not linked.any() or (owner[linked] == NONE).any():
        return None
    for lane in np.unique(
        trace.lane[rows[~linked]]
    ):  # launched before the window: same owner as the rest of its stream
        mine = trace.lane[rows] == lane
        owners = np.unique(owner[mine & linked])
        if len(owners) != 1:
            return None
        owner[mine] = owners[0]
    return owner


def _by_device(
    trace: TraceColumns, rows: npt.NDArray[np.intp], launches: Launches, num_processes: int
) -> IntColumn | None:
    """Owners by device, where the launches of one process of its own clearly explain each device's rows."""
    device = np.array([lane.process for lane in trace.lanes], np.int64)[trace.lane[rows]]
    owner = np.full(len(rows), NONE, np.int64)
    taken: list[int] = []
    for number in np.unique(device):
        mine = device == number
        shares = [launches.share(rows[mine], np.full(mine.sum(), place)) for place in range(num_processes)]
        best, second = np.argsort(shares)[::-1][:2].tolist()
        if shares[best] < _MIN_EXPLAINED or shares[second] > _MAX_RIVAL_SHARE * shares[best] or best in taken:
            return None
        taken.append(best)
        owner[mine] = best
    return owner


def _with_device_annotations(trace: TraceColumns, owner: IntColumn, rows: npt.NDArray[np.intp]) -> IntColumn:
    """Owners completed: annotations and synchronizations on a stream belong to the owner of the stream's work."""
    of_lane = np.full(len(trace.lanes), NONE, np.int64)
    of_lane[trace.lane[rows]] = owner[rows]
    return np.where(owner == NONE, of_lane[trace.lane], owner)


def _split(
    trace: TraceColumns, owner: IntColumn, names: Sequence[str], ranks: Sequence[int], source: RankSource
) -> list[TraceColumns]:
    """The rows of each owner, by rank; repaired and lost events are counted once, with the first."""
    num_lost = int(np.count_nonzero(owner == NONE))
    traces: list[TraceColumns] = []
    for rank, place in sorted(zip(ranks, range(len(ranks)), strict=True)):
        rows = np.flatnonzero(owner == place)
        if not len(rows):
            continue
        whole = trace.quality
        quality = ReadQuality(len(rows), repaired=0, dropped=0, clipped=0, truncated=whole.truncated)
        if not traces:
            others = whole.num_events - len(trace) + num_lost
            quality = replace(whole, num_events=len(rows) + others, dropped=whole.dropped + num_lost)
        header = replace(trace.header, rank=rank, rank_source=source, part=names[place])
        traces.append(_rows_only(trace, rows, header, quality))
    return traces


def _rows_only(
    trace: TraceColumns, rows: npt.NDArray[np.intp], header: TraceHeader, quality: ReadQuality
) -> TraceColumns:
    calls = trace.communication
    mine = np.isin(calls.row, rows)
    others = [place for place, group in enumerate(trace.groups) if _belongs_to_other_rank(trace, place, header.rank)]
    columns = {name: column[mine] for name, column in _arrays(calls).items()}
    columns["row"] = np.searchsorted(rows, columns["row"])
    columns["group"] = np.where(np.isin(columns["group"], others), NONE, columns["group"])
    awaits = np.isin(trace.waits.row, rows)
    waits = {name: column[awaits] for name, column in _arrays(trace.waits).items()}
    waits["row"] = np.searchsorted(rows, waits["row"])
    per_event = {name: column[rows] for name, column in _arrays(trace).items()}
    return replace(
        trace,
        header=header,
        quality=quality,
        communication=replace(calls, **columns),
        waits=SyncWaits(**waits),
        **per_event,
    )


def _arrays(table: TraceColumns | CommunicationCalls | SyncWaits) -> dict[str, Any]:
    values = {name: getattr(table, name) for name in table.__slots__}
    return {name: value for name, value in values.items() if isinstance(value, np.ndarray)}


def _belongs_to_other_rank(trace: TraceColumns, place: int, rank: int | None) -> bool:
    """Whether a group comes from the header of another rank and does not contain this one."""
    group = trace.groups[place]
    return place < len(trace.header.groups) and group.ranks is not None and rank not in group.ranks


_ID_BITS = 44
"""Correlation ids are 32 bits wide; the process number is above them."""
_ID_MASK = 2**_ID_BITS - 1
_EARLY_NS = 1_000_000
"""A device's clock may be this far behind its host's, so that kernels seem to start before their launch."""


class Launches:
    """Index of the runtime calls of a file's processes, by (process, correlation id)."""

    def __init__(self, trace: TraceColumns, owner: IntColumn) -> None:
        rows = trace.rows_of(Category.RUNTIME)
        rows = rows[(trace.correlation[rows] > 0) & (owner[rows] != NONE)]
        keys = self._keys(owner[rows], trace.correlation[rows])
        order = np.argsort(keys, kind="stable")
        self._trace = trace
        self._keys_known, self._rows = keys[order], rows[order]
        self._copies = trace.named(np.arange(len(trace)), lambda name: "Memcpy" in name or "Memset" in name)

    def __len__(self) -> int:
        return len(self._rows)

    def links(self, rows: npt.NDArray[np.intp], owner: IntColumn) -> npt.NDArray[np.bool_]:
        """For each device row whether its owner made a call with its correlation id, of its kind, before it."""
        if not len(self):
            return np.zeros(len(rows), np.bool_)
        trace = self._trace
        keys = self._keys(owner, trace.correlation[rows])
        place = np.minimum(np.searchsorted(self._keys_known, keys), len(self) - 1)
        call = self._rows[place]
        is_there = (self._keys_known[place] == keys) & (trace.correlation[rows] > 0)
        is_of_its_kind = self._copies[call] == (trace.category[rows] != Category.KERNEL)
        is_before = trace.start_ns[call] <= trace.start_ns[rows] + _EARLY_NS
        linked: npt.NDArray[np.bool_] = is_there & is_of_its_kind & is_before
        return linked

    def share(self, rows: npt.NDArray[np.intp], owner: IntColumn) -> float:
        """Share of the device rows with a correlation id that `links` finds linked; 0 without any."""
        with_id = self._trace.correlation[rows] > 0
        return float(self.links(rows, owner)[with_id].mean()) if with_id.any() else 0.0

    def num_answered(self, rows: npt.NDArray[np.intp], owner: IntColumn) -> int:
        """How many launches have a linked device row; a graph's launch counts once."""
        linked = self.links(rows, owner)
        return len(np.unique(self._keys(owner, self._trace.correlation[rows])[linked]))

    @staticmethod
    def _keys(owner: IntColumn, correlation: IntColumn) -> npt.NDArray[np.int64]:
        keys: npt.NDArray[np.int64] = (owner.astype(np.int64) << _ID_BITS) | (correlation.astype(np.int64) & _ID_MASK)
        return keys
