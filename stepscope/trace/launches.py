"""Which launches of which process do device rows answer to? A row is linked by its owner's correlation ids alone."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from stepscope.trace.columns import NONE, Category, IntColumn, TraceColumns

_ID_BITS = 44
"""Correlation ids are 32 bits wide; processes are numbered above."""
_ID_MASK = 2**_ID_BITS - 1
_EARLY_NS = 1_000_000
"""A device's clock may run this far behind its host's: kernels seem to start before their launch."""


class Launches:
    """The runtime calls of a file's processes, by (process, correlation id)."""

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
        """For each device row whether its owner made a call with its id, of its kind, before it."""
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
        """Part of the device rows with an id that are linked so; 0 without any."""
        with_id = self._trace.correlation[rows] > 0
        return float(self.links(rows, owner)[with_id].mean()) if with_id.any() else 0.0

    def num_answered(self, rows: npt.NDArray[np.intp], owner: IntColumn) -> int:
        """How many launches have a device row so; a graph's launch counts once."""
        linked = self.links(rows, owner)
        return len(np.unique(self._keys(owner, self._trace.correlation[rows])[linked]))

    @staticmethod
    def _keys(owner: IntColumn, correlation: IntColumn) -> npt.NDArray[np.int64]:
        keys: npt.NDArray[np.int64] = (owner.astype(np.int64) << _ID_BITS) | (correlation.astype(np.int64) & _ID_MASK)
        return keys
