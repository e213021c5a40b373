"""From a request to files in a run, over real sockets and files; the processes speak as libkineto does."""

from __future__ import annotations

import gzip
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from stepscope.collectors.kineto_daemon import backend as backend_module
from stepscope.collectors.kineto_daemon import trace_files
from stepscope.collectors.kineto_daemon.backend import BEGUN, GONE, TAKEN, UNKNOWN, KinetoBackend
from stepscope.collectors.kineto_daemon.processes import KinetoTargets
from stepscope.core.protocol.captures import Alignment, CaptureProgress, CaptureRequest, CaptureState
from tests.collectors.kineto_daemon.libkineto import Libkineto, trace_text

POLL_SECONDS = 0.3


@pytest.fixture(autouse=True)
def traces_in_a_folder_of_the_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(trace_files, "DEFAULT_FOLDER", str(folder))
    return folder


@contextmanager
def asking(backend: KinetoBackend, *clients: Libkineto) -> Iterator[tuple[str, ...]]:
    try:
        for client in clients:
            client.start(POLL_SECONDS)
        wait_for(lambda: len(backend._targets) == len(clients))
        yield tuple(backend._targets)
    finally:
        for client in clients:
            client.close()


def wait_for(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.02)


def final(backend: KinetoBackend, count: int) -> dict[str, CaptureProgress]:
    told: dict[str, CaptureProgress] = {}

    def is_told() -> bool:
        told.update({one.key: one.progress for one in backend.updates() if one.progress.state.is_final})
        return len(told) == count

    wait_for(is_told)
    return told


def test_a_young_process_is_captured_on_the_first_request(
    tmp_path: Path, socket_folder: Path, traces_in_a_folder_of_the_test: Path
) -> None:
    with KinetoBackend(tmp_path / "runs", socket_folder=str(socket_folder)) as backend:
        client = Libkineto(backend.server.address, socket_folder, job_id=77, rank=5, refuses=2)
        with asking(backend, client) as keys:
            backend.request(CaptureRequest("one", 3), keys)
            (news,) = final(backend, 1).values()
            assert news.state is CaptureState.DONE
            trace = tmp_path / "runs/slurm-77/traces/step0/rank5.json.gz"
            assert news.path == str(trace)
            assert gzip.decompress(trace.read_bytes()).decode() == trace_text(3, rank=5)
            assert news.bytes == trace.stat().st_size
            assert client.num_taken == 1
            backend.request(CaptureRequest("one", 3), keys)  # asked again, it is told again
            assert final(backend, 1)[keys[0]] == news
            backend.request(CaptureRequest("two", 1), keys)
            (news,) = final(backend, 1).values()
            assert news.path == str(tmp_path / "runs/slurm-77/traces/step1/rank5.json.gz")
            assert client.num_taken == 2
    assert list(traces_in_a_folder_of_the_test.iterdir()) == []
    assert [path.name for path in (tmp_path / "runs").rglob(".*")] == []


