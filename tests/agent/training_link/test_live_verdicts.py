"""Live verdicts on the training socket: each of its own run and user, the newest, as document and as metrics."""

from __future__ import annotations

import os
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from stepscope.agent.training_link.connection import ConnectionEndedError, TrainingConnection, TrainingPeer
from stepscope.agent.training_link.server import TrainingServer
from stepscope.agent.training_link.training_source import TrainingSource
from stepscope.core.documents.node import RunVerdict, run_verdicts
from stepscope.core.protocol.messages import encode_message
from stepscope.core.protocol.verdicts import MAX_RANKS, MAX_REASONS, MAX_SUMMARY, LiveVerdict
from tests.agent.training_link.conftest import Process, hello, wait_until
from tests.agent.training_link.test_other_users import introduced, user

Connect = Callable[[], Process]

VERDICT = LiveVerdict(
    "r", 10**18, "data_loading", 0.9, "Data loading: 40.0%", ("starved",), (1,), True, 0.4, 100.0, 60.0, 50
)


def _of(server: TrainingServer) -> dict[str, RunVerdict]:
    return {one.verdict.run: one for one in run_verdicts(server.ranks())}


def _series(server: TrainingServer) -> dict[tuple[str, str, str], float]:
    return {
        (one.metric.removeprefix("stepscope_training_"), dict(one.labels)["run"], dict(one.labels).get("cause", "")): (
            one.value
        )
        for one in TrainingSource(server, wall_clock_ns=lambda: 10**18 + 5 * 10**9).collect().readings
        if "verdict" in one.metric or "bottleneck" in one.metric
    }


def test_the_newest_of_a_run_is_shown_until_its_processes_are_gone(server: TrainingServer, connect: Connect) -> None:
    ranks = [connect(), connect()]
    for rank, process in enumerate(ranks):
        process.say(hello(rank))
    ranks[0].say(VERDICT)
    wait_until(lambda: len(server.ranks()) == 2 and bool(_of(server)))
    assert _of(server)["r"] == RunVerdict(VERDICT, os.getuid(), (os.getpid(), os.getpid()))
    assert _series(server) == {
        ("bottleneck_ratio", "r", "data_loading"): 0.4,
        ("verdict_age_seconds", "r", ""): 5.0,
    }
    ranks[1].say(replace(VERDICT, time_ns=VERDICT.time_ns + 1, cause="words_of_a_newer_version"))
    wait_until(lambda: _of(server)["r"].verdict.time_ns > VERDICT.time_ns)
    assert ("bottleneck_ratio", "r", "other") in _series(server)
    ranks[1].say(replace(VERDICT, time_ns=VERDICT.time_ns + 2, cause="compute_bound", bottleneck=False, share=None))
    wait_until(lambda: _series(server).get(("bottleneck_ratio", "r", "compute_bound")) == 0.0)
    ranks[1].say(replace(VERDICT, time_ns=VERDICT.time_ns + 3, cause="insufficient_evidence", bottleneck=None))
    wait_until(lambda: _series(server).keys() == {("verdict_age_seconds", "r", "")})
    for process in ranks:
        process.socket.close()
    wait_until(lambda: not _of(server))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start processes of other users")
def test_another_user_speaks_of_no_run_but_its_own(server: TrainingServer, connect: Connect, place: Path) -> None:
    ours = connect()
    ours.say(hello())
    ours.say(VERDICT)
    wait_until(lambda: bool(_of(server)))
    lie = replace(VERDICT, time_ns=VERDICT.time_ns + 1, cause="straggler")
    with user(place, 64001, introduced(), encode_message(lie)):
        wait_until(lambda: len(_of(server)) == 2)
        assert (_of(server)["r"].verdict.cause, _of(server)["r"].uid) == ("data_loading", os.getuid())
        assert (_of(server)["64001:r"].verdict.cause, _of(server)["64001:r"].uid) == ("straggler", 64001)


def _connection() -> TrainingConnection:
    connection = TrainingConnection(TrainingPeer(1, 0), 0.0)
    connection.receive(encode_message(hello()), 0.0)
    return connection


def test_of_another_run_it_is_refused_and_an_old_one_is_forgotten() -> None:
    connection = _connection()
    connection.receive(encode_message(replace(VERDICT, run="theirs")), 1.0)
    rank = connection.rank(1.0)
    assert rank is not None
    assert rank.verdict is None
    connection.receive(encode_message(VERDICT), 1.0)
    assert [one.verdict for at in (3600.0, 3602.0) if (one := connection.rank(at))] == [VERDICT, None]
    with pytest.raises(ConnectionEndedError, match="another run"):
        connection.receive(encode_message(replace(VERDICT, run="theirs")) * 2, 2.0)


def test_a_thousand_runs_take_bounded_memory() -> None:
    largest = LiveVerdict("r", 1, "c" * 200, 1.0, "s" * MAX_SUMMARY, ("w" * 200,) * MAX_REASONS, (1 << 23,) * MAX_RANKS)
    line = encode_message(largest)
    tracemalloc.start()
    connections = [_connection() for _ in range(1000)]
    before, _ = tracemalloc.get_traced_memory()
    for number in range(3):
        for connection in connections:
            connection.receive(line, float(number))
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert after - before < 12 << 20
