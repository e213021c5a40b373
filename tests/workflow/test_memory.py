"""The recorded out-of-memory snapshot gets torch's own numbers and its real cause."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from stepscope.collectors.memory_snapshot import read_memory_snapshot
from stepscope.core.documents.memory import MemoryCategory, OomCause
from stepscope.core.errors import DataError
from stepscope.workflow.memory import read_memory


def test_the_recorded_leak(shared_traces: Path) -> None:
    ((_, report),) = read_memory([str(shared_traces / "diag/memory_h100/leak.pickle.gz")])
    assert (report.allocated_bytes, report.reserved_bytes) == (8_381_636_096, 8_491_368_448)
    assert report.oom is not None
    assert (report.oom.cause, report.oom.phase, report.oom.requested_bytes) == (OomCause.LEAK, "optimizer", 16 << 20)
    assert report.growth is not None
    assert report.growth.bytes_per_step == pytest.approx(36 << 20, rel=1e-3)
    assert max(report.by_category, key=lambda category: report.by_category[category]) is MemoryCategory.ACTIVATIONS
    assert report.by_category[MemoryCategory.PARAMETERS] == 134_283_264
    assert report.warnings == []


def test_read_piece_by_piece_it_is_the_same(shared_traces: Path) -> None:
    path = shared_traces / "diag/memory_h100/leak.pickle.gz"
    assert read_memory_snapshot(path, whole_below_bytes=0) == read_memory_snapshot(path)


def test_a_run_s_snapshots_are_found_failures_first_and_what_cannot_be_read_is_named(
    shared_traces: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "memory"
    (folder / "step5").mkdir(parents=True)
    source = shared_traces / "diag/memory_h100/leak.pickle.gz"
    shutil.copy(source, folder / "step5" / "rank0.pickle")
    shutil.copy(source, folder / "rank0-oom.pickle")
    (folder / "rank1-oom.pickle").write_bytes(b"")
    reports = read_memory([str(tmp_path)])
    assert [Path(name).name for name, _ in reports] == ["rank0-oom.pickle", "rank0.pickle"]
    assert [notice.code for notice in reports[0][1].warnings] == ["unusable_file"]


@pytest.mark.parametrize(("name", "said"), [("nothing", "does not exist"), (".", "holds no memory snapshot")])
def test_a_path_that_will_not_do(name: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=said):
        read_memory([str(tmp_path / name)])
