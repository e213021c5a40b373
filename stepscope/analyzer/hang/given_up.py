"""Which calls that a recorder no longer tracks had not ended after all?

gloo says of a call that timed out what it says of one that completed. But none can complete a collective that a member
has not called: what is given up beyond the slowest member's last call is still open. Of a member without a dump it is
not known what it called: there the last call that all others share is open. A root's part in a broadcast is an
exception: it may end before anybody else comes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from stepscope.analyzer.hang.standings import standings_of
from stepscope.core.flight_recorder import FlightDump, Operation

_ENDS_ALONE = frozenset(["broadcast", "scatter", "gather", "reduce"])


def with_timeouts_open(dumps: Sequence[FlightDump], world_size: int) -> list[FlightDump]:
    """The dumps, in which calls are open again that cannot have completed."""
    called_by_all = {
        (rank, group.name): min(standing.enqueued for standing in ranks.values()) - (len(ranks) < len(group.members))
        for group, ranks in standings_of(dumps, world_size).items()
        for rank in ranks
    }

    def reopened(rank: int, call: Operation) -> Operation:
        is_false = call.is_given_up and not call.is_p2p and call.name not in _ENDS_ALONE
        if is_false and call.sequence > called_by_all[rank, call.group]:
            return replace(call, is_done=False)
        return call

    return [replace(dump, operations=tuple(reopened(dump.rank, call) for call in dump.operations)) for dump in dumps]
