"""Jobs and runs of a history: who had which GPUs, what still runs, and which run it was."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from stepscope.core.errors import UsageError
from stepscope.store.history.embedded import history_at
from stepscope.store.history.questions import Labels
from stepscope.store.history.samples import SampleBlock
from stepscope.store.history.writer import HistoryWriter
from stepscope.workflow.history.jobs import jobs_of_history

_START_NS, _MINUTES = 1_795_000_020 * 10**9, 60
_END_NS = _START_NS + _MINUTES * 60 * 10**9


def _gpu(node: int, **more: str) -> Labels:
    return tuple(sorted({"instance": f"n{node}:9455", "gpu": "0", "uuid": f"GPU-{node}", **more}.items()))


def _rank(node: int) -> Labels:
    """A rank of the run `gpt`, as the agent says it: without the number of the GPU."""
    labels = {"instance": f"n{node}:9455", "uuid": f"GPU-{node}", "run": "gpt", "rank": str(node)}
    return tuple(sorted(labels.items()))


def _block(metric: str, rows: dict[Labels, range]) -> SampleBlock:
    """Value 1 once a minute, half a minute before each minute's end, in these minutes."""
    entities = tuple(rows)
    entity = np.concatenate([np.full(len(minutes), place, np.int32) for place, minutes in enumerate(rows.values())])
    minutes = np.concatenate([np.array(minutes, np.int64) for minutes in rows.values()])
    return SampleBlock(entities, entity, _START_NS + (60 * minutes + 30) * 10**9, {metric: np.ones(len(minutes))})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Job 7 has two nodes to the end, job 8 shares one of them for a while, job 9 had another one before."""
    folder = tmp_path_factory.mktemp("jobs") / "history"
    every = range(_MINUTES)
    key = {"job_kind": "slurm", "share": "exclusive"}
    with HistoryWriter(folder) as writer:
        held = {
            _gpu(0, job_id="7", **key): range(10, 60),
            _gpu(1, job_id="7", **key): range(10, 60),
            _gpu(2, job_id="9", **key): range(5, 20),
        }
        writer.append(_block("stepscope_gpu_job_info", held))
        shared = {_gpu(1, job_id="8", job_kind="slurm", share="time_sliced"): range(30, 35)}
        writer.append(_block("stepscope_gpu_job_info", shared))
        facts: dict[Labels, range] = {
            (("instance", "n0:9455"), ("job_id", "7"), ("job_kind", "slurm"), ("user", "ada")): range(10, 60)
        }
        writer.append(_block("stepscope_job_info", facts))
        ranks = {_rank(node): range(12, 60) for node in (0, 1)}
        writer.append(_block("stepscope_training_info", ranks))
        writer.append(_block("up", {(("instance", f"n{node}:9455"),): every for node in range(3)}))
        writer.flush()
    return folder


@pytest.mark.parametrize("later_ns", [0, 123_456_789])
def test_jobs_have_their_gpus_nodes_times_and_runs(later_ns: int, folder: Path) -> None:
    report = jobs_of_history(history_at(folder), _START_NS + later_ns, _END_NS - later_ns)
    found = {job.id: job for job in report.jobs}
    assert list(found) == ["7", "8", "9"]
    assert found["7"].last_ns == _END_NS - later_ns
    assert (found["7"].num_gpus, found["7"].nodes, found["7"].user) == (2, ["n0:9455", "n1:9455"], "ada")
    assert (found["7"].is_live, found["8"].is_live, found["9"].is_live) == (True, False, False)
    assert found["7"].runs == ["gpt"]
    assert (found["8"].runs, found["9"].runs) == ([], [])
    assert found["9"].first_ns == _START_NS + 5 * 60 * 10**9
    assert found["9"].last_ns == _START_NS + 20 * 60 * 10**9


def test_run_directories_meet_their_jobs(folder: Path, tmp_path: Path) -> None:
    for name, place in (
        ("by-id", {"host": "elsewhere", "job_kind": "slurm", "job_id": "9"}),
        ("by-gpu", {"host": "n2", "gpu_uuid": "GPU-2", "start_ns": _START_NS + 6 * 60 * 10**9}),
        ("too-late", {"host": "n2", "gpu_uuid": "GPU-2", "start_ns": _START_NS + 50 * 60 * 10**9}),
    ):
        run = tmp_path / name
        (run / "ranks").mkdir(parents=True)
        (run / "steps").mkdir()
        manifest = {"schema": "stepscope.run/1", "run": name, "host": "n", "world_size": 1, "mesh": {}, "num_cpus": 1}
        (run / "run.json").write_text(json.dumps(manifest | {"versions": {}, "environment": {}, "attempts": []}))
        whole = {"rank": 0, "local_rank": 0, "pid": 1, "start_ns": _START_NS, **place}
        (run / "ranks/rank0.json").write_text(json.dumps(whole))
    report = jobs_of_history(history_at(folder), _START_NS, _END_NS, runs=str(tmp_path))
    assert {job.id: job.runs for job in report.jobs} == {"7": ["gpt"], "8": [], "9": ["by-gpu", "by-id"]}


def test_a_history_without_jobs_says_so(tmp_path: Path) -> None:
    with HistoryWriter(tmp_path / "h") as writer:
        writer.append(_block("stepscope_gpu_power_watts", {_gpu(0): range(5)}))
        writer.flush()
    with pytest.raises(UsageError, match="does not say which jobs had GPUs"):
        jobs_of_history(history_at(tmp_path / "h"), _START_NS, _END_NS)