def test_a_capture_that_cannot_be_seen_to_is_given_up_and_holds_no_other_up(
    tmp_path: Path, socket_folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    advance = KinetoBackend._advance

    def fails_with_bad(self: KinetoBackend, active: Any, processes: Any) -> None:
        if active.request.id == "bad":
            raise RuntimeError("what nobody foresaw")
        advance(self, active, processes)

    monkeypatch.setattr(KinetoBackend, "_advance", fails_with_bad)
    with KinetoBackend(tmp_path / "runs", socket_folder=str(socket_folder)) as backend:
        clients = [Libkineto(backend.server.address, socket_folder, job_id=rank + 7, pid=rank + 1) for rank in (0, 1)]
        with asking(backend, *clients) as keys:
            backend.request(CaptureRequest("bad", 3), keys[:1])
            backend.request(CaptureRequest("good", 3), keys[1:])
            told = final(backend, 2)
            assert told[keys[1]].state is CaptureState.DONE
            assert told[keys[0]].state is CaptureState.FAILED
            assert told[keys[0]].reason == "what nobody foresaw"
            backend.request(CaptureRequest("next", 3), keys[:1])  # nobody has its process any more
            assert final(backend, 1)[keys[0]].state is CaptureState.DONE
    assert sum("what nobody foresaw" in (record.exc_text or "") for record in caplog.records) == 1


def test_after_a_restart_a_capture_has_all_processes_that_come_back(
    tmp_path: Path, socket_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend_module, "_GATHERING_SECONDS", 3.0)
    with KinetoBackend(tmp_path / "runs", socket_folder=str(socket_folder)) as backend:
        clients = [
            Libkineto(backend.server.address, socket_folder, job_id=77, rank=rank, pid=rank + 1) for rank in (0, 1)
        ]
        with asking(backend, *clients) as keys:
            for key in keys:  # the agent asks each as soon as it is there again
                backend.request(CaptureRequest("one", 3), (key,))
            told = final(backend, 2)
            assert {news.aligned_by for news in told.values()} == {Alignment.MULTIPLE}
            backend.request(CaptureRequest("one", 3), ("kineto-late",))
            assert final(backend, 1)["kineto-late"].reason == BEGUN


def test_a_trace_larger_than_allowed_is_not_kept(tmp_path: Path, socket_folder: Path) -> None:
    with KinetoBackend(tmp_path / "runs", socket_folder=str(socket_folder)) as backend:
        client = Libkineto(backend.server.address, socket_folder, job_id=77)
        with asking(backend, client) as keys:
            backend.request(CaptureRequest("one", 3, max_bytes=100), keys)
            (news,) = final(backend, 1).values()
            assert news.reason == "the compressed trace is larger than 100 bytes"
    assert [path for path in (tmp_path / "runs").rglob("*") if path.is_file()] == []


def test_who_is_gone_or_taken_is_refused(tmp_path: Path, socket_folder: Path) -> None:
    with KinetoBackend(tmp_path / "runs", socket_folder=str(socket_folder)) as backend:
        client = Libkineto(backend.server.address, socket_folder, refuses=10**6)
        with asking(backend, client) as keys:
            backend.request(CaptureRequest("one", 3), keys)
            backend.request(CaptureRequest("two", 3), (*keys, "kineto-nobody"))
            told = final(backend, 2)
            assert {key: news.reason for key, news in told.items()} == {keys[0]: TAKEN, "kineto-nobody": GONE}
            backend.cancel("one", keys)
            assert final(backend, 1)[keys[0]].state is CaptureState.CANCELLED
            backend.cancel("of an agent before", keys)
            assert final(backend, 1)[keys[0]].reason == UNKNOWN


def test_runs_that_cannot_be_written_are_told_of(tmp_path: Path, socket_folder: Path) -> None:
    (tmp_path / "runs").write_text("a file")
    with KinetoBackend(tmp_path / "runs", socket_folder=str(socket_folder)) as backend:
        client = Libkineto(backend.server.address, socket_folder, job_id=77)
        with asking(backend, client) as keys:
            backend.request(CaptureRequest("one", 3), keys)
            (news,) = final(backend, 1).values()
            assert news.state is CaptureState.FAILED
            assert str(tmp_path / "runs") in (news.reason or "")


def test_captures_go_on_after_what_nobody_foresaw(
    tmp_path: Path, socket_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, reads = iter([True]), iter([True])
    look_up, compress = KinetoTargets.of, trace_files.compress_kineto_trace

    def of(*arguments: Any) -> Any:
        if next(looks, False):
            raise ValueError("an odd process")
        return look_up(*arguments)

    def compressed(*arguments: Any, **options: Any) -> Any:
        if next(reads, False):
            raise ValueError("an odd trace")
        return compress(*arguments, **options)

    monkeypatch.setattr(KinetoTargets, "of", of)
    monkeypatch.setattr(trace_files, "compress_kineto_trace", compressed)
    with KinetoBackend(tmp_path / "runs", socket_folder=str(socket_folder)) as backend:
        client = Libkineto(backend.server.address, socket_folder, job_id=77)
        with asking(backend, client) as keys:
            backend.request(CaptureRequest("one", 3), keys)
            assert final(backend, 1)[keys[0]].reason == "an odd trace"
            backend.request(CaptureRequest("two", 3), keys)
            assert final(backend, 1)[keys[0]].state is CaptureState.DONE
