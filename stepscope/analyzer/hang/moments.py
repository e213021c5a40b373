"""Are the dumps of one moment, and had anybody waited by then?

No rank completes a collective that a member has not called. Where a dump says so, the member's own is an older one, and
nothing can be told from both. A call that is open for an instant is a healthy job's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod

from stepscope.analyzer.hang.standings import Group, Standings
from stepscope.core.flight_recorder import FlightDump, Operation

LEAST_WAIT_SECONDS = 1.0
_NS = 1e9
_ALL_WAIT = ("all_reduce", "all_gather", "_all_gather", "reduce_scatter", "_reduce_scatter", "all_to_all", "barrier")
"""How the names of collectives begin that nobody completes before all have called."""


@dataclass(frozen=True, slots=True)
class Older:
    """A rank whose dump is older than another's, which completed a call that this one had not made by then."""

    rank: int
    than: int
    call: Operation
    group: Group


def older_dumps(standings: Standings) -> list[Older]:
    """Each rank once."""
    found: dict[int, Older] = {}
    for group, ranks in standings.items():
        for than, standing in ranks.items():
            completed = [call for call in standing.calls.values() if _was_common(call)]
            if not completed:
                continue
            last = max(completed, key=lambda call: call.sequence)
            for rank, other in ranks.items():
                if other.enqueued < last.sequence:
                    found.setdefault(rank, Older(rank, than, last, group))
    return [older for _, older in sorted(found.items())]


def longest_wait_seconds(dumps: Sequence[FlightDump]) -> float | None:
    """Of the calls that were open when a dump was written; None where it is not known of any."""
    return max(_waits(dumps), default=None)


def _waits(dumps: Iterable[FlightDump]) -> Iterator[float]:
    for dump in dumps:
        for call in dump.operations:
            if not call.is_done and call.created_ns is not None and dump.written_ns is not None:
                yield (dump.written_ns - call.created_ns) / _NS


def _was_common(call: Operation) -> bool:
    """Whether it is sure that it ended, and that all members had a part in it; none has in what is empty."""
    sizes = call.input_sizes or call.output_sizes
    has_part = not sizes or any(prod(shape) for shape in sizes)
    return call.is_done and not call.is_given_up and has_part and call.name.startswith(_ALL_WAIT)
