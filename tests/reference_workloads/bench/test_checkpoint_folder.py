"""Checkpoint folder of a bench: shared by all ranks of a launcher, and removed after the run."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepscope.core.errors import DataError
from stepscope.reference_workloads.bench.measurement import bench_checkpoint_folder
from stepscope.reference_workloads.plan import ParallelPlan


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.chdir(tmp_path)


def test_no_folder_is_made_where_nothing_is_written(tmp_path: Path) -> None:
    with bench_checkpoint_folder(ParallelPlan(), is_needed=False):
        assert not list(tmp_path.iterdir())


def test_ranks_of_a_launcher_share_one_that_the_first_of_a_node_deletes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable, value in {"WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(variable, value)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "7")
    folders = []
    for rank in ("1", "0"):
        monkeypatch.setenv("RANK", rank)
        monkeypatch.setenv("LOCAL_RANK", rank)
        with bench_checkpoint_folder(ParallelPlan(dp=2), is_needed=True) as folder:
            folder.mkdir(exist_ok=True)
        folders.append(folder)
        assert folder.exists() == (rank == "1")
    assert folders[0] == folders[1]
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "cwd", lambda: tmp_path / "gone")
    with (
        pytest.raises(DataError, match="no checkpoint can be written"),
        bench_checkpoint_folder(ParallelPlan(), is_needed=True),
    ):
        pass
