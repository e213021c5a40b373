"""Planned calls of a replay: a light capture's calls without the profiler's cost, and without what is taken away."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum, StrEnum
from typing import Final, NamedTuple

from stepscope.analyzer.what_if.light_capture import Kind, LaunchedWork, LightCapture
from stepscope.trace.columns import NONE

SHORTEST_LAUNCH_NS = 500
"""No launch takes less, whatever the profiler's cost is."""
COLD_NS = 10_000
"""Host time before a call from which on it bears the whole cost, less in proportion below: calls of a tight loop
find all that they need in the processor's caches (seen on an H200: next to nothing a launch there, 14 us elsewhere)."""


class Removal(StrEnum):
    """What a replay takes away."""

    NOTHING = "nothing"
    BLOCKING_CALLS = "blocking calls"
    """waits for the GPU, and copies that return only when they have ended, as reading a value; as below"""
    ALLOCATIONS = "allocations"
    """the driver's"""
    COPIES = "copies"
    """those from pageable memory become copies from pinned memory that nobody waits for, others are gone"""
    COLLECTIVES = "collectives"
    HOST_TIME = "host time"
    """all of it: what remains is the GPU's own time and its waits for the launches' latency"""
    UNEVEN_HOST = "uneven host"
    """what the host of one rank, that with most, does longer than those of the others"""


REMOVED_CALLS: Final = {
    Removal.BLOCKING_CALLS: Kind.SYNCHRONIZES | Kind.COPIES_AND_WAITS | Kind.FOR_READ,
    Removal.ALLOCATIONS: Kind.ALLOCATES,
    Removal.COPIES: Kind.ONLY_COPIES | Kind.OF_COPY,
}


class Act(IntEnum):
    """What a call does in a replay."""

    PLAIN = 0
    WAIT = 1
    LAUNCH = 2
    LAUNCH_AND_WAIT = 3


class PlannedCall(NamedTuple):
    """A call in a replay.

    Attributes:
        before_ns: host time before it, or before it and in it where it does not wait.
        after_ns: host time of a call that waits, once it is through.
        works: the work that it launches, with the place of each.
    """

    act: Act
    before_ns: float
    after_ns: float
    works: list[tuple[int, LaunchedWork]]
    awaits: tuple[int, ...] | None
    aside: int


def planned_calls(
    capture: LightCapture, all_works: Sequence[LaunchedWork], cost_ns: float, without: Removal
) -> list[PlannedCall]:
    """The calls of a capture with a cost taken off each, without what a removal takes away."""
    removed = REMOVED_CALLS.get(without, Kind.PLAIN)
    host = 0.0 if without is Removal.HOST_TIME else 1.0
    launch_ns = max(capture.usual_ns - cost_ns, SHORTEST_LAUNCH_NS)
    planned = []
    for kind, before_ns, own_ns, places, awaits, aside in capture.calls:
        taken_ns = cost_ns * min(before_ns / COLD_NS, 1.0)
        before, own = host * before_ns, host * max(own_ns - taken_ns, -before_ns)
        works = [(place, all_works[place]) for place in places]
        if kind & Kind.GAP_FOR_READ and removed & Kind.FOR_READ:
            before = 0.0
        if kind & removed:
            works = _pinned(works)
            act = Act.LAUNCH if works else Act.PLAIN
            launched_ns = min(launch_ns, max(own, SHORTEST_LAUNCH_NS)) if works else min(own, 0.0)
            planned.append(PlannedCall(act, max(before + launched_ns, 0.0), 0.0, works, awaits, aside))
        elif kind & Kind.WAITS:
            planned.append(PlannedCall(Act.WAIT, before, max(own, 0.0), works, awaits, aside))
        elif kind & Kind.COPIES_AND_WAITS:
            planned.append(PlannedCall(Act.LAUNCH_AND_WAIT, before, max(own, 0.0), works, awaits, aside))
        elif works:
            at_least = max(before + own, SHORTEST_LAUNCH_NS)
            planned.append(PlannedCall(Act.LAUNCH, at_least, 0.0, works, awaits, aside))
        elif before + own > 0.0:
            planned.append(PlannedCall(Act.PLAIN, before + own, 0.0, works, awaits, aside))
    return planned


def _pinned(works: Sequence[tuple[int, LaunchedWork]]) -> list[tuple[int, LaunchedWork]]:
    """What a removed call leaves of its copies: what the GPU is given from pageable memory comes from pinned."""
    return [(place, work._replace(duration_ns=work.pinned_ns)) for place, work in works if work.pinned_ns != NONE]
