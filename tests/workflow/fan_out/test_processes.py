"""Several processes give the results of one, and end when they should."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from stepscope.core.errors import DataError, TruncatedTraceError, UnreachableError, UsageError
from stepscope.workflow.analyze import analyze
from stepscope.workflow.fan_out import engine
from stepscope.workflow.fan_out.engine import FanOut, file_map, in_processes, in_this_process, worker_count
from stepscope.workflow.fan_out.tasks import FileTask, FileViews
from tests.garbage import Dropped, collected_by_hand, collectors_of
from tests.workflow.written_traces import write_trace


@pytest.fixture(name="job")
def _job(tmp_path: Path) -> Path:
    for rank in range(3):
        write_trace(tmp_path / f"rank{rank}.json.gz", rank=rank, world_size=3)
    (tmp_path / "rank3.json").write_text("{}")
    return tmp_path


def test_two_processes_give_the_same_analysis_and_notices(job: Path) -> None:
    told: list[tuple[int, int]] = []
    several = analyze(
        [str(job)], fan_out=FanOut(num_workers=2), on_progress=lambda done, total, _: told.append((done, total))
    )
    assert several.analysis == analyze([str(job)], fan_out=FanOut(num_workers=1)).analysis
    assert [notice.code for notice in several.analysis.warnings].count("unusable_file") == 1
    assert told == [(0, 4), (1, 4), (2, 4), (3, 4)]


def test_errors_travel_whole() -> None:
    for error in (
        DataError("bad", where="f", what_next="mend"),
        TruncatedTraceError("short"),
        UnreachableError("gone"),
    ):
        (result,) = in_processes(_FAILS[type(error)], [FileTask("x")], num_workers=1)
        assert type(result.error) is type(error)
        assert str(result.error) == str(error)


def _bad(task: FileTask) -> FileViews:
    return FileViews(task, error=DataError("bad", where="f", what_next="mend"))


def _short(task: FileTask) -> FileViews:
    return FileViews(task, error=TruncatedTraceError("short"))


def _gone(task: FileTask) -> FileViews:
    return FileViews(task, error=UnreachableError("gone"))


_FAILS = {DataError: _bad, TruncatedTraceError: _short, UnreachableError: _gone}


def _dies_in_a_worker(task: FileTask) -> FileViews:
    if multiprocessing.parent_process() is not None:
        os.kill(os.getpid(), signal.SIGKILL)
    return FileViews(task)


def test_what_a_killed_process_leaves_is_done_here() -> None:
    tasks = [FileTask(str(number)) for number in range(4)]
    assert [result.task for result in in_processes(_dies_in_a_worker, tasks, num_workers=2)] == tasks


def _collects(task: FileTask) -> FileViews:
    gc.collect()
    return FileViews(task)


def test_forked_workers_leave_the_garbage_of_their_parent_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threading, "active_count", lambda: 1)  # or they are spawned, and inherit none
    with collected_by_hand():
        Dropped(tmp_path)
        assert len(list(in_processes(_collects, [FileTask("0"), FileTask("1")], num_workers=2))) == 2
        assert collectors_of(tmp_path) == []
        gc.collect()
        assert collectors_of(tmp_path) == [os.getpid()]


def _tells_how_it_started(_: FileTask) -> FileViews:
    return FileViews(FileTask(type(multiprocessing.current_process()).__name__))


def test_workers_are_forked_only_where_no_other_thread_may_hold_a_lock() -> None:
    go_on = threading.Event()
    other = threading.Thread(target=go_on.wait)
    other.start()
    try:
        (result,) = in_processes(_tells_how_it_started, [FileTask("0")], num_workers=1)
    finally:
        go_on.set()
        other.join()
    assert result.task.path == "SpawnProcess"


def _sleeps(task: FileTask) -> FileViews:
    if task.path != "0":
        signal.pause()
    return FileViews(task)


def test_no_process_outlives_the_one_who_asked() -> None:
    before = multiprocessing.active_children()
    results = iter(in_processes(_sleeps, [FileTask(str(number)) for number in range(3)], num_workers=2))
    assert next(results).task.path == "0"
    results.close()  # type: ignore[attr-defined]
    assert [child for child in multiprocessing.active_children() if child not in before and child.is_alive()] == []


def _sized(tmp_path: Path, sizes: Sequence[int]) -> list[str]:
    paths = []
    for number, size in enumerate(sizes):
        path = tmp_path / f"{number}.json"
        with path.open("wb") as stream:
            stream.truncate(size)
        paths.append(str(path))
    return paths


def test_as_many_processes_as_pay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "free_memory_bytes", lambda: 10**12)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(8), raising=False)
    assert worker_count(_sized(tmp_path, [1_000_000] * 20)) == 1
    assert worker_count(_sized(tmp_path, [200_000_000] * 3)) == 3
    assert worker_count(_sized(tmp_path, [200_000_000] * 20)) == 8
    monkeypatch.setattr(engine, "free_memory_bytes", lambda: 500_000_000)
    assert worker_count(_sized(tmp_path, [200_000_000] * 20)) == 2
    monkeypatch.setattr(engine, "free_memory_bytes", lambda: None)
    assert worker_count(_sized(tmp_path, [200_000_000] * 20)) == 8


def test_one_process_needs_no_pool() -> None:
    assert file_map(["a", "b"], 1) is in_this_process
    assert file_map(["a"], 5) is in_this_process
    with pytest.raises(UsageError, match="at least 1"):
        file_map(["a"], 0)


_UNGUARDED = """
import sys, threading, time
print("the script runs")
from stepscope.workflow.fan_out.engine import in_processes
from stepscope.workflow.fan_out.tasks import FileTask
from tests.workflow.fan_out.test_processes import _tells_how_it_started
threading.Thread(target=time.sleep, args=(30,), daemon=True).start()
results = list(in_processes(_tells_how_it_started, [FileTask("0"), FileTask("1")], num_workers=2))
print(len(results), sys.modules["__main__"].__file__ == sys.argv[0])
"""


def test_a_script_without_a_guard_runs_once(tmp_path: Path) -> None:
    """Beside other threads processes are spawned, and would import the script again."""
    script = tmp_path / "script.py"
    script.write_text(_UNGUARDED)
    root = Path(__file__).parents[3]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=False, env=environment, timeout=60
    )
    assert (done.stdout.splitlines(), done.stderr) == (["the script runs", "2 True"], "")
