"""Windows are labelled by the captures around them, by rank or by GPU sharing, and ranks end."""

from __future__ import annotations

import os
import time
from multiprocessing import Pipe
from multiprocessing.synchronize import Event
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

from benchmarks.fleet_class import sampling
from benchmarks.fleet_class.sampling import Captures, Cut, chosen, windows_of
from benchmarks.fleet_class.states import running
from benchmarks.fleet_class.windows import Captured
from benchmarks.ranks import results_of, run_on_one_gpu
from stepscope.analyzer.fleet import GpuFacts, GpuSample, HostUse
from stepscope.core.documents.run_directory import Step
from stepscope.core.errors import UnreachableError, UsageError
from stepscope.core.vocabulary import Cause, TimeCategory
from stepscope.reference_workloads.plan import ParallelPlan

_SECOND = 1_000_000_000


def _captured(**shares: float) -> Captured:
    return Captured(
        1000.0, dict.fromkeys(TimeCategory, 0.0) | {TimeCategory(name): share for name, share in shares.items()}
    )


_COMPUTES, _WAITS = _captured(compute_bound=1.0), _captured(compute_bound=0.2, wait=0.8)
_STEPS = [Step(index, index * _SECOND, (index + 1) * _SECOND, captured=index in (1, 2, 11, 12)) for index in range(14)]
"""A second each; quiet are 4 to 9."""


def _cut(gpu: int, begin: float, end: float) -> Cut:
    sample = GpuSample(0, 1.0, 0.5, 600.0, 1.8e9, frozenset())
    return Cut(gpu, int(begin * _SECOND), int(end * _SECOND), (sample, sample), GpuFacts(), HostUse())


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of two ranks."""
    ranks = [SimpleNamespace(rank=rank, steps=_STEPS) for rank in range(2)]
    monkeypatch.setattr(sampling, "read_run_steps", lambda _: (ranks, []))
    return tmp_path / "ddp-straggler"


_CAPTURES: Captures = {f"step{at}": {0: _COMPUTES, 1: _WAITS} for at in (1, 11)}


def test_a_window_of_a_gpu_has_the_label_of_its_rank(run: Path) -> None:
    cuts = [_cut(0, 5, 9), _cut(0, 6, 9.5), _cut(1, 5, 9), _cut(1, 3.5, 8), _cut(0, 7, 10.5)]
    windows = windows_of(run, cuts, _CAPTURES)
    told = {window.gpu: window.right for window in windows}
    assert len(windows) == 2
    assert told == {0: {Cause.COMPUTE_BOUND}, 1: {Cause.COMMUNICATION}}
    assert all(window.seconds == pytest.approx(4.0) for window in windows)


def test_a_window_without_both_captures_has_no_label(run: Path) -> None:
    cuts = [_cut(0, 5, 9), _cut(1, 5, 9)]
    assert windows_of(run, cuts, {"step1": _CAPTURES["step1"]}) == []
    assert windows_of(run, cuts, _CAPTURES | {"step11": {1: _WAITS}}, on_one_gpu=True) == []


def test_ranks_on_one_gpu_have_one_window_with_the_mean_of_all(run: Path) -> None:
    (window,) = windows_of(run, [_cut(0, 5, 9)], _CAPTURES, on_one_gpu=True)
    assert window.spent["exposed_comm"] == pytest.approx(0.4)
    assert window.right == {Cause.COMMUNICATION}


def test_only_healthy_cases_without_stages_share_a_gpu() -> None:
    assert [case.name for case in chosen("two-gpu", [], on_one_gpu=True)] == [
        "ddp-healthy-tcp",
        "tp-healthy-tcp",
        "fsdp-healthy-tcp",
    ]
    alone = {case.name for case in chosen("two-gpu", ["ddp-*"], on_one_gpu=False)}
    assert "ddp-straggler" in alone
    assert "ddp-dying_rank" not in alone


def test_a_rank_that_dies_or_refuses_is_told() -> None:
    ours, theirs = Pipe(duplex=False)
    theirs.send(UsageError("no"))
    with pytest.raises(UsageError, match="no"):
        results_of([ours])
    theirs.close()
    with pytest.raises(UnreachableError, match="rank 0 died"):
        results_of([ours])


def test_what_all_ranks_refuse_is_raised_and_a_full_folder_refused(tmp_path: Path) -> None:
    options: dict[str, Any] = {"device": "cpu", "num_steps": 0}
    with pytest.raises(UsageError, match="at least one step"):
        run_on_one_gpu(ParallelPlan(dp=2), out=tmp_path, run="one", **options)
    (tmp_path / "two" / "steps").mkdir(parents=True)
    with pytest.raises(UsageError, match="two: holds something"):
        run_on_one_gpu(ParallelPlan(dp=2), out=tmp_path, run="two", **options)


def _comes(ready: Event, _: int) -> None:
    ready.set()
    time.sleep(60)


def _dies(_: Event, __: int) -> None:
    os._exit(3)


def test_processes_of_a_state_are_waited_for_and_ended() -> None:
    with running([_comes, _comes]) as processes:
        assert all(process.is_alive() for process in processes)
    assert not any(process.is_alive() for process in processes)
    with pytest.raises(RuntimeError, match="ended early"), running([_comes, _dies]):
        pass
