"""Which computation feeds or needs a send or receive, and which operation at the other stage is its peer?

Profilers of pipelined jobs note sends and receives that never went out: before the first computation, after the last,
and at the two ends of the model when every stage holds several chunks. Those wait for nobody.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from stepscope.analyzer.what_if.operations.grid import Grid, Operation
from stepscope.analyzer.what_if.operations.kinds import BACKWARD, COMPUTE, FORWARD, POINT_TO_POINT

SAME_MOMENT_SECONDS = 5e-5
"""Starts and ends this close are one moment: the clocks of a table agree no better."""

_TOWARDS = {"forward-send": 1, "forward-recv": -1, "backward-send": -1, "backward-recv": 1}
"""How many global chunks away the peer is."""

_PEER = {
    "forward-send": "forward-recv",
    "forward-recv": "forward-send",
    "backward-send": "backward-recv",
    "backward-recv": "backward-send",
}


@dataclass(frozen=True, slots=True)
class PointToPoint:
    """Computation by send or receive, and the pairs of operations that are one transfer."""

    computation: dict[Operation, Operation]
    pairs: list[tuple[Operation, Operation]]


def pair(grid: Grid, reference: dict[Operation, tuple[float, float]]) -> PointToPoint:
    """Match sends with receives.

    Args:
        grid: for the chunks.
        reference: start and end of every operation of one replica in one step, the order all others share.
    """
    chunk = dict(zip(grid.operations, grid.global_chunk, strict=True))
    num_chunks = 1 + max((chunk[o] for o in grid.operations), default=0)
    by_place = defaultdict(list)
    for operation in sorted(reference, key=lambda o: (reference[o][0], o.number)):
        by_place[operation.kind, operation.stage].append(operation)
    computation: dict[Operation, Operation] = {}
    sent: dict[tuple[str, int], list[Operation]] = defaultdict(list)
    for kind in POINT_TO_POINT:
        direction = FORWARD if kind.startswith(FORWARD) else BACKWARD
        for stage in range(grid.num_stages):
            work = by_place[direction + COMPUTE, stage]
            calls = _issued(by_place[kind, stage], work, reference, is_receive=kind.endswith("recv"))
            # the first receive of the first stage may be missing: nobody sends it anything
            first = 1 if kind.endswith("recv") and len(calls) + 1 == len(work) else 0
            numbered = sorted(work, key=lambda o: o.number)
            for call, needs in zip(calls, numbered[first:], strict=False):
                computation[call] = needs
                if 0 <= chunk[needs] + _TOWARDS[kind] < num_chunks:
                    sent[kind, stage].append(call)
    return PointToPoint(computation, _pairs(sent, grid.num_stages))


def _issued(
    calls: list[Operation], work: list[Operation], times: dict[Operation, tuple[float, float]], *, is_receive: bool
) -> list[Operation]:
    """Without receives after the last computation began, and sends that ended before the first one had."""
    if not work:
        return []
    if is_receive:
        last = max(times[o][0] for o in work) + SAME_MOMENT_SECONDS
        return [call for call in calls if times[call][0] <= last]
    first = min(times[o][1] for o in work) - SAME_MOMENT_SECONDS
    return [call for call in calls if times[call][1] >= first]


def _pairs(sent: dict[tuple[str, int], list[Operation]], num_stages: int) -> list[tuple[Operation, Operation]]:
    pairs = []
    for (kind, stage), calls in sent.items():
        if kind.endswith("recv"):
            continue
        peer_stage = (stage + _TOWARDS[kind]) % num_stages
        pairs += list(zip(calls, sent.get((_PEER[kind], peer_stage), []), strict=False))
    return pairs
