"""Light captures of a run: the latest that can be replayed counts, and only where all ranks have one."""

from __future__ import annotations

import json
import shutil
from itertools import pairwise
from pathlib import Path

import pytest

from benchmarks.labelled_runs.score import KEPT
from stepscope.core.vocabulary import Cause
from stepscope.trace.columns import Category
from stepscope.trace.reading import read_ranks
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


@pytest.mark.shared
def test_the_light_captures_of_all_ranks_are_replayed_together(shared_traces: Path, tmp_path: Path) -> None:
    """Of a recorded job of two GPUs that the host limits; its unprofiled steps are made up, two thirds as long."""
    run, unprofiled_ns = tmp_path / "run", 120_000_000
    manifest = json.loads((KEPT / "gpu" / "vit_reads_norms" / "run.json").read_text())
    (run / "steps").mkdir(parents=True)
    (run / "run.json").write_text(json.dumps(manifest | {"world_size": 2, "attempts": []}))
    for rank, path in enumerate(sorted((shared_traces / "h100x2" / "launch_bound").glob("*.json.gz"))):
        for folder in ("light/step12", "traces/step12"):
            (run / folder).mkdir(parents=True, exist_ok=True)
            shutil.copy(path, run / folder / f"rank{rank}.json.gz")
        (trace,) = read_ranks(path)
        marks = trace.rows_named(lambda name: name.startswith("ProfilerStep#"), Category.USER_ANNOTATION)
        begins, ends = sorted(trace.start_ns[marks].tolist()), sorted(trace.end_ns[marks].tolist())
        before = [begins[0] - number * unprofiled_ns for number in range(12, -1, -1)]
        after = [ends[-1] + number * unprofiled_ns for number in range(12)]
        spans = [*pairwise(before), *zip(begins, ends, strict=True), *pairwise(after)]
        lines = [
            {
                "index": index,
                "start_ns": begin,
                "end_ns": end,
                "device_ns": end - begin,
                "captured": 12 <= index < 12 + len(ends),
                "state": "active" if 12 <= index < 12 + len(ends) else "wait",
            }
            for index, (begin, end) in enumerate(spans)
        ]
        (run / "steps" / f"rank{rank}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    verdict = analyze([str(run)], keep=False).analysis.verdict
    assert verdict.cause is Cause.HOST_BOUND
    assert verdict.fix is not None
    assert (verdict.fix.basis, verdict.fix.error) == ("replay", 0.05)
