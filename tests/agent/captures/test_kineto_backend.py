"""Kineto backend in the agent's terms: rejected requests, meaning of process ids, samples on /metrics."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from stepscope.collectors.kineto_daemon import backend as backend_module
from stepscope.collectors.kineto_daemon import processes
from stepscope.collectors.kineto_daemon.backend import KinetoBackend, KinetoSource
from stepscope.collectors.kineto_daemon.processes import JobPlace
from stepscope.core.errors import UsageError
from stepscope.core.metrics.readings import MissingReason
from stepscope.core.protocol.captures import Alignment, CaptureRequest, CaptureState, CaptureUpdate
from tests.collectors.kineto_daemon.libkineto import Libkineto


@pytest.fixture
def backend(tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[KinetoBackend]:
    monkeypatch.setattr(backend_module, "_GATHERING_SECONDS", 0.0)
    with KinetoBackend(tmp_path / "runs", socket_folder=str(place.parent)) as backend:
        yield backend


@contextmanager
def asking(backend: KinetoBackend, *clients: Libkineto) -> Iterator[tuple[str, ...]]:
    with ExitStack() as stack:
        for client in clients:
            stack.callback(client.close)
            client.start(0.2)
        wait_for(lambda: len(backend.targets()) == len(clients))
        yield tuple(target.key for target in backend.targets())


def wait_for(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.02)


def final(backend: KinetoBackend, count: int) -> Sequence[CaptureUpdate]:
    updates: list[CaptureUpdate] = []

    def are_there() -> bool:
        updates.extend(one for one in backend.updates() if one.progress.state.is_final)
        return len(updates) == count

    wait_for(are_there)
    return updates


def test_a_process_is_captured_and_its_trace_named(backend: KinetoBackend, place: Path, tmp_path: Path) -> None:
    with asking(backend, Libkineto(backend.server.address, place.parent, job_id=77)) as keys:
        (target,) = backend.targets()
        assert (target.backend, target.pid, target.uid) == ("kineto", os.getpid(), os.getuid())
        assert (target.rank, target.run, target.job) == (0, "slurm-77", "77")
        assert target.run_directory == str(tmp_path / "runs/slurm-77")
        backend.request(CaptureRequest("one", 3), [*keys, "a key of another back end"])
        (said,) = final(backend, 1)
        trace = tmp_path / "runs/slurm-77/traces/step0/rank0.json.gz"
        assert (said.key, said.progress.state, said.progress.path) == (keys[0], CaptureState.DONE, str(trace))
        assert (said.progress.steps, said.progress.start_step, said.progress.aligned_by) == (3, None, Alignment.STEP)
        assert said.progress.bytes == trace.stat().st_size
        backend.cancel("one", ["a key of another back end"])
        backend.cancel("one", keys)  # too late: it is told again
        assert final(backend, 1) == [said]


def test_what_libkineto_cannot_do_is_refused(backend: KinetoBackend, place: Path) -> None:
    with asking(backend, Libkineto(backend.server.address, place.parent)) as keys:
        backend.request(CaptureRequest("one", 3, start_step=100), keys)
        backend.request(CaptureRequest("two", 3, max_overhead=0.5), keys)
        assert {said.progress.state for said in final(backend, 2)} == {CaptureState.REFUSED}
        past = time.time_ns() - 10**9
        backend.request(CaptureRequest("three", 3, deadline_unix_ns=past), keys)
        (said,) = final(backend, 1)
        assert (said.progress.state, said.progress.reason) == (
            CaptureState.FAILED,
            "given up: it has not been asked yet",
        )


def test_a_process_id_means_the_processes_below_it(backend: KinetoBackend, place: Path) -> None:
    alone = Libkineto(backend.server.address, place.parent)
    of_slurm = Libkineto(backend.server.address, place.parent, job_id=os.getppid())
    with asking(backend, alone):
        assert backend.pids_of_job(str(os.getpid())) == {os.getpid()}
        assert backend.pids_of_job(str(os.getppid())) == ({os.getpid()} if os.getppid() > 1 else set())
        for name in ("1", "0", "4711-12", "²", "gpt", ""):
            assert backend.pids_of_job(name) == frozenset()
        in_container = Libkineto(backend.server.address, place.parent, pid=1)
        in_container.ask()
        wait_for(lambda: len(backend.targets()) == 2)
        assert backend.pids_of_job(str(os.getpid())) == {os.getpid()}
        in_container.close()
        of_slurm.ask()
        wait_for(lambda: len(backend.targets()) == 3)
        assert backend.pids_of_job(str(os.getppid())) == frozenset()  # it is the number of a Slurm job as well
    of_slurm.close()


def test_ranks_that_begin_to_ask_are_there_together(
    backend: KinetoBackend, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_two = JobPlace(rank=0, world_size=4, local_size=2)
    monkeypatch.setattr(processes, "job_place", lambda *_: of_two)
    ranks = [Libkineto(backend.server.address, place.parent, job_id=77) for _ in range(2)]
    late = Libkineto(backend.server.address, place.parent, job_id=78)
    for client in (late, ranks[0]):
        client.ask()
    wait_for(lambda: len(backend._targets) == 2)
    assert backend.targets() == []  # each is the first of two
    ranks[1].ask()
    wait_for(lambda: [target.run for target in backend.targets()] == ["slurm-77"] * 2)
    for _ in range(2):
        late.ask()
    wait_for(lambda: len(backend.targets()) == 3)  # the other of its job has not come in time
    for client in (*ranks, late):
        client.close()


def test_the_page_counts_processes_and_says_who_cannot_be_answered(backend: KinetoBackend, place: Path) -> None:
    other = place.parent / "other"
    other.symlink_to(place.parent)
    source = KinetoSource(backend, wall_clock_ns=lambda: 5)
    with asking(backend, Libkineto(backend.server.address, place.parent)):
        stranger = Libkineto(backend.server.address, other)
        stranger._socket.settimeout(0.1)
        with pytest.raises(TimeoutError):
            stranger.ask()
        stranger.close()
        collection = source.collect()
    values = {reading.metric: reading.value for reading in collection.readings}
    assert values == {
        "stepscope_agent_kineto_processes": 1.0,
        "stepscope_agent_kineto_rejected_total": 0.0,
        "stepscope_agent_kineto_refused_total": 0.0,
    }
    (finding,) = collection.findings
    assert f"KINETO_IPC_SOCKET_DIR={other}" in finding.message


@pytest.mark.usefixtures("backend")
def test_an_agent_beside_dynolog_goes_on_unless_its_socket_was_asked_for(tmp_path: Path, place: Path) -> None:
    folder = str(place.parent)
    with pytest.raises(UsageError, match="another daemon"), KinetoBackend(tmp_path, socket_folder=folder):
        pass
    with KinetoBackend(tmp_path, socket_folder=folder, is_required=False) as second:
        assert second.targets() == []
        (missing,) = KinetoSource(second).collect().missing
        assert missing.reason is MissingReason.TAKEN
        assert missing.detail.endswith(
            "another daemon answers PyTorch processes there; "
            "stop it (dynolog or another stepscope agent), or set kineto.enabled = false"
        )


def test_an_agent_that_ends_takes_no_address(tmp_path: Path, place: Path) -> None:
    folder = str(place.parent)
    with KinetoBackend(tmp_path / "first", socket_folder=folder), ExitStack() as ending:
        second = ending.enter_context(KinetoBackend(tmp_path, socket_folder=folder, is_required=False))
        assert second.why_closed is not None
    second.try_again()
    assert second.server.is_free()


def test_an_address_that_was_taken_is_tried_again(
    tmp_path: Path, place: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend_module, "_GATHERING_SECONDS", 0.0)
    now = [100.0]
    first = ExitStack()
    first.enter_context(KinetoBackend(tmp_path / "first", socket_folder=str(place.parent)))
    with first, KinetoBackend(tmp_path, socket_folder=str(place.parent), is_required=False) as second:
        source = KinetoSource(second, clock=lambda: now[0])

        def missing(looks: int) -> list[bool]:
            told = []
            for _ in range(looks):
                now[0] += 31
                told.append(bool(source.collect().missing))
            return told

        assert missing(2) == [True] * 2  # it is still taken
        first.close()
        assert missing(4) == [True] * 4
        with KinetoBackend(tmp_path / "first", socket_folder=str(place.parent)):  # started anew: it finds its place
            assert missing(1) == [True]
        assert missing(4) == [True] * 4
        now[0] += 29
        assert source.collect().missing
        now[0] += 2
        assert not source.collect().missing
        with asking(second, Libkineto(second.server.address, place.parent)):
            assert [one.value for one in source.collect().readings] == [1.0, 0.0, 0.0]
    assert [record.message for record in caplog.records if "from now on" in record.message] == [
        "processes started with KINETO_USE_DAEMON=1 are answered from now on"
    ]
