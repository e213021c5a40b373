from __future__ import annotations

from pathlib import Path

import pytest

from stepscope.core.documents.what_if import WhatIfInput
from stepscope.core.errors import DataError
from stepscope.core.vocabulary import Cause
from stepscope.workflow.what_if import find_operation_table, what_if
from tests.analyzer.what_if.pipelined_job import one_forward_one_backward, operation_table

pyarrow = pytest.importorskip("pyarrow", reason="reading parquet needs pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """Four stages, four replicas; the worker of stage 2 in replica 1 takes twice as long."""

    def cost(direction: str, stage: int, replica: int, _step: int, _batch: int) -> float:
        return (1.0 if direction == "forward" else 2.0) * (2.0 if (stage, replica) == (2, 1) else 1.0)

    table = operation_table([one_forward_one_backward(stage, 4, 8) for stage in range(4)], cost, num_replicas=4)
    columns = {
        "dp_rank": table.dp_rank,
        "stage": table.stage,
        "rank": table.rank,
        "step": table.step,
        "optype": [table.kinds[kind] for kind in table.kind],
        "start_ts": table.start_seconds,
        "duration": table.duration_seconds,
        "seq_id": table.number,
        "mc": table.chunk,
        "gmc": table.global_chunk,
    }
    path = tmp_path / "trace-job.parquet"
    parquet.write_table(pyarrow.table(columns), path)
    return path


def test_the_slow_worker_is_named_with_what_its_repair_buys(job: Path) -> None:
    report = what_if([str(job.parent)])
    best = report.fixes[0]
    assert (report.input, best.fix, best.ranks) == (WhatIfInput.OPERATION_TABLE, Cause.STRAGGLER, [2 * 4 + 1])
    # the schedule's (8 + 4 - 1) x 3 s; the ideal's mean carries a sixteenth of the slow worker, 7 times exposed
    assert best.step_ms == pytest.approx(33_000 + 7 * 3_000 / 16)
    assert report.replay_error == pytest.approx(0.0, abs=1e-9)
    assert max(report.by_stage, key=lambda stage: report.by_stage[stage]) == "2"
    assert [notice.code for notice in report.warnings] == ["no_description"]


def test_a_fix_that_a_table_cannot_tell_is_said(job: Path) -> None:
    report = what_if([str(job)], causes=[Cause.COPY])
    assert (report.fixes, [notice.code for notice in report.warnings]) == ([], ["no_description", "fix_not_known"])


def test_several_tables_are_refused(job: Path) -> None:
    (job.parent / "trace-other.parquet").write_bytes(job.read_bytes())
    with pytest.raises(DataError, match="one table at a time"):
        find_operation_table([str(job.parent)])


def test_other_paths_hold_no_table(tmp_path: Path) -> None:
    assert find_operation_table([str(tmp_path), "s3://bucket/run", "rank0.json.gz"]) is None


@pytest.mark.shared
def test_the_recorded_64_gpu_job(shared_traces: Path) -> None:
    report = what_if([str(shared_traces / "diag" / "bytedance")])
    assert report.slowdown == pytest.approx(1.9730, abs=1e-4)
    assert (report.worst_workers_share, report.last_stage_share) == pytest.approx((1.0017, -0.0012), abs=1e-4)
    assert report.fixes[0].ranks == [0]
    assert report.warnings == []


def test_operations_that_take_no_time_are_refused(job: Path) -> None:
    table = parquet.read_table(job)
    for name in ("start_ts", "duration"):
        place = table.column_names.index(name)
        table = table.set_column(place, name, pyarrow.array([0.0] * len(table)))
    parquet.write_table(table, job)
    with pytest.raises(DataError, match="take no time"):
        what_if([str(job.parent)])
