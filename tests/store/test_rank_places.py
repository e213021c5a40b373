"""Where the ranks of a run ran, as `profile()` writes it and readers read it."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest

import stepscope
from stepscope.core.documents.run_directory import RankFile, RankPlace
from stepscope.store.rank_places import read_rank_places
from stepscope.training.run.identity import Identity
from stepscope.training.run.rank_place import RankPlaceFile


def test_profile_says_where_its_rank_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    with stepscope.profile("r", tmp_path) as prof:
        prof.step()
    (place,), notices = read_rank_places(tmp_path / "r")
    assert (place.rank, place.host, place.pid, place.gpu_uuid) == (0, socket.gethostname(), os.getpid(), None)
    assert (place.job_kind, place.job_id, notices) == ("slurm", "4711", [])


def test_the_gpu_is_written_once_it_is_known(tmp_path: Path) -> None:
    uuid: str | None = None
    file = RankPlaceFile(tmp_path, Identity(3, 1, 4, "n7"), lambda: uuid)
    file.run_task()
    path = tmp_path / RankFile.PLACE.path(3)
    first = path.stat().st_mtime_ns
    file.run_task()
    assert path.stat().st_mtime_ns == first
    uuid = "GPU-5"
    file.run_task()
    (place,), _ = read_rank_places(tmp_path)
    assert (place.rank, place.local_rank, place.host, place.gpu_uuid) == (3, 1, "n7", "GPU-5")


def test_a_folder_that_cannot_be_written_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "ranks").write_text("")
    RankPlaceFile(tmp_path, Identity(0, 0, 1, "n7"), lambda: None).run_task()
    assert "cannot be written" in caplog.text


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"rank": 1}', b"\xff", b"[" * 100_000])
def test_damaged_and_misplaced_files_are_left_out(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / RankFile.PLACE.path(0)
    path.parent.mkdir()
    path.write_bytes(content)
    good = {"rank": 1, "local_rank": 1, "host": "n1", "pid": 5, "start_ns": 7, "newer": True}
    path.with_name("rank1.json").write_text(json.dumps(good))
    path.with_name("rank2.json").write_text(json.dumps(good))  # says that it is rank 1
    places, (notice,) = read_rank_places(tmp_path)
    assert places == [RankPlace(1, 1, "n1", 5, 7)]
    assert "2 files" in notice.message
