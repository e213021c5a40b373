"""Kineto processes: identity, time of the first request, and how long a silent process stays known."""

from __future__ import annotations

from stepscope.collectors.kineto_daemon.processes import KinetoPeer, KinetoRegistry
from stepscope.collectors.kineto_daemon.protocol import KinetoPoll

PEER = KinetoPeer(100, 1000, 1000)


def test_polls_are_counted_and_their_interval_is_learnt() -> None:
    registry = KinetoRegistry()
    registry.record("/s/a", PEER, KinetoPoll(True, 77, (100, 90, 1)), 10.0)
    seen = registry.record("/s/a", PEER, KinetoPoll(False, 77, (100, 90, 1)), 15.1)
    assert seen is not None
    assert (seen.num_polls, seen.accepts, seen.job_id, seen.ancestors) == (2, False, 77, (90, 1))
    assert abs(seen.next_poll - 20.2) < 1e-9
    assert registry.processes(16.0) == (seen,)


def test_no_slurm_job_is_none_and_another_namespace_is_noticed() -> None:
    seen = KinetoRegistry().record("/s/a", PEER, KinetoPoll(True, 0, (7, 1)), 10.0)
    assert seen is not None
    assert seen.job_id is None
    assert seen.ancestors_in_our_namespace == ()


def test_silent_processes_are_dropped_after_a_minute() -> None:
    registry = KinetoRegistry()
    registry.record("/s/a", PEER, KinetoPoll(True, 0, (100,)), 10.0)
    registry.record("/s/b", PEER, KinetoPoll(True, 0, (101,)), 60.0)
    assert [one.address for one in registry.processes(70.0)] == ["/s/a", "/s/b"]
    assert [one.address for one in registry.processes(70.1)] == ["/s/b"]


def test_one_users_flood_pushes_nobody_out() -> None:
    registry = KinetoRegistry()
    registry.record("/s/real", PEER, KinetoPoll(True, 0, (100,)), 0.0)
    flood = KinetoPeer(5, 666, 666)
    known = [registry.record(f"/s/{number}", flood, KinetoPoll(True, 0, (5,)), 1.0) for number in range(3000)]
    assert sum(one is not None for one in known) == 1024
    assert registry.record("/s/other", KinetoPeer(101, 1000, 1000), KinetoPoll(True, 0, (101,)), 1.0) is not None
    assert len(registry.processes(2.0)) == 1026
    registry.forget("/s/0")
    assert registry.record("/s/new", flood, KinetoPoll(True, 0, (5,)), 2.0) is not None


def test_the_name_of_a_process_that_ended_gives_nobody_its_user() -> None:
    registry = KinetoRegistry()
    registry.record("/s/a", PEER, KinetoPoll(True, 77, (100,)), 0.0)
    taken = registry.record("/s/a", KinetoPeer(5, 666, 666), KinetoPoll(True, 77, (100,)), 1.0)
    assert taken is not None
    assert (taken.peer.uid, taken.num_polls) == (666, 1)
    assert registry.processes(2.0) == (taken,)
