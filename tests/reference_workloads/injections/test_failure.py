"""Runs end soon when a rank dies or runs out of data, with its name and the flight recorders of the others."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stepscope.reference_workloads import ParallelPlan, run_workload
from stepscope.reference_workloads.injections.failure import DyingRank, UnevenData
from stepscope.reference_workloads.job import Injection, TrainingJob
from stepscope.reference_workloads.processes import RankFailedError
from stepscope.training import once


def _run(out: Path, fault: Injection, zero: int = 2) -> str:
    pytest.importorskip("torch")
    with pytest.raises(RankFailedError) as failed:
        run_workload(
            ParallelPlan(dp=2, zero=zero),
            out=out,
            run="r",
            num_steps=5,
            injections=[fault],
            schedule=once(wait=0, warmup=1, active=1),
            device="cpu",
        )
    return str(failed.value)


def _recorded(out: Path, rank: int) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = pickle.loads((out / "r" / "flight" / f"rank{rank}").read_bytes())["entries"]
    return entries


def test_a_dying_rank_is_named_and_its_peer_leaves_what_it_waited_for(tmp_path: Path) -> None:
    assert "rank 1 was killed by SIGKILL" in _run(tmp_path, DyingRank(at_step=3, timeout_seconds=5))
    assert not (tmp_path / "r" / "flight" / "rank1").exists()
    assert _recorded(tmp_path, 0)
    assert (tmp_path / "r" / "traces" / "step1" / "rank0.json.gz").is_file()


@pytest.mark.parametrize("zero", [0, 2])
def test_a_rank_out_of_data_hangs_until_the_timeout_and_all_ranks_tell(tmp_path: Path, zero: int) -> None:
    assert "Timed out" in _run(tmp_path, UnevenData(num_batches=3, timeout_seconds=2), zero)
    last = [_recorded(tmp_path, rank)[-1] for rank in (0, 1)]
    assert last[0]["input_sizes"] != last[1]["input_sizes"]  # gradients of the next step, and the run's mean losses


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (UnevenData(dp_rank=2), "no data-parallel rank 2"),
        (UnevenData(num_batches=9), "of 9 steps"),
        (DyingRank(rank=2), "no rank 2"),
        (DyingRank(at_step=9), "none is step 9"),
    ],
)
def test_ranks_and_steps_that_are_not_there_are_refused(
    job_of: Callable[..., TrainingJob], fault: Injection, reason: str
) -> None:
    assert reason in (fault.refusal(job_of(dp=2)) or "")
