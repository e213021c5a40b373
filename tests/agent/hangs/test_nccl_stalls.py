"""NCCL's RAS service is queried as its own client does; communicators without progress are reported."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from stepscope.agent.hangs.hang_detection import NcclRasSource, StallHistory
from stepscope.collectors.nccl.rank_status import ask_ras, read_ras
from stepscope.core.documents.node import TrainingRank
from stepscope.core.errors import DataError
from stepscope.core.metrics.readings import MissingReason
from stepscope.core.protocol.messages import Heartbeat, Hello

_TEXT = """  #0-0 (27a079b828ff1a75) MISMATCH
    Communicator ranks have different collective operation counts
    26 ranks have launched up to operation 6650
    1 rank has launched up to operation 6649
    Rank 3 -- GPU 0 managed by process 483072 on node 10.0.0.210
"""


def _answer(*counts: int, missing: int | None = None) -> str:
    ranks = [
        {"rank": rank, "host": "h", "pid": 1000 + rank, "status": {}, "collective_counts": {"AllReduce": count}}
        for rank, count in enumerate(counts)
    ]
    gone = [] if missing is None else [{"rank": missing, "host": "h", "pid": 1, "status": {"considered_dead": True}}]
    return json.dumps({"communicators": [{"hash": "0xa", "size": 4, "ranks": ranks, "missing_ranks": gone}]})


class _Ras:
    """A service that speaks as NCCL's does."""

    def __init__(self) -> None:
        self.answer = _answer(5, 5)
        self.greeting = b"SERVER PROTOCOL 2\n"
        self.knows_json = True
        self.heard: list[str] = []
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self._listening.getsockname()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while True:
            connection, _ = self._listening.accept()
            with connection, connection.makefile("rwb", buffering=0) as stream:
                for line in iter(stream.readline, b""):
                    self.heard.append(line.decode().strip())
                    if self.heard[-1] == "END":
                        return
                    if self.heard[-1] == "VERBOSE STATUS":
                        stream.write(self.answer.encode())
                        break
                    is_greeting = self.heard[-1].startswith("CLIENT")
                    is_known = self.knows_json or not self.heard[-1].startswith("SET")
                    stream.write(self.greeting if is_greeting else b"OK\n" if is_known else b"ERROR: Unknown command\n")

    def close(self) -> None:
        with socket.create_connection(self.address) as last:
            last.sendall(b"END\n")
        self._thread.join()
        self._listening.close()


@pytest.fixture
def ras() -> Iterator[_Ras]:
    service = _Ras()
    yield service
    service.close()


def test_it_is_asked_for_json_as_the_client_of_nccl_does(ras: _Ras) -> None:
    assert read_ras(ask_ras(ras.address), file="f").communicators[0].size == 4
    assert ras.heard == ["CLIENT PROTOCOL 2", "TIMEOUT 2", "SET FORMAT json", "VERBOSE STATUS"]


def test_one_that_knows_text_alone_is_read_too(ras: _Ras) -> None:
    ras.knows_json, ras.answer = False, _TEXT
    assert read_ras(ask_ras(ras.address), file="f").communicators[0].groups[-1].ranks == (3,)


def test_whoever_else_listens_there_is_said_to_be_no_ras(ras: _Ras) -> None:
    ras.greeting = b"HTTP/1.1 400 Bad Request\n"
    with pytest.raises(DataError, match="is not NCCL's RAS service"):
        ask_ras(ras.address)
    (missing,) = NcclRasSource(ras.address, tuple).collect().missing
    assert missing.reason is MissingReason.UNREADABLE


def test_that_nobody_listens_is_no_fault() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = free.getsockname()
    collection = NcclRasSource(address, tuple).collect()
    assert (collection.readings, collection.missing) == ((), ())


def test_ranks_that_stand_at_different_counts_are_told_of_and_not_while_one_is_in_a_phase(ras: _Ras) -> None:
    now, ranks = [0.0], [_rank()]
    source = NcclRasSource(ras.address, lambda: ranks, clock=lambda: now[0], wall_clock_ns=lambda: 1)

    def told(seconds: float) -> list[dict[str, str]]:
        now[0] += seconds
        return [dict(reading.labels) for reading in source.collect().readings]

    ras.answer = _answer(7, 6, 7)
    assert [told(5.0) for _ in range(3)] == [[], [], []]
    assert told(5.0) == [{"run": "r", "communicator": "0xa"}]
    ranks[:] = [_rank(doing="checkpoint")]
    assert told(5.0) == []
    ranks[:] = []
    assert told(5.0) == [{"run": "", "communicator": "0xa"}]
    ras.answer = _answer(8, 7, 8)
    assert told(5.0) == []


def test_even_counts_and_counts_that_move_are_no_standing_still() -> None:
    stalled = StallHistory()
    for now, answer in enumerate([_answer(5, 5), _answer(5, 5), _answer(6, 5), _answer(7, 6)]):
        assert stalled.observe(read_ras(answer, file="f"), float(now)) == []


def test_a_rank_that_is_dead_is_behind() -> None:
    stalled = StallHistory()
    answer = read_ras(_answer(5, 5, missing=3), file="f")
    assert stalled.observe(answer, 1.0) == []
    (found,) = stalled.observe(answer, 6.0)
    assert (found.ranks, found.seconds) == ((3,), 5.0)


def _rank(**fields: Any) -> TrainingRank:
    hello = Hello("r", "/runs/r", 0, 0, 2, 1001, "h", 1)
    return TrainingRank("k", hello, Heartbeat(50.0, **fields), 1001, 0, 1.0)
