"""Files appear only when they are complete."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from stepscope.core.documents.run_directory import Attempt, RunManifest
from stepscope.training.captures.trace_export import gzip_trace
from stepscope.training.run.run_files import (
    atomic_write,
    read_attempts,
    remove_leftovers,
    write_manifest,
)


def test_a_block_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def write_half() -> None:
        with atomic_write(tmp_path / "deep" / "file") as temporary:
            temporary.write_text("half")
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_half()
    assert list((tmp_path / "deep").iterdir()) == []


def test_compressed_trace_holds_the_same_bytes(tmp_path: Path) -> None:
    plain = tmp_path / "plain.json"
    plain.write_text(json.dumps({"traceEvents": list(range(300_000))}) + "\n")
    num_bytes = gzip_trace(plain, tmp_path / "rank0.json.gz")
    assert gzip.decompress((tmp_path / "rank0.json.gz").read_bytes()) == plain.read_bytes()
    assert num_bytes == plain.stat().st_size


def test_trace_cut_short_by_a_full_disk_does_not_appear(tmp_path: Path) -> None:
    plain = tmp_path / "plain.json"
    plain.write_text('{"traceEvents": [{"ph": "X", "na')
    with pytest.raises(OSError, match="cut short"):
        gzip_trace(plain, tmp_path / "rank0.json.gz")
    assert [path.name for path in tmp_path.iterdir()] == ["plain.json"]


def test_attempts_survive_a_restart_and_a_broken_file_counts_as_none(tmp_path: Path) -> None:
    attempt = Attempt(start_ns=1, end_ns=None, ended=None, world_size=2)
    write_manifest(
        tmp_path,
        RunManifest(
            run="r", host="h", world_size=2, mesh={}, num_cpus=2, versions={}, environment={}, attempts=[attempt]
        ),
    )
    assert read_attempts(tmp_path) == [attempt]
    (tmp_path / "run.json").write_text('{"attempts": [{"start')
    assert read_attempts(tmp_path) == []
    assert read_attempts(tmp_path / "nowhere") == []


@pytest.mark.parametrize(
    ("leftover", "is_removed_by"),
    [
        ("traces/step4/.rank1.json.gz.4194999.plain.part", 1),
        ("memory/.rank1-oom.pickle.4194999.part", 1),
        ("memory/step40/.rank1.json.4194999.part", 1),
        ("flight/.rank1.4194999.part", 1),
        (".run.json.4194999.part", 0),
    ],
)
def test_what_a_killed_process_left_half_written_is_removed_by_its_own_rank(
    tmp_path: Path, leftover: str, is_removed_by: int
) -> None:
    path = tmp_path / leftover
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    whole = path.with_name(path.name.removeprefix(".").removesuffix(".part"))
    whole.touch()
    for rank in {0, 1, 11} - {is_removed_by}:
        remove_leftovers(tmp_path, rank)
    assert path.exists()
    remove_leftovers(tmp_path, is_removed_by)
    assert not path.exists()
    assert whole.exists()
