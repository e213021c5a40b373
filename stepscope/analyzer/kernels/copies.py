"""Copies: bandwidth against the host's link, and pageable memory.

The driver stages a pageable copy through a pinned buffer, piece by piece, which blocks the launching thread.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from stepscope.analyzer.kernels.occupancy import is_nvidia
from stepscope.core.hardware.links import PCIE_BYTES_PER_SECOND
from stepscope.trace.columns import NONE, Category, IntColumn, TraceColumns, TraceDevice

_PCIE_GENERATION = {6: 3, 7: 3, 8: 4, 9: 5, 10: 5}
"""PCIe generation of data-centre GPUs by major compute capability: Pascal and Volta, Ampere, Hopper and Blackwell (data
sheets). NVLink-C2C hosts are faster."""


@dataclass(frozen=True, slots=True)
class CopySums:
    """All copies of one kind ("HtoD (Pageable -> Device)") in one rank's window.

    `num_bytes` and `sized_ns` cover the copies with a recorded size; `link_bytes_per_second` is the host link's, None
    for copies that do not use it and where it is unknown.
    """

    kind: str
    count: int
    duration_ns: int
    num_bytes: int
    sized_ns: int
    link_bytes_per_second: float | None

    def __add__(self, other: CopySums) -> CopySums:
        return replace(
            self,
            count=self.count + other.count,
            duration_ns=self.duration_ns + other.duration_ns,
            num_bytes=self.num_bytes + other.num_bytes,
            sized_ns=self.sized_ns + other.sized_ns,
        )


def takes_host_link(kind: str) -> bool:
    """Whether copies of this kind go between host and device."""
    return kind.startswith(("HtoD", "DtoH"))


def is_pageable(kind: str) -> bool:
    """Whether copies of this kind have one end in host memory that is not pinned."""
    return takes_host_link(kind) and "Pageable" in kind


def copy_sums(trace: TraceColumns, rows: IntColumn, device: TraceDevice | None) -> list[CopySums]:
    """Sum the copies among some device rows by their kind."""
    rows = rows[trace.category[rows] == Category.MEMCPY]
    names, which = np.unique(trace.name[rows], return_inverse=True)
    duration = trace.end_ns[rows] - trace.start_ns[rows]
    size = trace.num_bytes[rows]
    sums = []
    for place, name in enumerate(names.tolist()):
        mine = which == place
        sized = mine & (size != NONE)
        kind = trace.names[name].removeprefix("Memcpy ")
        sums.append(
            CopySums(
                kind=kind,
                count=int(np.count_nonzero(mine)),
                duration_ns=int(duration[mine].sum()),
                num_bytes=int(size[sized].sum()),
                sized_ns=int(duration[sized].sum()),
                link_bytes_per_second=_host_link(device) if takes_host_link(kind) else None,
            )
        )
    return sums


def _host_link(device: TraceDevice | None) -> float | None:
    if device is None or device.compute_capability is None or not is_nvidia(device):
        return None
    generation = _PCIE_GENERATION.get(device.compute_capability[0])
    return None if generation is None else PCIE_BYTES_PER_SECOND[generation]
