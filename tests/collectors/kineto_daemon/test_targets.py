"""Which processes are trainers, and whose trace is which rank's?"""

from __future__ import annotations

from pathlib import Path

import pytest

from stepscope.collectors.kineto_daemon import targets as module
from stepscope.collectors.kineto_daemon.environment import JobPlace, parse_environ, place_in
from stepscope.collectors.kineto_daemon.keeping import next_capture, run_name
from stepscope.collectors.kineto_daemon.registry import KinetoProcess, Peer
from stepscope.collectors.kineto_daemon.targets import Target, Targets, key_of, ranks_to_keep


def process(pid: int, *, ancestors: tuple[int, ...] = (1,), job_id: int | None = None, inner: int = 0) -> KinetoProcess:
    address = f"/s/dynoconfigclient{pid:08x}-aaaa"
    return KinetoProcess(address, Peer(pid, 1000, 1000), inner or pid, ancestors, job_id, 0.0, 0.0, 1, True)


def target(pid: int, rank: int | None) -> Target:
    one = process(pid)
    return Target(key_of(one), one, JobPlace(rank), "run", Path("/runs/run"))


def test_a_key_lives_as_long_as_the_process_and_holds_no_odd_letters() -> None:
    assert key_of(process(10)) == "kineto-0000000a-aaaa"
    odd = KinetoProcess(b"\0dynoconfigclient../x\n\0", Peer(1, 0, 0), 1, (), None, 0.0, 0.0, 1, True)
    assert key_of(odd) == "kineto-x"


def test_launchers_above_ranks_are_no_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = {101: 0, 102: 1}
    monkeypatch.setattr(module, "job_place", lambda pid: JobPlace(ranks.get(pid)))
    launcher, *workers = process(100), process(101, ancestors=(100, 1)), process(102, ancestors=(100, 1))
    alone = process(200)
    found = Targets(Path("/runs")).of([launcher, *workers, alone])
    assert [(one.process.peer.pid, one.place.rank) for one in found.values()] == [(101, 0), (102, 1), (200, None)]


def test_ranks_are_the_environments_then_the_traces_then_the_next_that_is_free() -> None:
    taken = [target(10, 2), target(11, None), target(12, None), target(13, 2)]
    in_trace = {one.key: rank for one, rank in zip(taken, (None, 0, None, 2), strict=True)}
    kept = ranks_to_keep(taken, in_trace)
    assert [kept[one.key] for one in taken] == [2, 0, 1, 3]


def test_a_place_is_read_from_an_environment() -> None:
    content = b"WORLD_SIZE=8\0RANK=3\0SLURM_PROCID=5\0TORCHELASTIC_RUN_ID=abc\0bad\0X=\xff\0"
    content += b"KINETO_ONDEMAND_TRACE_DIR=/scratch\0"
    assert place_in(parse_environ(content)) == JobPlace(3, "abc", "/scratch", 8)
    assert place_in({"SLURM_PROCID": "5", "TORCHELASTIC_RUN_ID": "none"}) == JobPlace(5)
    assert place_in({"RANK": "-1", "SLURM_PROCID": "x"}) == JobPlace()


def test_a_run_is_called_alike_by_all_ranks_of_a_job(tmp_path: Path) -> None:
    def start(pid: int, parent: int, ticks: int) -> None:
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "stat").write_text(f"{pid} (py) thon) S {parent} " + "0 " * 17 + f"{ticks} 0")

    start(100, 1, 5000)
    start(101, 100, 5001)
    start(102, 100, 5002)

    def name(pid: int, rank: int | None, job_id: int | None = None, run_id: str | None = None) -> str:
        return run_name(process(pid, job_id=job_id), rank=rank, run_id=run_id, proc=tmp_path)

    assert name(101, 0) == name(102, 1) == "pid-100-5000"
    assert name(101, None) == "pid-101-5001"
    assert name(101, 0, job_id=77) == "slurm-77"
    assert name(101, 0, run_id="../a b") == "torchrun-___a_b"
    assert name(999, 0) == "pid-999-0"


def test_captures_of_a_run_are_counted(tmp_path: Path) -> None:
    assert [next_capture(tmp_path / "run") for _ in range(3)] == [0, 1, 2]
    (tmp_path / "run/traces/step41-attempt2").mkdir()
    assert next_capture(tmp_path / "run") == 42
