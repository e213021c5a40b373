"""Which event does a stream, or the host, wait for? The arguments of synchronisation records as columns."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from stepscope.trace.columns import SyncWaits
from stepscope.trace.communication import whole_number
from stepscope.trace.events import Arguments
from stepscope.trace.interning import narrow


class SyncWaitBuilder:
    """Collects the records that name an event."""

    def __init__(self) -> None:
        self._rows: list[int] = []
        self._streams: list[int] = []
        self._records: list[int] = []

    def add(self, rows: Iterable[int], arguments: Iterable[Arguments]) -> None:
        """Append rows (of the whole file) and their arguments."""
        for row, args in zip(rows, arguments, strict=True):
            self._rows.append(row)
            self._streams.append(whole_number(args.waited_stream))
            self._records.append(whole_number(args.waited_record))

    def build(self) -> SyncWaits:
        """The columns."""
        row, stream, record = (
            narrow(np.array(values, np.int64)) for values in (self._rows, self._streams, self._records)
        )
        return SyncWaits(row, stream, record)
