"""Tar files of a lane stay within their size and their number."""

from __future__ import annotations

import gzip
import json
import tarfile
from pathlib import Path

import pytest

from benchmarks.labelled_runs import archive
from benchmarks.labelled_runs.archive import ArchiveFullError, num_runs_that_fit, pack


def _run(folder: Path, name: str, num_bytes: int) -> Path:
    (folder / name / name).mkdir(parents=True)
    (folder / name / "truth.json").write_text("{}")
    (folder / name / name / "run.json").write_bytes(b"x" * num_bytes)
    return folder / name


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "MOST_TAR_BYTES", 50_000)


def test_a_full_tar_file_is_followed_by_another(tmp_path: Path) -> None:
    for name in "abc":
        assert pack(name, _run(tmp_path, name, 30_000), tmp_path, "lane", most_files=3) == 30_002
    assert sorted(path.name for path in tmp_path.glob("*.tar")) == ["lane-1.tar", "lane-2.tar", "lane-3.tar"]
    assert all(path.stat().st_size < 50_000 for path in tmp_path.glob("*.tar"))


def test_a_run_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    pack("a", _run(tmp_path, "a", 30_000), tmp_path, "lane", most_files=1)
    with pytest.raises(ArchiveFullError, match="another tar file"):
        pack("b", _run(tmp_path, "b", 30_000), tmp_path, "lane", most_files=1)
    with pytest.raises(ArchiveFullError, match="at most 50000"):
        pack("c", _run(tmp_path, "c", 60_000), tmp_path, "lane", most_files=2)


def test_a_tar_file_that_a_kill_left_incomplete_is_let_be(tmp_path: Path) -> None:
    pack("a", _run(tmp_path, "a", 10_000), tmp_path, "lane")
    path = tmp_path / "lane-1.tar"
    path.write_bytes(path.read_bytes()[:5_000])
    pack("b", _run(tmp_path, "b", 10_000), tmp_path, "lane")
    with tarfile.open(tmp_path / "lane-2.tar") as tar:
        assert "lane/b.truth.json" in tar.getnames()


def test_files_beside_the_run_are_kept(tmp_path: Path) -> None:
    folder = _run(tmp_path, "a", 10)
    (folder / "agent.jsonl").write_text("{}\n")
    pack("a", folder, tmp_path, "lane", more=[folder / "agent.jsonl"])
    with tarfile.open(tmp_path / "lane-1.tar") as tar:
        assert "lane/a.agent.jsonl" in tar.getnames()


def test_a_tar_file_with_room_is_filled_before_another_is_begun(tmp_path: Path) -> None:
    for name, num_bytes in (("a", 20_000), ("b", 35_000), ("c", 12_000)):
        pack(name, _run(tmp_path, name, num_bytes), tmp_path, "lane", most_files=2)
    with tarfile.open(tmp_path / "lane-1.tar") as tar:
        assert "lane/c.truth.json" in tar.getnames()


def test_how_many_runs_still_fit_is_known_before_they_are_made(tmp_path: Path) -> None:
    assert num_runs_that_fit(tmp_path, "lane", 2, 8_000) == 12
    pack("a", _run(tmp_path, "a", 20_000), tmp_path, "lane", most_files=2)
    assert num_runs_that_fit(tmp_path, "lane", 2, 8_000) == 8
    (tmp_path / "lane-1.tar").write_bytes(b"incomplete" * 2000)
    assert num_runs_that_fit(tmp_path, "lane", 2, 8_000) == 6


def test_traces_are_packed_as_they_are_kept(tmp_path: Path) -> None:
    """With what is read of them; an incomplete one stays as it is."""
    folder = _run(tmp_path, "a", 10)
    (traces := folder / "a" / "traces" / "step4").mkdir(parents=True)
    trace = {"traceEvents": [{"ph": "s", "cat": "ac2g", "name": "ac2g", "pid": 1, "tid": 2, "ts": 3.0, "id": 7}]}
    (traces / "rank0.json.gz").write_bytes(content := gzip.compress(json.dumps(trace).encode()))
    (traces / "rank1.json.gz").write_bytes(content[:20])
    pack("a", folder, tmp_path, "lane")
    with tarfile.open(tmp_path / "lane-1.tar") as tar:
        kept = [tar.extractfile(f"lane/a/traces/step4/rank{rank}.json.gz") for rank in (0, 1)]
        assert [file and file.read() for file in kept] == [
            gzip.compress(b'{"traceEvents":[]}', 9, mtime=0),
            content[:20],
        ]
