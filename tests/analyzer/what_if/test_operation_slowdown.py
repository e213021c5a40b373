from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.analyzer.what_if.operation_slowdown import OperationReplay, Slowdown, find_slowdown
from stepscope.analyzer.what_if.operations import Dependencies, OperationGrid, arrange_operations, find_dependencies
from stepscope.core.errors import DataError
from stepscope.trace.formats.operation_table import read_operation_table
from stepscope.trace.operations import OperationTable
from tests.analyzer.what_if.pipelined_job import Task, all_forwards_first, one_forward_one_backward, operation_table

FORWARD_SECONDS, BACKWARD_SECONDS = 1.0, 2.0


def even(direction: str, *_where: int) -> float:
    return FORWARD_SECONDS if direction == "forward" else BACKWARD_SECONDS


def slowdown_of(table: OperationTable) -> Slowdown:
    grid = arrange_operations(table)
    found = find_dependencies(grid, data_parallel=len(grid.replicas) * table.shards_per_replica > 1)
    return find_slowdown(grid, OperationReplay(grid, found))


def one_f_one_b(num_stages: int, num_micro_batches: int) -> list[list[Task]]:
    return [one_forward_one_backward(stage, num_stages, num_micro_batches) for stage in range(num_stages)]


@given(num_stages=st.integers(2, 4), extra=st.integers(0, 4))
@settings(max_examples=10)
def test_an_even_pipeline_has_no_slowdown_and_takes_what_the_schedule_says(num_stages: int, extra: int) -> None:
    num_micro_batches = num_stages + extra
    found = slowdown_of(operation_table(one_f_one_b(num_stages, num_micro_batches), even))
    expected = (num_micro_batches + num_stages - 1) * (FORWARD_SECONDS + BACKWARD_SECONDS)
    assert found.measured_seconds == pytest.approx(expected)
    assert found.replayed_seconds == pytest.approx(expected)
    assert found.slowdown == pytest.approx(1.0)
    assert found.worst_workers.share == 0.0


@pytest.mark.parametrize(("num_stages", "num_chunks"), [(2, 2), (3, 2), (2, 3)])
def test_stages_of_several_chunks_are_replayed_as_they_ran(num_stages: int, num_chunks: int) -> None:
    orders = [all_forwards_first(stage, num_stages, 4, num_chunks) for stage in range(num_stages)]
    found = slowdown_of(operation_table(orders, even))
    assert found.replayed_seconds == pytest.approx(found.measured_seconds)
    assert found.slowdown == pytest.approx(1.0)


def test_one_slow_worker_explains_the_whole_slowdown() -> None:
    def cost(direction: str, stage: int, replica: int, _step: int, _batch: int) -> float:
        return even(direction) * (2.0 if (stage, replica) == (1, 1) else 1.0)

    found = slowdown_of(operation_table(one_f_one_b(4, 8), cost, num_replicas=4))
    assert found.worst_ranks == [1 * 4 + 1]
    assert found.slowdown > 1.5
    # more than all: the ideal's mean still carries a sixteenth of the slow worker
    assert found.worst_workers.share == pytest.approx(1.0526, abs=1e-3)
    assert max(found.by_stage, key=lambda stage: found.by_stage[stage]) == 1
    assert max(found.by_replica, key=lambda replica: found.by_replica[replica]) == 1


def test_a_heavy_last_stage_is_the_stages_fault_not_a_workers() -> None:
    def cost(direction: str, stage: int, *_where: int) -> float:
        return even(direction) * (2.0 if stage == 3 else 1.0)

    found = slowdown_of(operation_table(one_f_one_b(4, 8), cost, num_replicas=16))
    assert found.last_stage is not None
    assert found.last_stage.share > 0.9
    assert found.worst_workers.share < 0.1


