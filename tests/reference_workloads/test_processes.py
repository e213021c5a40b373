"""No rank outlives the run, however it ends."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from stepscope.core.errors import DataError, StepscopeError, UnreachableError, UsageError
from stepscope.reference_workloads.job import TrainingJob, TrainingOutcome
from stepscope.reference_workloads.plan import ParallelPlan, find_preset
from stepscope.reference_workloads.processes import run_ranks
from tests.garbage import collected_by_hand
from tests.interrupts import default_interrupt

pytest.importorskip("torch")
if not Path("/proc/self/task").is_dir():
    pytest.skip("looks at /proc", allow_module_level=True)

_COMMAND = [sys.executable, "-m", "stepscope", "workload", "run", "gpt", "--pp", "2", "--steps", "100000"]


@contextmanager
def _running(
    *options: str, temporary: Path | None = None, is_waited_for: bool = True
) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """A workload in a process group of its own, and its ranks' process ids.

    By default it has finished its first step; else it may have no rank yet.
    """
    process = subprocess.Popen(
        [*_COMMAND, "--no-profile", "--device", "cpu", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=default_interrupt,
        env=os.environ if temporary is None else {**os.environ, "TMPDIR": str(temporary)},
    )
    try:
        assert process.stderr is not None
        if is_waited_for:
            assert process.stderr.readline().startswith("step   0")
        yield process, _children(process.pid)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def _children(process_id: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{process_id}/task/{process_id}/children").read_text().split()]


def _alive(process_id: int) -> bool:
    try:
        state = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def _all_end(process_ids: list[int]) -> bool:
    deadline = time.monotonic() + 10
    while any(map(_alive, process_ids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not any(map(_alive, process_ids))


def test_interrupt_ends_all_ranks_and_exits_with_130() -> None:
    with _running() as (process, ranks):
        assert len(ranks) == 2
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=20)
        assert process.returncode == 130
        assert "Traceback" not in errors
        assert _all_end(ranks)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_parent_leaves_no_orphans_and_no_files(tmp_path: Path, how: signal.Signals) -> None:
    with _running(temporary=tmp_path) as (process, ranks):
        process.send_signal(how)
        process.wait()
        assert _all_end(ranks)
    assert list(tmp_path.glob("stepscope-*")) == []


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_loader_workers_in_a_long_item_do_not_outlive_the_run(tmp_path: Path, how: signal.Signals) -> None:
    slow = "slow_loader:milliseconds_per_item=60000,num_workers=2"
    with _running("--pp", "1", "--inject", slow, temporary=tmp_path, is_waited_for=False) as (process, _):
        workers: list[int] = []
        deadline = time.monotonic() + 20
        while len(workers) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
            workers = [worker for rank in _children(process.pid) for worker in _children(rank)]
        assert len(workers) == 2
        os.killpg(process.pid, how) if how == signal.SIGINT else process.send_signal(how)
        process.wait(timeout=20)
        assert _all_end(workers)


def test_what_loader_workers_hand_batches_over_through_is_gone_after_an_interrupt(tmp_path: Path) -> None:
    with _running("--loader-workers", "1", temporary=tmp_path) as (process, ranks):
        assert len(list(tmp_path.glob("pymp-*"))) == 1, "the ranks share one folder"
        os.killpg(process.pid, signal.SIGINT)
        process.wait(timeout=20)
        assert _all_end(ranks)
    assert list(tmp_path.glob("pymp-*")) == []


def test_a_killed_rank_ends_the_others_with_one_line_that_names_it() -> None:
    with _running() as (process, ranks):
        os.kill(ranks[1], signal.SIGKILL)
        _, errors = process.communicate(timeout=20)
        assert process.returncode == 4
        assert errors.strip().splitlines()[-1] == "stepscope: rank 1 was killed by SIGKILL; all 2 ranks were ended"
        assert "Traceback" not in errors
        assert _all_end(ranks)


@pytest.mark.parametrize("kind", [UsageError, DataError, UnreachableError])
def test_what_a_rank_refuses_is_raised_here_as_it_is(
    monkeypatch: pytest.MonkeyPatch, kind: type[StepscopeError]
) -> None:
    def refuse(*_: object, **__: object) -> None:
        if os.environ["RANK"] == "0":
            raise RuntimeError("Connection closed by peer")
        raise kind("has no peer", where="the file", what_next="give another")

    monkeypatch.setattr("stepscope.reference_workloads.train.train_rank", refuse)
    job = TrainingJob(ParallelPlan(pp=2), find_preset("tiny"), out="runs", run="r", num_steps=1)
    with pytest.raises(kind) as raised:
        run_ranks(job, lambda _: None)
    error = raised.value
    assert type(error) is kind
    assert (error.what, error.where, error.what_next) == ("has no peer", "the file", "give another")
    assert str(error) == "the file: has no peer; give another"
    assert "in refuse" in error.__notes__[0], "the rank's own traceback, for --debug"


@pytest.mark.timeout(30)
def test_ranks_do_not_end_a_process_group_that_their_parent_has_dropped(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import torch.distributed as dist

    def collect(*_: object, **__: object) -> list[TrainingOutcome]:
        gc.collect()
        return [TrainingOutcome(losses=[1.0], step_seconds=[])]

    monkeypatch.setattr("stepscope.reference_workloads.train.train_rank", collect)
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    with collected_by_hand():
        dropped: list[object] = [dist.group.WORLD]
        dropped.append(dropped)  # garbage that only a collection finds
        dist.destroy_process_group()
        del dropped
        job = TrainingJob(ParallelPlan(), find_preset("tiny"), out="runs", run="r", num_steps=1)
        assert run_ranks(job, lambda _: None)[0].losses == [1.0], "a rank that ends it waits for ever"
