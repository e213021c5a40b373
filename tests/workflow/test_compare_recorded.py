"""Comparisons of recorded runs name what was built into them, and nothing where nothing was."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from stepscope.analyzer.compare.comparison import compare_runs
from stepscope.analyzer.compare.run_record import RunRecord
from stepscope.core.documents.comparison import Change, Comparison
from stepscope.core.vocabulary import Cause
from stepscope.workflow.compare import read_run_record

pytestmark = pytest.mark.shared


def between(folder: Path, a: str, b: str) -> Comparison:
    return compare_runs([_run(folder / a)], [_run(folder / b)], names=(a, b))


@cache
def _run(path: Path) -> RunRecord:
    return read_run_record(str(path), [])


def slower(comparison: Comparison) -> dict[Cause, list[int]]:
    return {row.cause: row.ranks_b for row in comparison.causes if row.ms.state is Change.SLOWER}


def test_the_slow_loader_is_data_loading(shared_traces: Path) -> None:
    found = between(shared_traces / "h100x2", "ddp", "slow_loader")
    assert found.step_time.state is Change.SLOWER
    assert list(slower(found)) == [Cause.DATA_LOADING]
    assert [row for row in found.kernels if row.calls_a != pytest.approx(row.calls_b)] == []


def test_the_straggler_is_the_work_of_rank_1(shared_traces: Path) -> None:
    found = between(shared_traces / "h100x2", "ddp", "straggler")
    assert slower(found)[Cause.STRAGGLER] == [1]
    assert found.kernels[0].ms.state is Change.SLOWER
    assert found.kernels[0].calls_b > 3 * found.kernels[0].calls_a


def test_without_peer_access_communication_is_slower(shared_traces: Path) -> None:
    found = between(shared_traces / "h100x2", "fsdp", "fsdp_p2poff")
    assert found.causes[0].cause is Cause.COMMUNICATION
    assert found.causes[0].ms.state is Change.SLOWER
    assert found.busbw_gbs.state is Change.LOWER
    assert "communication" in found.summary
    assert found.collectives[0].transfer_ms.state is Change.SLOWER


def test_more_micro_batches_of_a_host_bound_pipeline_are_not_a_bubble(shared_traces: Path) -> None:
    found = between(shared_traces / "h100x2", "pp_few", "pp_many")
    assert "host_bound_not_bubble" in [notice.code for notice in found.findings]


def test_a_run_has_not_changed_from_itself(shared_traces: Path) -> None:
    found = between(shared_traces / "h100x2", "ddp", "ddp")
    assert found.step_time.state is Change.NOT_SEEN
    assert "little_known" in [notice.code for notice in found.findings]
    assert {row.ms.state for row in found.kernels} == {Change.NOT_SEEN}