def test_only_the_kind_that_varies_is_blamed() -> None:
    def cost(direction: str, _stage: int, replica: int, _step: int, batch: int) -> float:
        return even(direction) * (1.5 if direction == "backward" and (replica + batch) % 2 else 1.0)

    by_kind = slowdown_of(operation_table(one_f_one_b(2, 4), cost)).by_kind
    assert by_kind["backward-compute"] > 1.0
    assert by_kind["forward-compute"] == pytest.approx(1.0)


def test_the_order_of_the_rows_means_nothing() -> None:
    def cost(direction: str, stage: int, replica: int, step: int, batch: int) -> float:
        return even(direction) * (1 + 0.1 * ((stage * 7 + replica * 5 + step * 3 + batch) % 4))

    table = operation_table(one_f_one_b(3, 5), cost)
    mixed = np.random.default_rng(0).permutation(len(table.kind))
    assert slowdown_of(rows_of(table, mixed)) == slowdown_of(table)


def rows_of(table: OperationTable, keep: np.ndarray) -> OperationTable:
    columns = (
        "kind",
        "number",
        "stage",
        "dp_rank",
        "rank",
        "step",
        "chunk",
        "global_chunk",
        "start_seconds",
        "duration_seconds",
    )
    return replace(table, **{name: getattr(table, name)[keep] for name in columns})


def test_a_step_that_lacks_an_operation_is_left_out_and_counted() -> None:
    table = operation_table(one_f_one_b(2, 4), even, num_steps=3)
    gone = (table.step == 1) & (table.dp_rank == 0) & (table.stage == 1) & (table.number == 2)
    grid = arrange_operations(rows_of(table, ~gone))
    assert (grid.steps, grid.num_left_out) == ([0, 2], 1)


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda t: rows_of(t, np.r_[0, np.arange(len(t.kind))]), "twice"),
        (lambda t: rows_of(t, t.stage != 1), "gap in its stages"),
        (lambda t: replace(t, kinds=["surprise", *t.kinds[1:]]), "surprise"),
        (lambda t: rows_of(t, ~((t.number == 2) & (t.dp_rank == 0))), "no step"),
    ],
    ids=["the same operation twice", "a stage is missing", "a kind nobody knows", "no step is whole"],
)
def test_a_table_that_cannot_be_a_job_is_refused_with_the_reason(spoil: object, says: str) -> None:
    table = operation_table(one_f_one_b(3, 4), even)
    with pytest.raises(DataError, match=says):
        arrange_operations(spoil(table))  # type: ignore[operator]


def test_operations_that_wait_in_a_cycle_are_refused() -> None:
    grid: OperationGrid = arrange_operations(operation_table(one_f_one_b(2, 2), even))
    first, second = grid.operations[:2]
    cycle = Dependencies()
    cycle.needs[first].append(second)
    cycle.needs[second].append(first)
    with pytest.raises(DataError, match="cycle"):
        OperationReplay(grid, cycle)


@pytest.mark.shared
@pytest.mark.skipif(importlib.util.find_spec("pyarrow") is None, reason="reading parquet needs pyarrow")
def test_the_recorded_64_gpu_job_with_a_slow_worker(shared_traces: Path) -> None:
    found = slowdown_of(read_operation_table(shared_traces / "diag" / "bytedance" / "trace-AR.parquet"))
    assert found.slowdown == pytest.approx(1.9730, abs=1e-4)
    assert found.worst_workers.share == pytest.approx(1.0017, abs=1e-4)
    assert found.last_stage is not None
    assert found.last_stage.share == pytest.approx(-0.0012, abs=2e-5)
    assert found.worst_ranks == [0]
    assert found.by_stage == pytest.approx({0: 1.9792, 1: 0.9971, 2: 0.9956, 3: 1.0024}, abs=1e-4)
    assert found.by_replica[0] == pytest.approx(1.9730, abs=1e-4)
    assert all(found.by_replica[replica] == pytest.approx(1.011, abs=5e-4) for replica in (1, 2, 3))
