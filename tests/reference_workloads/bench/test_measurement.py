"""Bench measurements are kept when a run ends early, and no file is left behind."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("numpy")
msgspec = pytest.importorskip("msgspec")

from stepscope.reference_workloads.bench import measurement  # noqa: E402
from stepscope.reference_workloads.bench.measurement import (  # noqa: E402
    BenchRequest,
    run_bench,
)
from stepscope.reference_workloads.bench.result import (  # noqa: E402
    Bench,
    benched_work_of,
)
from stepscope.reference_workloads.job import TrainingJob, TrainingOutcome  # noqa: E402
from stepscope.reference_workloads.launch import WorkloadResult  # noqa: E402
from stepscope.reference_workloads.plan import ParallelPlan, Preset, find_preset  # noqa: E402
from stepscope.reference_workloads.processes import RankFailedError  # noqa: E402
from stepscope.reference_workloads.recipe import Recipe  # noqa: E402

REQUEST = BenchRequest("gpt", ParallelPlan(), find_preset("tiny"), Recipe(), (1, 2), num_repeats=2, device="cpu")


class _Runs:
    """Stands for real ones: all take 0.1 s a step, and the one with this number ends the bench."""

    def __init__(self, error: BaseException | None = None, *, at: int = 0) -> None:
        self.error, self.at = error, at
        self.folders: list[Path] = []

    def __call__(self, plan: ParallelPlan, *, out: Path, preset: Preset, num_steps: int, **_: Any) -> WorkloadResult:
        self.folders.append(Path(out))
        if out != Path():
            assert out.is_dir()
            (out / "checkpoints").mkdir()
        if self.error is not None and len(self.folders) == self.at:
            raise self.error
        job = TrainingJob(plan, preset, "", "", num_steps, device_type="cpu", profiled=False)
        outcome = TrainingOutcome(losses=[2.0, 1.0], step_seconds=[0.1] * num_steps)
        return WorkloadResult(Path(), job, (outcome,) * plan.world_size)


@pytest.fixture(autouse=True)
def _not_a_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(variable, raising=False)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (RankFailedError("rank 1 was killed by SIGKILL"), "rank 1 was killed by SIGKILL"),
        (KeyboardInterrupt(), "interrupted"),
    ],
    ids=["killed", "Ctrl-C"],
)
def test_what_ends_a_later_run_leaves_the_earlier_ones(
    monkeypatch: pytest.MonkeyPatch, error: BaseException, said: str
) -> None:
    monkeypatch.setattr(measurement, "run_workload", _Runs(error, at=4))
    measured = run_bench(REQUEST, lambda _: None)
    assert measured.ended_by is error
    assert [(scale.dp, len(scale.runs)) for scale in measured.bench.scales] == [(1, 2), (2, 1)]
    told = {warning.code: warning.message for warning in measured.bench.warnings}
    assert told["incomplete"] == f"3 of 4 runs came to the end: {said}"


def test_a_scale_without_a_run_is_left_out_and_without_any_the_error_is_all(monkeypatch: pytest.MonkeyPatch) -> None:
    error = RankFailedError("rank 0 failed")
    monkeypatch.setattr(measurement, "run_workload", _Runs(error, at=2))
    bench = run_bench(REQUEST, lambda _: None).bench
    assert [scale.dp for scale in bench.scales] == [1]
    assert bench.fit is None
    monkeypatch.setattr(measurement, "run_workload", _Runs(error, at=1))
    with pytest.raises(RankFailedError):
        run_bench(REQUEST, lambda _: None)


@pytest.mark.parametrize(
    "request_",
    [REQUEST, replace(REQUEST, scaling="strong"), replace(REQUEST, plan=ParallelPlan(dp=2, zero=3), scales=(1, 2, 4))],
    ids=["weak", "strong", "sharded"],
)
def test_a_request_tells_the_work_that_its_bench_did(monkeypatch: pytest.MonkeyPatch, request_: BenchRequest) -> None:
    monkeypatch.setattr(measurement, "run_workload", _Runs())
    bench = run_bench(request_, lambda _: None).bench
    assert request_.work() == benched_work_of(bench)
    assert request_.work() == benched_work_of(msgspec.json.decode(msgspec.json.encode(bench), type=Bench))


def test_naps_that_do_not_shrink_with_the_batch_fit_no_law(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measurement, "run_workload", _Runs())
    simulated = replace(REQUEST, scaling="strong", simulate_compute_ms=5.0)
    bench = run_bench(simulated, lambda _: None).bench
    assert bench.fit is None
    assert "no_fit" in [warning.code for warning in bench.warnings]
    assert run_bench(replace(simulated, scaling="weak"), lambda _: None).bench.fit is not None


def test_checkpoints_lie_in_a_folder_of_each_run_that_goes_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    runs = _Runs(KeyboardInterrupt(), at=4)
    monkeypatch.setattr(measurement, "run_workload", runs)
    run_bench(replace(REQUEST, recipe=Recipe(checkpoint_every=2)), lambda _: None)
    assert len(set(runs.folders)) == 4
    assert {folder.parent for folder in runs.folders} == {tmp_path}
    assert not list(tmp_path.iterdir())
