"""Loops of reads in a light capture: calls that only compute what the host reads next.

A loop over parameters or layers that reads a value of each (`.item()`, `nonzero()`, a histogram) launches a few small
kernels, copies their result to the host and waits. Without the read nobody needs these kernels. They are recognised by
what lies between two reads in a row: kernels that only go through elements, no arithmetic of a model. What such a loop
launches for each read is then found before other reads too, behind the kernels of a layer or a backward pass.

What only some reads launch before the same may be a layer's own. Where others launch a lone reduction (a norm), and
many reads follow each other without a model's arithmetic, what some launch before theirs (the magnitude before a
maximum) is not, and the host's time for it goes with the reads. Its work on the GPU is left. For two tests of each
value, of which neither is a lone reduction, that predicted steps 11% too short, so those are left as they are.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from stepscope.analyzer.roofline.kernel_family import Family, family_of, is_communication
from stepscope.trace.columns import Category, IntColumn, TraceColumns

MAX_READ_BYTES = 4096
"""More is data, not values."""
MAX_LAUNCHES = 16
"""More than these are not computed for one read."""
MIN_READS = 3
"""Of the same kind, for a loop."""
MIN_IN_A_ROW = 8
"""Reads without a model's arithmetic between them that are a loop over parameters: no layer has as many."""

_ELEMENTWISE = frozenset(
    {Family.OTHER, Family.POINTWISE, Family.REDUCTION, Family.EMBEDDING, Family.COPY_LIKE, Family.SORT}
)

_MEMSET = "Memset "
"""Sets what a reduction of a large tensor counts its blocks with."""

Signature = tuple[str, ...]


class ReadCalls(NamedTuple):
    """By call: what it is to a loop of reads.

    Attributes:
        is_for_read: it launches, copies or awaits what the host reads, and nobody else needs.
        has_gap: the host time before it is spent for the read too.
    """

    is_for_read: npt.NDArray[np.bool_]
    has_gap: npt.NDArray[np.bool_]


def calls_for_reads(
    trace: TraceColumns, work_rows: IntColumn, first: IntColumn, waits: npt.NDArray[np.bool_]
) -> ReadCalls:
    """Find the calls of loops of reads.

    Args:
        work_rows: rows of the launched work, by call.
        first: by call, the place of its first work; one more than calls.
        waits: by call, whether the host waits in it.
    """
    found = ReadCalls(np.zeros(len(waits), np.bool_), np.zeros(len(waits), np.bool_))
    reads = _reads(trace, work_rows, first, waits)
    if not reads:
        return found
    since = [0, *(read + 1 + (not waits[read]) for read in reads[:-1])]
    launches = [_launches_between(begin, read, first) for begin, read in zip(since, reads, strict=True)]
    names, is_elementwise = _names(trace, work_rows)
    signatures = [tuple(names[first[call]] for call in calls) for calls in launches]
    is_clean = [
        place > 0 and 0 < len(calls) <= MAX_LAUNCHES and all(is_elementwise[first[call]] for call in calls)
        for place, calls in enumerate(launches)
    ]
    loops = _loops([signature for signature, clean in zip(signatures, is_clean, strict=True) if clean])
    in_a_row = _in_a_row(is_clean)
    for place, (read, calls, signature) in enumerate(zip(reads, launches, signatures, strict=True)):
        ending = next((loop for loop in loops if signature[-len(loop) :] == loop), None)
        if ending is None:
            continue
        is_in_loop = len(ending) == 1 + ending.count(_MEMSET) and in_a_row[place] >= MIN_IN_A_ROW
        is_whole = is_clean[place] and (ending == signature or is_in_loop)
        begin, end = calls[-len(ending)], read + 1 + (not waits[read])
        found.is_for_read[begin:end] = True
        found.has_gap[since[place] if is_whole else begin + 1 : end] = True
    return found


def _reads(
    trace: TraceColumns, work_rows: IntColumn, first: IntColumn, waits: npt.NDArray[np.bool_]
) -> list[int]:  # fmt: skip
    """Calls that copy a few bytes to the host, which then waits in them or in the next call."""
    is_copy = trace.category[work_rows] == Category.MEMCPY
    to_host = is_copy & trace.named(work_rows, lambda name: "DtoH" in name or "DeviceToHost" in name)
    is_small = to_host & (trace.num_bytes[work_rows] <= MAX_READ_BYTES)
    copies = np.zeros(len(waits), np.bool_)
    copies[np.repeat(np.arange(len(waits)), np.diff(first))[is_small]] = True
    waited_for = waits | np.append(waits[1:], False)
    return [int(call) for call in np.flatnonzero(copies & waited_for)]


def _launches_between(begin: int, end: int, first: IntColumn) -> list[int]:
    """Calls in a range that launch something."""
    calls = np.arange(begin, end)
    return [int(call) for call in calls[first[calls + 1] > first[calls]]]


def _names(trace: TraceColumns, work_rows: IntColumn) -> tuple[list[str], list[bool]]:
    """By work: its name without arguments and template arguments; whether it only goes through elements."""
    full = [trace.names[name] for name in trace.name[work_rows].tolist()]
    is_kernel = (trace.category[work_rows] == Category.KERNEL).tolist()
    known = {
        name: (
            name.partition("<")[0].partition("(")[0],
            family_of(name) in _ELEMENTWISE and not is_communication(name),
        )
        for name in set(full)
    }
    return [known[name][0] for name in full], [
        not kernel or known[name][1] for name, kernel in zip(full, is_kernel, strict=True)
    ]


def _in_a_row(is_clean: Sequence[bool]) -> list[int]:
    """By read: how many clean ones, this one among them, follow each other."""
    numbers: list[int] = []
    for clean, reads in itertools.groupby(is_clean):
        number = len(list(reads))
        numbers += [number if clean else 0] * number
    return numbers


def _loops(clean: Sequence[Signature]) -> list[Signature]:
    """What loops launch for a read, the longest first, each without what another launches before the same."""
    often = [signature for signature, number in Counter(clean).items() if number >= MIN_READS]
    shortest = [
        signature
        for signature in often
        if not any(other != signature and signature[-len(other) :] == other for other in often)
    ]
    return sorted(shortest, key=lambda signature: -len(signature))
