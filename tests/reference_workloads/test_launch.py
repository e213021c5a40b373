"""All layouts learn the same, and leave a complete run directory."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stepscope.core.errors import DataError, UsageError
from stepscope.reference_workloads import ParallelPlan, WorkloadResult, run_workload
from stepscope.reference_workloads.injections.host import CheckpointStall, SlowLoader
from stepscope.reference_workloads.plan import find_preset
from stepscope.training import once
from stepscope.workflow.analyze import analyze

pytest.importorskip("torch")


def _events(result: WorkloadResult, rank: int) -> list[dict[str, Any]]:
    (trace,) = (result.run_dir / "traces").glob(f"step*/rank{rank}.json.gz")
    events: list[dict[str, Any]] = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    return [event for event in events if event.get("ph") == "X"]


def test_three_dimensions_together_learn_the_same(run_2x2x2: WorkloadResult) -> None:
    # Different orders of addition differ in the last digits only.
    expected = run_workload(ParallelPlan(), profiled=False, num_steps=4, device="cpu").losses
    assert run_2x2x2.losses[:4] == pytest.approx(expected, abs=2e-3)
    assert run_2x2x2.last_loss < run_2x2x2.first_loss


def test_the_run_directory_is_complete(run_2x2x2: WorkloadResult) -> None:
    run = run_2x2x2.run_dir
    files = {str(path.relative_to(run)) for path in run.rglob("*") if path.is_file()}
    ranks = range(8)
    assert files == {
        "run.json",
        *(f"ranks/rank{rank}.json" for rank in ranks),
        *(f"steps/rank{rank}.jsonl" for rank in ranks),
        *(f"traces/step3/rank{rank}.json.gz" for rank in ranks),
        *(f"truth/rank{rank}.jsonl" for rank in ranks),
    }
    manifest = json.loads((run / "run.json").read_text())
    assert manifest["mesh"] == {"tp": 2, "pp": 2, "dp": 2}
    assert manifest["world_size"] == 8
    assert manifest["simulated_compute"] is True
    assert manifest["unprofiled_step_ms"] > 3 * 2 * 3 * 10 * 0.9  # three slots of two layers, 10 + 20 ms each


def test_every_rank_tells_how_long_its_steps_took(run_2x2x2: WorkloadResult) -> None:
    assert len(run_2x2x2.outcomes) == 8
    for outcome in run_2x2x2.outcomes:
        assert outcome.losses == run_2x2x2.losses
        assert len(outcome.step_seconds) == 6
        assert min(outcome.step_seconds) > 3 * 2 * 3 * 0.010 * 0.9  # three slots of two layers, 10 + 20 ms each
        assert outcome.peak_allocated_bytes is None  # no GPU
    # Steps 3 and 4 are captured and step 5 waits for their export: nothing is left to choose from.
    assert run_2x2x2.settled_step_seconds == run_2x2x2.outcomes[0].step_seconds
    assert run_2x2x2.tokens_per_second == pytest.approx(8 * 16 / run_2x2x2.step_seconds)


def test_step_numbers_are_the_same_on_all_ranks(run_2x2x2: WorkloadResult) -> None:
    for rank in range(8):
        steps = sorted(event["name"] for event in _events(run_2x2x2, rank) if event["name"].startswith("ProfilerStep"))
        assert steps == ["ProfilerStep#3", "ProfilerStep#4"]


def test_micro_batches_and_simulated_compute_are_annotated_once_each(run_2x2x2: WorkloadResult) -> None:
    for rank in range(8):
        names = [event["name"] for event in _events(run_2x2x2, rank)]
        stage = rank // 4  # the pipeline is the mesh's first dimension
        for micro_batch in (0, 1):
            assert names.count(f"PP:{stage}F{micro_batch}") == 2
            assert names.count(f"PP:{stage}B{micro_batch}") == 2
        # two steps, two micro-batches, two layers, forwards and backwards
        assert names.count("simulated_compute") == 2 * 2 * 2 * 2
        assert "prof.data" in names


def test_an_interleaved_pipeline_is_measured_as_its_processes_clocks_say(tmp_path: Path) -> None:
    plan = ParallelPlan(pp=2, schedule="interleaved", micro_batches=4, stage_layers=(1, 1, 1, 3))
    result = run_workload(
        plan,
        out=tmp_path,
        preset=replace(find_preset("tiny"), num_layers=6),
        num_steps=4,
        simulate_compute_ms=30,
        schedule=once(wait=1, warmup=1, active=1),
        device="cpu",
    )
    names = [event["name"] for event in _events(result, 0)]
    assert sorted(name for name in names if name.startswith("PP:0F")) == [f"PP:0F{number}" for number in range(4)]
    slept = span = 0.0
    for rank in range(2):
        lines = (result.run_dir / "truth" / f"rank{rank}.jsonl").read_text().splitlines()
        step = next(step for line in lines if (step := json.loads(line))["index"] == 2)
        slept += step["slept_seconds"]
        span += step["seconds"] - step["optimizer_seconds"]
    assert slept >= 0.99 * 4 * 6 * 3 * 0.030, "a nap is longer on a busy machine, never shorter"
    analysis = analyze([str(result.run_dir)]).analysis
    found = analysis.pipeline
    assert found is not None
    assert (found.schedule, found.chunks, found.micro_batches) == ("interleaved_1f1b", 2, 4)
    assert found.measured == pytest.approx(1 - slept / span, abs=0.1)  # benchmarks/pipeline_accuracy.py is stricter
    assert found.structural + found.imbalance + found.variance == pytest.approx(found.measured)
    assert found.imbalance > 0.1


def test_a_run_directory_in_use_is_refused(run_2x2x2: WorkloadResult) -> None:
    with pytest.raises(UsageError, match="not empty"):
        run_workload(ParallelPlan(), out=run_2x2x2.run_dir.parent, run=run_2x2x2.run_dir.name, device="cpu")


def test_a_rank_of_a_job_of_another_size_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(UsageError, match="the job has 4"):
        run_workload(ParallelPlan(tp=2))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"device": "tpu"}, "not 'tpu'"),
        ({"num_steps": 0}, "at least one step"),
        ({"simulate_compute_ms": -1}, "not negative"),
        ({"simulate_compute_ms": float("nan")}, "finite"),
        ({"seed": -1}, "a seed is"),
        ({"seed": 2**32}, "a seed is"),
        ({"run": "../evil"}, "folder's name"),
        ({"run": "  "}, "folder's name"),
        ({"run": "a b"}, "no blanks"),
        ({"run": "x" * 300}, "at most 200 bytes"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        run_workload(ParallelPlan(), **options)


@pytest.mark.parametrize(
    ("environment", "reason"),
    [
        ({"RANK": "x", "WORLD_SIZE": "1"}, "RANK: is not a rank or size: 'x'"),
        ({"RANK": "0", "WORLD_SIZE": "y"}, "WORLD_SIZE: is not a rank or size: 'y'"),
        ({"RANK": "1", "WORLD_SIZE": "1", "MASTER_ADDR": "h", "MASTER_PORT": "1"}, "a job of 1 has no rank 1"),
        ({"RANK": "0", "WORLD_SIZE": "1"}, "but not MASTER_ADDR and MASTER_PORT"),
    ],
)
def test_a_launcher_that_says_nonsense_is_refused(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], reason: str
) -> None:
    for variable in ("MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(variable, raising=False)
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    with pytest.raises(UsageError, match=reason):
        run_workload(ParallelPlan())


def test_an_out_folder_that_cannot_be_written_is_refused_before_training(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    told: list[object] = []
    with pytest.raises(DataError, match="cannot be written"):
        run_workload(ParallelPlan(), out=tmp_path / "file", device="cpu", on_progress=told.append)
    assert told == []


def test_profiling_that_left_nothing_is_an_error_after_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEPSCOPE_DISABLE", "1")
    with pytest.raises(DataError, match=r"left no run\.json"):
        run_workload(ParallelPlan(), out=tmp_path, num_steps=1, device="cpu")


def test_runs_that_begin_in_one_second_keep_their_truth_beside_their_traces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.strftime", lambda *_: "20260101-000000")
    faults = (SlowLoader(milliseconds_per_item=1.0), CheckpointStall(every_steps=1))
    results = [
        run_workload(ParallelPlan(), out=tmp_path, injections=[fault], num_steps=1, device="cpu") for fault in faults
    ]
    name = "gpt-tiny-tp1-pp1-dp1-20260101-000000"
    assert [result.run_dir for result in results] == [tmp_path / name, tmp_path / f"{name}-2"]
    for fault, result in zip(faults, results, strict=True):
        assert json.loads((result.run_dir / "truth" / "injected.json").read_text())[0]["name"] == fault.name
        assert json.loads((result.run_dir / "run.json").read_text())["run"] == result.run_dir.name
        assert (result.run_dir / "checkpoints").is_dir() == (fault.name == "checkpoint_stall")


def test_the_directory_that_the_profiler_chose_is_what_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A launched job of one rank, while another one writes the run of that name."""
    for variable, value in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}.items():
        monkeypatch.setenv(variable, value)
    (tmp_path / "r" / "steps").mkdir(parents=True)
    lock = "import fcntl, sys; f = open(sys.argv[1], 'ab'); fcntl.lockf(f, fcntl.LOCK_EX); print(flush=True); input()"
    command = [sys.executable, "-c", lock, str(tmp_path / "r" / "steps" / "rank0.jsonl")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        fault = SlowLoader(milliseconds_per_item=1.0)
        result = run_workload(ParallelPlan(), out=tmp_path, run="r", injections=[fault], num_steps=1, device="cpu")
        other.kill()
    assert result.run_dir == tmp_path / "r-2"
    assert (tmp_path / "r-2" / "truth" / "injected.json").is_file()
    assert not (tmp_path / "r" / "truth").exists()
