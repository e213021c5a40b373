"""Light captures of a run: the latest that can be replayed counts, and only where all ranks have one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from benchmarks.labelled_runs.score import KEPT
from stepscope.workflow.analyze import analyze

_SYNCHRONIZATION = "synchronization"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of one rank that reads values, with one light capture."""
    return Path(shutil.copytree(KEPT / "gpu" / "vit_reads_norms", tmp_path / "run"))


def _share(run: Path) -> float:
    job_time = analyze([str(run)], keep=False).analysis.job_time
    assert job_time is not None
    return job_time.breakdown.get(_SYNCHRONIZATION, 0.0)


def test_an_older_light_capture_counts_where_the_latest_cannot_be_read(run: Path) -> None:
    share = _share(run)
    damaged = run / "light" / "step40" / "rank0.json.gz"
    damaged.parent.mkdir()
    damaged.write_bytes(b"not a trace")
    assert _share(run) == pytest.approx(share)


def test_one_of_several_ranks_is_not_replayed_as_the_whole_job(run: Path) -> None:
    assert _basis(run) == "replay"
    manifest = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(manifest | {"world_size": 2}))
    assert _basis(run) == "bound"


def _basis(run: Path) -> str | None:
    """How the step after the fix is known."""
    fix = analyze([str(run)], keep=False).analysis.verdict.fix
    return None if fix is None else fix.basis
