"""Jobs too large for the machine's processors or memory are rejected, and no others."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepscope.core.errors import UsageError
from stepscope.reference_workloads import placement, run_workload
from stepscope.reference_workloads.job import TrainingJob
from stepscope.reference_workloads.placement import refuse_on_processors
from stepscope.reference_workloads.plan import ParallelPlan, find_preset

_GIB = 1024**3


def _job(plan: ParallelPlan, preset: str = "one-gpu", device_type: str = "cpu", model: str = "gpt") -> TrainingJob:
    return TrainingJob(plan, find_preset(preset, model), "", "", 9, device_type=device_type)


@pytest.fixture(autouse=True)
def _of_32_gib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "free_memory_bytes", lambda: 32 * _GIB)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)


def test_what_does_not_fit_is_refused_with_both_sizes() -> None:
    with pytest.raises(
        UsageError, match=r"one-gpu on the CPU takes 47\.5 GiB of this machine, which has 32\.0 GiB free"
    ):
        refuse_on_processors(_job(ParallelPlan()), is_asked_for=True)


@pytest.mark.parametrize(
    "job",
    [
        _job(ParallelPlan(), "tiny"),
        _job(ParallelPlan(), device_type="cuda"),
        _job(ParallelPlan(), "one-gpu", model="resnet50"),  # no estimate knows it
    ],
    ids=["small", "GPU", "unknown"],
)
def test_what_fits_or_is_not_known_to_need_more_trains(job: TrainingJob) -> None:
    refuse_on_processors(job, is_asked_for=True)


def test_what_takes_processors_minutes_is_refused_unless_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "free_memory_bytes", lambda: 1000 * _GIB)
    with pytest.raises(UsageError, match="a step of one-gpu is 256 TFLOP"):
        refuse_on_processors(_job(ParallelPlan()), is_asked_for=False)
    refuse_on_processors(_job(ParallelPlan()), is_asked_for=True)
    refuse_on_processors(_job(ParallelPlan(), "tiny"), is_asked_for=False)


def test_only_the_ranks_of_this_machine_count(monkeypatch: pytest.MonkeyPatch) -> None:
    job = _job(ParallelPlan(dp=4, zero=3))
    with pytest.raises(UsageError):
        refuse_on_processors(job, is_asked_for=True)
    refuse_on_processors(job, is_asked_for=True, is_rank=True)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    with pytest.raises(UsageError):
        refuse_on_processors(job, is_asked_for=True, is_rank=True)


def test_without_figures_of_the_machine_nothing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "free_memory_bytes", lambda: None)
    refuse_on_processors(_job(ParallelPlan()), is_asked_for=True)


def test_a_run_is_refused_before_its_directory_is_made(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    with pytest.raises(UsageError, match="use --preset tiny"):
        run_workload(ParallelPlan(), out=str(tmp_path), preset="one-gpu", device="cpu")
    assert not list(tmp_path.iterdir())
