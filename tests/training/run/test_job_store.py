"""Job store: found, and connected by a connection of our own."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from stepscope.training.run.identity import job_store, own_store_connection

torch = pytest.importorskip("torch")


def test_there_is_none_before_torch_distributed_is_initialised() -> None:
    assert job_store() is None


@pytest.mark.usefixtures("one_rank_group")
def test_what_one_connection_writes_the_other_reads() -> None:
    store = job_store()
    own = own_store_connection(store, timedelta(seconds=3))
    own.set("stepscope/test", "x")
    assert store.get("stepscope/test") == b"x"


def test_patience_is_the_own_connections_alone() -> None:
    server = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    store = torch.distributed.PrefixStore("attempt_0", server)
    own = own_store_connection(store, timedelta(seconds=1))
    assert own.timeout == timedelta(seconds=1)
    assert store.timeout > timedelta(seconds=1)
    own.set("a", "1")
    assert store.get("a") == b"1"


def test_a_store_of_a_torch_that_cannot_clone_is_used_itself(tmp_path: Path) -> None:
    class Old:
        folder = tmp_path

    old = Old()
    assert own_store_connection(old, timedelta(seconds=1)) is old


@pytest.mark.usefixtures("one_rank_group")
def test_what_ranks_wrote_before_a_restart_is_not_read_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """torchrun's store outlives its ranks."""
    job_store().set("stepscope/test", "of the first start")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert not job_store().check(["stepscope/test"])
    job_store().set("stepscope/test", "of the second")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "0")
    assert job_store().get("stepscope/test") == b"of the first start"
