"""Who is behind without waiting for anybody?

In each group with an open call, a rank is behind that has called less than another, or finished less. Being behind is
no guilt while its own oldest call waits for a rank that has not called it. Of the others, those that have called what
their peers have finished are stuck on the device; those with nothing open do not come to call, on the host. Where NCCL
tells starts (TORCH_NCCL_ENABLE_TIMING), those are stuck on the device as well of whose open calls none has begun there
while a peer is in one of them: something else keeps their GPU.
Messages between two ranks only excuse: they follow the pipeline's schedule, and name the neighbours of the guilty.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from stepscope.analyzer.hang.standings import Group, Standing, Standings
from stepscope.analyzer.hang.waits import OpenCall
from stepscope.core.hang import HangKind


class Lag(StrEnum):
    """What a guilty rank has done less of."""

    CALLED = "called"
    STARTED = "started"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class Guilty:
    """A rank, and one group in which it is behind: in what, by how many calls, and of whom."""

    rank: int
    lag: Lag
    group: Group
    behind: int
    ahead: tuple[int, ...]

    @property
    def kind(self) -> HangKind:
        """What of the rank is stuck."""
        return HangKind.HOST if self.lag is Lag.CALLED else HangKind.DEVICE


def guilty_ranks(
    standings: Standings, open_calls: Mapping[int, OpenCall], message_waits: Mapping[int, int]
) -> list[Guilty]:
    """Those who are behind and wait for nobody, in the order of their ranks."""
    behind: dict[int, Guilty] = {}
    for group, ranks in standings.items():
        if not any(standing.is_open for standing in ranks.values()):
            continue
        for one in _behind(group, ranks, open_calls):
            known = behind.get(one.rank)
            if known is None or (one.kind is HangKind.DEVICE, one.behind) > (
                known.kind is HangKind.DEVICE,
                known.behind,
            ):
                behind[one.rank] = one
    found = [one for _, one in sorted(behind.items())]
    unexcused = [one for one in found if one.kind is HangKind.DEVICE or one.rank not in message_waits]
    return unexcused or found


def _behind(group: Group, ranks: Mapping[int, Standing], open_calls: Mapping[int, OpenCall]) -> Iterator[Guilty]:
    most_called = max(standing.enqueued for standing in ranks.values())
    most_done = max(standing.completed for standing in ranks.values())
    for rank, here in ranks.items():
        own = open_calls.get(rank)
        if own is not None and own.waits_for:
            continue
        if here.completed < min(most_done, here.enqueued):
            ahead = tuple(other for other, one in ranks.items() if one.completed > here.completed)
            yield Guilty(rank, Lag.FINISHED, group, most_done - here.completed, ahead)
        elif own is None and here.enqueued < most_called:
            ahead = tuple(other for other, one in ranks.items() if one.enqueued > here.enqueued)
            yield Guilty(rank, Lag.CALLED, group, most_called - here.enqueued, ahead)
        elif own is not None and not own.runs and here.is_open:
            ahead = tuple(other for other, one in ranks.items() if one.has_started(here.first_open))
            if ahead:
                yield Guilty(rank, Lag.STARTED, group, 1, ahead)
