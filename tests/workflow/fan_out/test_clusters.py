"""Dask gives the results of one machine, and a failed cluster is one line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from stepscope import __version__
from stepscope.core.errors import UsageError
from stepscope.workflow.fan_out.engine import Engine, FanOut, task_paths
from stepscope.workflow.fan_out.tasks import Cluster, FileTask, FileViews, on_worker, view_file
from stepscope.workflow.rank_views import view_files
from tests.workflow.clusters import DASK, running, stepscope
from tests.workflow.written_traces import write_trace

MODULES = {"dask": "distributed", "ray": "ray"}
SCRIPTS = {"dask": DASK}


@pytest.fixture(scope="module", params=["dask"])
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """Engine and address of a cluster of two workers."""
    engine: str = request.param
    if find_spec(MODULES[engine]) is None:
        pytest.skip(f"{MODULES[engine]} is not installed")
    with running(SCRIPTS[engine], tmp_path_factory.mktemp(engine)) as address:
        yield engine, address


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six ranks, one of them unreadable."""
    folder = tmp_path_factory.mktemp("job")
    for rank in range(5):
        write_trace(folder / f"rank{rank}.json.gz", rank, world_size=6, compute_us=30 + 5 * rank)
    (folder / "rank5.json").write_text("{}")
    return folder


def _refused(done: subprocess.CompletedProcess[str], exit_code: int, *words: str) -> None:
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (exit_code, "", 1), done.stderr
    assert all(word in done.stderr for word in words), done.stderr


def test_a_cluster_gives_the_same_document_unusable_file_included(cluster: tuple[str, str], job: Path) -> None:
    engine, address = cluster
    here = stepscope("analyze", str(job), "--json", "--workers", "1")
    there = stepscope("analyze", str(job), "--json", "--engine", engine, "--scheduler", address)
    assert (there.returncode, there.stderr) == (0, "")
    assert json.loads(there.stdout) == json.loads(here.stdout)
    assert "unusable_file" in [notice["code"] for notice in json.loads(there.stdout)["warnings"]]


def test_the_engines_own_setting_is_read_and_other_verbs_fan_out_too(cluster: tuple[str, str], job: Path) -> None:
    engine, address = cluster
    done = stepscope("whatif", str(job), "--json", "--engine", engine, DASK_SCHEDULER_ADDRESS=address)
    assert done.returncode == 0, done.stderr
    assert done.stdout == stepscope("whatif", str(job), "--json").stdout


def _ends_its_worker(task: FileTask) -> FileViews:
    if "deadly" in task.path:
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGKILL)
    return FileViews(task)


DEATHS = """
import sys
from tests.workflow.fan_out.test_clusters import _ends_its_worker
from stepscope.workflow.fan_out.engine import Engine, FanOut, map_for
from stepscope.workflow.fan_out.tasks import FileTask
tasks = [FileTask(f"memory://{name}") for name in ("deadly", "b", "c", "d")]
for result in map_for([], FanOut(Engine(sys.argv[1]), address=sys.argv[2]))(_ends_its_worker, tasks):
    print(result.task.path, "" if result.error is None else result.error)
"""


def test_a_file_that_ends_its_workers_is_named_and_the_others_are_read(cluster: tuple[str, str]) -> None:
    done = subprocess.run([sys.executable, "-c", DEATHS, *cluster], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    failed = [line for line in done.stdout.splitlines() if "died" in line]
    assert len(done.stdout.splitlines()) == 4
    assert [line.split()[0] for line in failed] == ["memory://deadly"]


def test_workers_with_another_version_are_named(tmp_path: Path, job: Path) -> None:
    pytest.importorskip("distributed", reason="distributed is not installed")
    other = tmp_path / "site"
    (other / "stepscope").mkdir(parents=True)
    (other / "stepscope" / "__init__.py").write_text("__version__ = '0.0.1'")
    with running(DASK, tmp_path, python_path=other) as address:
        done = stepscope("analyze", str(job), "--engine", "dask", "--scheduler", address)
    _refused(done, 2, "Dask worker", "stepscope", __version__, "pip install")


@pytest.mark.parametrize("engine", ["dask", "ray"])
def test_no_cluster_is_one_line_and_none_is_started(engine: str, job: Path, tmp_path: Path) -> None:
    pytest.importorskip(MODULES[engine], reason=f"{MODULES[engine]} is not installed")
    done = stepscope("analyze", str(job), "--engine", engine, RAY_TMPDIR=str(tmp_path))
    _refused(done, 2, "none is started", "--scheduler")
    quick = {"DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": "1s"}
    done = stepscope("analyze", str(job), "--engine", engine, "--scheduler", "127.0.0.1:9", **quick)
    _refused(done, 4, "127.0.0.1:9", "answers")


@pytest.mark.parametrize("engine", ["dask", "ray"])
def test_a_missing_package_is_named_with_its_remedy(engine: str, job: Path, tmp_path: Path) -> None:
    for name in ("dask", "distributed", "ray"):
        (tmp_path / f"{name}.py").write_text(f"raise ModuleNotFoundError('No module named {name}', name='{name}')")
    done = stepscope("analyze", str(job), "--engine", engine, "--scheduler", "h:1", PYTHONPATH=str(tmp_path))
    _refused(done, 2, f'pip install "stepscope[{engine}]"')


def test_options_of_one_engine_are_refused_by_the_other() -> None:
    with pytest.raises(UsageError, match="--engine dask"):
        FanOut(address="tcp://h:8786")
    with pytest.raises(UsageError, match="--workers"):
        FanOut(Engine.RAY, num_workers=2)


def test_local_paths_are_absolute_on_a_cluster_and_urls_stay() -> None:
    assert task_paths(["a.json", "s3://b/a.json"], FanOut(Engine.DASK)) == [os.path.abspath("a.json"), "s3://b/a.json"]
    assert task_paths(["a.json"], FanOut()) == ["a.json"]


def test_a_worker_that_does_not_see_a_local_file_says_so(tmp_path: Path) -> None:
    error = on_worker(view_file, FileTask(str(tmp_path / "rank0.json"))).error
    assert "does not exist on the worker" in str(error)
    assert "object store" in str(error)


def test_a_worker_without_stepscope_is_told_how_to_get_it() -> None:
    cluster = Cluster("Dask", "tcp://h:8786")
    cluster.check_versions([("w", __version__)])
    with pytest.raises(UsageError, match=r"worker w cannot import stepscope \(No module.*pip install"):
        cluster.check_versions([("w", ModuleNotFoundError("No module named 'stepscope'"))])


def test_results_in_any_order_make_the_same_job_and_count_as_they_come(job: Path) -> None:
    paths = sorted(str(path) for path in job.iterdir())
    told: list[int] = []
    found = view_files(
        paths,
        whole_file=False,
        on_progress=lambda done, _total, _path: told.append(done),
        map_files=lambda work, tasks: map(work, reversed(tasks)),
    )
    assert list(found.views) == list(range(5))
    assert told == list(range(6))
