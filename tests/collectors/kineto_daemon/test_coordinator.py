"""From a request to files in a run, over real sockets and files; the processes speak as libkineto does."""

from __future__ import annotations

import gzip
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from stepscope.collectors.kineto_daemon import coordinator as desk_module
from stepscope.collectors.kineto_daemon import coordinator as recording_module
from stepscope.collectors.kineto_daemon import trace_files
from stepscope.collectors.kineto_daemon.coordinator import (
    BEGUN,
    GONE,
    TAKEN,
    UNKNOWN,
    KinetoCoordinator,
    KinetoRequest,
    Progress,
)
from stepscope.collectors.kineto_daemon.targets import Targets
from stepscope.core.protocol.messages import AnswerState
from tests.collectors.kineto_daemon.libkineto import Libkineto, trace_text

POLL_SECONDS = 0.3


@pytest.fixture(autouse=True)
def traces_in_a_folder_of_the_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(trace_files, "DEFAULT_FOLDER", str(folder))
    return folder


@contextmanager
def asking(desk: KinetoCoordinator, *clients: Libkineto) -> Iterator[tuple[str, ...]]:
    try:
        for client in clients:
            client.start(POLL_SECONDS)
        wait_for(lambda: len(desk.targets()) == len(clients))
        yield tuple(target.key for target in desk.targets())
    finally:
        for client in clients:
            client.close()


def wait_for(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.02)


def final(desk: KinetoCoordinator, count: int) -> dict[str, Progress]:
    told: dict[str, Progress] = {}

    def is_told() -> bool:
        told.update({one.outcome.key: one for one in desk.news() if one.outcome.state.is_final})
        return len(told) == count

    wait_for(is_told)
    return told


def test_a_young_process_is_captured_on_the_first_request(
    tmp_path: Path, socket_folder: Path, traces_in_a_folder_of_the_test: Path
) -> None:
    with KinetoCoordinator(tmp_path / "runs", socket_folder=str(socket_folder)) as desk:
        client = Libkineto(desk.server.address, socket_folder, job_id=77, rank=5, refuses=2)
        with asking(desk, client) as keys:
            desk.request(KinetoRequest("one", keys, 3))
            (news,) = final(desk, 1).values()
            assert (news.capture_id, news.outcome.state) == ("one", AnswerState.DONE)
            assert news.path == tmp_path / "runs/slurm-77/traces/step0/rank5.json.gz"
            assert gzip.decompress(news.path.read_bytes()).decode() == trace_text(3, rank=5)
            assert news.num_bytes == news.path.stat().st_size
            assert client.num_taken == 1
            desk.request(KinetoRequest("one", keys, 3))  # asked again, it is told again
            assert final(desk, 1)[keys[0]] == news
            desk.request(KinetoRequest("two", keys, 1))
            (news,) = final(desk, 1).values()
            assert news.path == tmp_path / "runs/slurm-77/traces/step1/rank5.json.gz"
            assert client.num_taken == 2
    assert list(traces_in_a_folder_of_the_test.iterdir()) == []
    assert [path.name for path in (tmp_path / "runs").rglob(".*")] == []


