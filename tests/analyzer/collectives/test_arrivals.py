"""Arrivals: the last rank of each call, and the calls for which it is unknown."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stepscope.analyzer.collectives.arrivals import Arrival, needed_arrivals
from stepscope.analyzer.collectives.calls import Call, CallId, PeerCall, match_calls

US = 1000
SAME = {0: 0, 1: 0}


def call(rank: int, start_us: int, end_us: int, kind: str = "all_reduce") -> Call:
    peers = (PeerCall(0, 1, 0),) if kind in ("send", "recv") else ()
    return Call(rank, start_us * US, end_us * US, 1, (0, 1), kind, 4, peers, True)


def arrivals_of(first: Call, second: Call, island: dict[int, int] = SAME) -> dict[CallId, Arrival]:
    calls = {0: [first], 1: [second]}
    return needed_arrivals(calls, match_calls(calls), island)


def test_a_collective_begins_with_its_last_member() -> None:
    arrivals = arrivals_of(call(0, 0, 100), call(1, 60, 100))
    assert {(a.rank, a.at_ns) for a in arrivals.values()} == {(1, 60 * US)}
    assert len(arrivals) == 2


def test_a_receive_waits_for_its_send_and_a_send_for_its_receive() -> None:
    late_send = arrivals_of(call(0, 60, 100, "send"), call(1, 0, 100, "recv"))
    assert late_send[CallId(1, 0)].at_ns == late_send[CallId(0, 0)].at_ns == 60 * US
    late_receive = arrivals_of(call(0, 0, 100, "send"), call(1, 60, 100, "recv"))
    assert late_receive[CallId(0, 0)].rank == late_receive[CallId(1, 0)].rank == 1


def rooted(rank: int, start_us: int, end_us: int, kind: str, root: int | None) -> Call:
    return replace(call(rank, start_us, end_us, kind), root=root)


def test_the_arrivals_of_rooted_kinds_are_unknown_without_the_root() -> None:
    assert arrivals_of(call(0, 0, 100, "broadcast"), call(1, 60, 100, "broadcast")) == {}
    assert arrivals_of(rooted(0, 0, 100, "broadcast", 0), rooted(1, 60, 100, "broadcast", 1)) == {}, "they disagree"


@pytest.mark.parametrize("kind", ["broadcast", "scatter"])
def test_a_broadcast_needs_its_root_and_the_root_nobody(kind: str) -> None:
    late_root = arrivals_of(rooted(0, 0, 100, kind, 1), rooted(1, 60, 100, kind, 1))
    assert (late_root[CallId(0, 0)].rank, late_root[CallId(0, 0)].at_ns) == (1, 60 * US)
    late_receiver = arrivals_of(rooted(0, 60, 100, kind, 1), rooted(1, 0, 40, kind, None))
    assert (late_receiver[CallId(0, 0)].rank, late_receiver[CallId(0, 0)].at_ns) == (0, 60 * US)
    assert late_receiver[CallId(1, 0)].at_ns == 0, "the root does not wait for a late receiver"


@pytest.mark.parametrize("kind", ["reduce", "gather"])
def test_only_the_root_of_a_reduction_waits(kind: str) -> None:
    arrivals = arrivals_of(rooted(0, 0, 100, kind, 0), rooted(1, 60, 80, kind, 0))
    assert (arrivals[CallId(0, 0)].rank, arrivals[CallId(0, 0)].at_ns) == (1, 60 * US)
    early = arrivals_of(rooted(0, 0, 20, kind, 1), rooted(1, 60, 100, kind, 1))
    assert (early[CallId(0, 0)].rank, early[CallId(0, 0)].at_ns) == (0, 0), "it left its part and went on"


def test_clocks_that_nothing_ties_together_tell_no_arrivals_of_messages_and_rooted_kinds() -> None:
    apart = {0: 0, 1: 1}
    assert arrivals_of(call(0, 0, 100, "send"), call(1, 60, 100, "recv"), apart) == {}
    assert arrivals_of(rooted(0, 0, 100, "broadcast", 0), rooted(1, 60, 100, "broadcast", 0), apart) == {}


def test_without_clocks_what_a_member_stays_longer_than_the_shortest_is_waiting() -> None:
    arrivals = arrivals_of(call(0, 0, 100), call(1, 7060, 7100), {0: 0, 1: 1})
    assert (arrivals[CallId(0, 0)].rank, arrivals[CallId(0, 0)].at_ns) == (1, 60 * US)
    assert (arrivals[CallId(1, 0)].rank, arrivals[CallId(1, 0)].at_ns) == (1, 7060 * US)


def test_calls_that_cannot_have_met_were_matched_wrongly() -> None:
    assert arrivals_of(call(0, 0, 100), call(1, 200, 300)) == {}
    assert CallId(1, 0) not in arrivals_of(call(0, 200, 300, "send"), call(1, 0, 100, "recv"))
