"""Run name: the same on all ranks of a job, different for two jobs."""

from __future__ import annotations

import logging
import os
from datetime import timedelta
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

from stepscope.core.process import about_to_fork
from stepscope.training.run import identity as subject
from stepscope.training.run.identity import Identity

pytestmark = pytest.mark.usefixtures("no_job")


def _rank(rank: int, world_size: int) -> Identity:
    return Identity(rank=rank, local_rank=0, world_size=world_size, host="h")


def _names(world_size: int) -> set[str]:
    return {subject.choose_run_name(None, _rank(rank, world_size)) for rank in range(world_size)}


def test_what_is_given_goes_before_the_scheduler_and_the_scheduler_before_torchrun(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "a/b c")
    assert _names(8) == {"run-a-b-c"}
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    assert _names(8) == {"slurm-77"}
    monkeypatch.setenv("STEPSCOPE_RUN", "mine")
    assert _names(8) == {"mine"}
    assert subject.choose_run_name("given", _rank(0, 8)) == "given"


def test_a_later_step_of_srun_in_one_allocation_is_another_run_and_a_launcher_on_each_node_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for variable, value in {"SLURM_JOB_ID": "77", "SLURM_PROCID": "0", "SLURM_STEP_ID": "0"}.items():
        monkeypatch.setenv(variable, value)
    assert _names(2) == {"slurm-77"}
    monkeypatch.setenv("SLURM_STEP_ID", "3")
    assert _names(2) == {"slurm-77-step3"}
    monkeypatch.setenv("RANK", "1")
    assert _names(2) == {"slurm-77"}


def test_processes_of_one_second_have_names_of_their_own() -> None:
    assert subject.choose_run_name(None, _rank(0, 1)).endswith(f"-{os.getpid()}")


def test_ranks_of_one_host_are_named_after_the_process_that_launched_them(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for variable in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.setenv(variable, "8")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setattr(subject, "process_start", lambda _: "123")
    (one_job,) = _names(8)
    monkeypatch.setattr(subject, "process_start", lambda _: "456")
    (another_job,) = _names(8)
    assert one_job != another_job
    assert not caplog.records


def test_ranks_that_have_only_an_address_in_common_say_that_the_name_is_not_theirs_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MASTER_ADDR", "node1")
    monkeypatch.setenv("MASTER_PORT", "29501")
    (name,) = _names(4)
    assert name.endswith("node1-port29501")
    assert "profile(run=...)" in caplog.records[0].getMessage()


def _tell_name(rank: int, rendezvous: str, results: Any) -> None:
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=2, timeout=timedelta(seconds=30))
    names = [subject.choose_run_name(None, _rank(rank, 2)) for _ in range(2)]
    results.put(names)
    dist.barrier()
    dist.destroy_process_group()


def test_ranks_that_can_talk_take_rank_zeros_name(tmp_path: Path) -> None:
    pytest.importorskip("torch.distributed")
    context = get_context("fork")
    results = context.Queue()
    ranks = [
        context.Process(target=_tell_name, args=(rank, f"file://{tmp_path}/rendezvous", results)) for rank in (0, 1)
    ]
    with about_to_fork():
        for rank in ranks:
            rank.start()
    first, second = results.get(timeout=60), results.get(timeout=60)
    for rank in ranks:
        rank.join(30)
    assert first == second
    assert first[0].startswith("run-")
    assert [rank.exitcode for rank in ranks] == [0, 0]


class _SilentStore:
    def wait(self, keys: list[str], patience: timedelta) -> None:
        raise RuntimeError(f"no {keys} after {patience}")


def test_a_silent_rank_zero_costs_a_warning_and_no_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(subject, "job_store", _SilentStore)
    with caplog.at_level(logging.WARNING):
        assert subject.choose_run_name(None, _rank(1, 2)).startswith("run-")
    assert "call profile() on all ranks" in caplog.records[0].getMessage()


@pytest.mark.parametrize("name", ["", "..", "a/b", " ", "../evil", ".hidden", "a\nb", " a", "x" * 300, "é" * 150])
def test_a_name_that_is_no_folder_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="run's name"):
        subject.choose_run_name(name, _rank(0, 1))