def test_a_capture_that_cannot_be_seen_to_is_given_up_and_holds_no_other_up(
    tmp_path: Path, socket_folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    see_to = KinetoCoordinator._see_to

    def fails_with_bad(self: KinetoCoordinator, job: Any, processes: Any) -> None:
        if job.id == "bad":
            raise RuntimeError("what nobody foresaw")
        see_to(self, job, processes)

    monkeypatch.setattr(KinetoCoordinator, "_see_to", fails_with_bad)
    with KinetoCoordinator(tmp_path / "runs", socket_folder=str(socket_folder)) as desk:
        clients = [Libkineto(desk.server.address, socket_folder, job_id=rank + 7, pid=rank + 1) for rank in (0, 1)]
        with asking(desk, *clients) as keys:
            desk.request(KinetoRequest("bad", keys[:1], 3))
            desk.request(KinetoRequest("good", keys[1:], 3))
            told = final(desk, 2)
            assert told[keys[1]].outcome.state is AnswerState.DONE
            assert told[keys[0]].outcome.state is AnswerState.FAILED
            assert told[keys[0]].outcome.reason == "what nobody foresaw"
            desk.request(KinetoRequest("next", keys[:1], 3))  # nobody has its process any more
            assert final(desk, 1)[keys[0]].outcome.state is AnswerState.DONE
    assert sum("what nobody foresaw" in (record.exc_text or "") for record in caplog.records) == 1


def test_after_a_restart_a_capture_has_all_processes_that_come_back(
    tmp_path: Path, socket_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(desk_module, "_GATHERING_SECONDS", 3.0)
    with KinetoCoordinator(tmp_path / "runs", socket_folder=str(socket_folder)) as desk:
        clients = [Libkineto(desk.server.address, socket_folder, job_id=77, rank=rank, pid=rank + 1) for rank in (0, 1)]
        with asking(desk, *clients) as keys:
            for key in keys:  # the agent asks each as soon as it is there again
                desk.request(KinetoRequest("one", (key,), 3))
            told = final(desk, 2)
            assert {news.num_ranks for news in told.values()} == {2}
            desk.request(KinetoRequest("one", ("kineto-late",), 3))
            assert final(desk, 1)["kineto-late"].outcome.reason == BEGUN


def test_a_trace_larger_than_allowed_is_not_kept(tmp_path: Path, socket_folder: Path) -> None:
    with KinetoCoordinator(tmp_path / "runs", socket_folder=str(socket_folder)) as desk:
        client = Libkineto(desk.server.address, socket_folder, job_id=77)
        with asking(desk, client) as keys:
            desk.request(KinetoRequest("one", keys, 3, max_bytes=100))
            (news,) = final(desk, 1).values()
            assert news.outcome.reason == "the compressed trace is larger than 100 bytes"
    assert [path for path in (tmp_path / "runs").rglob("*") if path.is_file()] == []


def test_who_is_gone_or_taken_is_refused(tmp_path: Path, socket_folder: Path) -> None:
    with KinetoCoordinator(tmp_path / "runs", socket_folder=str(socket_folder)) as desk:
        client = Libkineto(desk.server.address, socket_folder, refuses=10**6)
        with asking(desk, client) as keys:
            desk.request(KinetoRequest("one", keys, 3))
            desk.request(KinetoRequest("two", (*keys, "kineto-nobody"), 3))
            told = final(desk, 2)
            assert {key: news.outcome.reason for key, news in told.items()} == {keys[0]: TAKEN, "kineto-nobody": GONE}
            desk.cancel("one", keys)
            assert final(desk, 1)[keys[0]].outcome.state is AnswerState.CANCELLED
            desk.cancel("of an agent before", keys)
            assert final(desk, 1)[keys[0]].outcome.reason == UNKNOWN


def test_runs_that_cannot_be_written_are_told_of(tmp_path: Path, socket_folder: Path) -> None:
    (tmp_path / "runs").write_text("a file")
    with KinetoCoordinator(tmp_path / "runs", socket_folder=str(socket_folder)) as desk:
        client = Libkineto(desk.server.address, socket_folder, job_id=77)
        with asking(desk, client) as keys:
            desk.request(KinetoRequest("one", keys, 3))
            (news,) = final(desk, 1).values()
            assert news.outcome.state is AnswerState.FAILED
            assert str(tmp_path / "runs") in news.outcome.reason


def test_captures_go_on_after_what_nobody_foresaw(
    tmp_path: Path, socket_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, reads = iter([True]), iter([True])
    look_up, compress = Targets.of, trace_files.compress_trace

    def of(*arguments: Any) -> Any:
        if next(looks, False):
            raise ValueError("an odd process")
        return look_up(*arguments)

    def compressed(*arguments: Any, **options: Any) -> Any:
        if next(reads, False):
            raise ValueError("an odd trace")
        return compress(*arguments, **options)

    monkeypatch.setattr(Targets, "of", of)
    monkeypatch.setattr(recording_module, "compress_trace", compressed)
    with KinetoCoordinator(tmp_path / "runs", socket_folder=str(socket_folder)) as desk:
        client = Libkineto(desk.server.address, socket_folder, job_id=77)
        with asking(desk, client) as keys:
            desk.request(KinetoRequest("one", keys, 3))
            assert final(desk, 1)[keys[0]].outcome.reason == "an odd trace"
            desk.request(KinetoRequest("two", keys, 3))
            assert final(desk, 1)[keys[0]].outcome.state is AnswerState.DONE
