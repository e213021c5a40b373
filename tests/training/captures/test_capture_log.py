"""Capture log: ranks that request at the same time end up with one list."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from stepscope.core.protocol.captures import CaptureRequest
from stepscope.training.captures.coordinator import CaptureLog

torch = pytest.importorskip("torch")


def _learn_nothing(_: CaptureRequest) -> None:
    """For who wants only what the log does."""


@pytest.mark.parametrize("kind", ["hash", "file", "tcp"])
def test_one_proposal_of_each_request_counts_and_all_read_one_order(tmp_path: Path, kind: str) -> None:
    distributed = torch.distributed
    if kind == "hash":
        store = distributed.HashStore()
        stores = [store] * 4
    elif kind == "file":
        stores = [distributed.FileStore(str(tmp_path / "store"), 4) for _ in range(4)]
    else:
        server = distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        stores = [server, *(distributed.TCPStore("127.0.0.1", server.port, is_master=False) for _ in range(3))]
    learnt: list[list[CaptureRequest]] = [[] for _ in range(4)]

    def ask(rank: int) -> None:
        log = CaptureLog(distributed.PrefixStore("attempt", stores[rank]), "stepscope/captures/r/0")
        for name in "ab" if rank % 2 else "ba":
            request = CaptureRequest(name, 3, ranks=(0, 1, 2, 3))
            if name not in {entry.id for entry in learnt[rank]}:
                log.append(name, lambda: replace(request, start_step=100 + rank), learnt[rank].append)  # noqa: B023
        log.read(learnt[rank].append)

    threads = [threading.Thread(target=ask, args=(rank,)) for rank in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {entry.id for entry in learnt[0]} == {"a", "b"}
    assert learnt == [learnt[0]] * 4
    assert all(entry.start_step in range(100, 104) and entry.ranks == (0, 1, 2, 3) for entry in learnt[0])


def test_a_proposal_is_made_again_after_what_others_have_written() -> None:
    store = torch.distributed.HashStore()
    CaptureLog(store, "p").append("first", lambda: CaptureRequest("first", 3, start_step=10), _learn_nothing)
    known: list[CaptureRequest] = []

    def propose() -> CaptureRequest | None:
        return CaptureRequest("second", 3, start_step=20 if known else 10)

    CaptureLog(store, "p").append("second", propose, known.append)
    assert [(entry.id, entry.start_step) for entry in known] == [("first", 10), ("second", 20)]
    CaptureLog(store, "p").append("third", lambda: None, known.append)
    assert len(known) == 2


def test_foreign_content_is_an_error_and_so_is_a_list_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    store = torch.distributed.HashStore()
    store.set("p/0", '{"type":"bye"}')
    with pytest.raises(ValueError, match="no capture at p/0"):
        CaptureLog(store, "p").read(_learn_nothing)
    store.set("q/0", "x")
    with pytest.raises(ValueError, match="not JSON"):
        CaptureLog(store, "q").read(_learn_nothing)
    monkeypatch.setattr("stepscope.training.captures.coordinator._MAX_ENTRIES", 1)
    log = CaptureLog(store, "r")
    log.append("a", lambda: CaptureRequest("a", 3, start_step=10), _learn_nothing)
    with pytest.raises(RuntimeError, match="room for no more"):
        log.append("b", lambda: CaptureRequest("b", 3, start_step=20), _learn_nothing)
