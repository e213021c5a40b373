"""Which calls that a recorder no longer tracks had not ended after all?

gloo says of a call that timed out what it says of one that completed, and NCCL that it did. But none can complete a
collective that a member has not called: what is given up beyond the slowest member's last call is still open. Of a
member without a dump it is not known what it called: there the last call that all others share is open. What one member
still has open no other has completed. A root's part in a broadcast is an exception: it may end before anybody comes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from stepscope.analyzer.hang.standings import newest_ids, standings_of
from stepscope.core.flight_recorder import FlightDump, Operation

_ENDS_ALONE = frozenset(["broadcast", "scatter", "gather", "reduce"])


def with_timeouts_open(dumps: Sequence[FlightDump], world_size: int) -> list[FlightDump]:
    """The dumps, in which calls are open again that cannot have completed."""
    if not any(call.is_given_up for dump in dumps for call in dump.operations):
        return list(dumps)
    first_open: dict[tuple[int, str], int] = {}
    for group, ranks in standings_of(dumps, world_size).items():
        called_by_all = min(standing.enqueued for standing in ranks.values()) - (len(ranks) < len(group.members))
        still_open = min((standing.first_open for standing in ranks.values()), default=called_by_all)
        for rank in ranks:
            first_open[rank, group.name] = min(called_by_all + 1, still_open)

    def reopened(dump: FlightDump) -> FlightDump:
        newest = newest_ids(dump)  # an older group of the same name counts its calls for itself

        def is_open(call: Operation) -> bool:
            needs_all = not call.is_p2p and call.name not in _ENDS_ALONE
            is_false = call.is_given_up and needs_all and call.group_id == newest[call.group]
            return is_false and call.sequence >= first_open[dump.rank, call.group]

        calls = (replace(call, is_done=False) if is_open(call) else call for call in dump.operations)
        return replace(dump, operations=tuple(calls))

    return [reopened(dump) for dump in dumps]
