"""Which values there are, and in which combinations."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.analyzer.ledger.activities import device_activities
from stepscope.analyzer.roofline.kernel_operator import launching_operators
from stepscope.trace.columns import NONE, Category, TraceColumns
from stepscope.trace.rows import SPARSE_IDS, combinations, distinct, last_row_of_id, launch_rows, sorted_order
from tests.analyzer.build import TraceBuilder

_CODES = st.lists(st.tuples(st.integers(-1, 127), st.integers(-1, 5), st.integers(-1, 2000)), max_size=60)


@given(_CODES)
def test_equal_rows_have_one_number_and_each_number_its_first_row(rows: list[tuple[int, int, int]]) -> None:
    columns = tuple(
        np.array([row[place] for row in rows], width) for place, width in enumerate((np.int8, np.int8, np.int16))
    )
    which, first = combinations(columns)
    different = sorted(set(rows))
    assert which.tolist() == [different.index(row) for row in rows]
    assert first.tolist() == [rows.index(row) for row in different]


@pytest.mark.parametrize("width", [np.int8, np.int16])
def test_the_largest_value_of_a_narrow_column_is_no_other(width: type[np.signedinteger]) -> None:
    largest = np.iinfo(width).max
    assert combinations((np.array([largest, 0], width),))[0].tolist() == [1, 0]


@given(st.lists(st.integers(-5, 300)))
def test_distinct_values_ascend(values: list[int]) -> None:
    assert distinct(np.array(values, np.int16)).tolist() == sorted(set(values))


@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(-3, 3)), max_size=30))
def test_agrees_with_lexsort(rows: list[tuple[int, int]]) -> None:
    major, minor = (np.array([row[place] for row in rows], np.int64) for place in (0, 1))
    assert sorted_order(major, minor).tolist() == np.lexsort((minor, major)).tolist()


def launched(trace: TraceColumns) -> list[tuple[int, int]]:
    """Start of each kernel and of its launch, microseconds after the first event."""
    kernels = trace.rows_of(Category.KERNEL)
    first = int(trace.start_ns.min())
    pairs = zip(kernels.tolist(), launch_rows(trace, kernels).tolist(), strict=True)
    return [(int(trace.start_ns[k] - first) // 1000, int(trace.start_ns[call] - first) // 1000) for k, call in pairs]


def two_launches(first_id: int, second_id: int) -> TraceColumns:
    """Two kernels, each in its operator; their correlation ids are overwritten."""
    builder = TraceBuilder()
    for begin in (0, 1000):
        builder.operator("aten::add", begin, begin + 20)
        builder.kernel(begin + 50, begin + 90, launch=begin + 10)
    trace = builder.build()
    for category in (Category.RUNTIME, Category.KERNEL):
        trace.correlation[trace.rows_of(category)] = first_id, second_id
    return trace


@pytest.mark.parametrize("number", [7, 7 + 100 * SPARSE_IDS])
def test_an_id_used_twice_is_the_last_call_that_began_before_the_kernel(number: int) -> None:
    trace = two_launches(number, number)
    assert launched(trace) == [(50, 10), (1050, 1010)]


def test_ledger_and_roofline_take_the_same_call() -> None:
    trace = two_launches(7, 7)
    activities = device_activities(trace)
    np.testing.assert_array_equal(activities.launch_row, launch_rows(trace, activities.row))
    operators = trace.rows_of(Category.CPU_OP)
    trace.external_id[:] = NONE
    np.testing.assert_array_equal(launching_operators(trace, activities.row, activities.launch_row), operators)


def test_a_kernel_before_every_call_of_its_id_belongs_to_the_first() -> None:
    trace = two_launches(7, 7)
    kernels = trace.rows_of(Category.KERNEL)
    early = int(trace.start_ns.min()) + 5_000
    trace.start_ns[kernels[0]] = early
    assert launched(trace)[0] == (5, 10)


def test_kernels_of_other_ids_have_no_launch() -> None:
    trace = two_launches(7, 8)
    trace.correlation[trace.rows_of(Category.KERNEL)] = 9, 0
    assert (launch_rows(trace, trace.rows_of(Category.KERNEL)) == NONE).all()


@given(
    calls=st.lists(st.tuples(st.integers(-1, 5), st.integers(0, 50)), max_size=12),
    kernels=st.lists(st.tuples(st.integers(-1, 6), st.integers(0, 50)), max_size=12),
)
def test_any_ids_agree_with_the_rule_read_aloud(calls: list[tuple[int, int]], kernels: list[tuple[int, int]]) -> None:
    builder = TraceBuilder()
    for _, start in calls:
        builder.runtime("cudaLaunchKernel", start, start + 1)
    own_calls = len(calls)
    for _, start in sorted(kernels, key=lambda kernel: kernel[1]):
        builder.kernel(start, start + 1, launch=1000 + start)
    trace = builder.build()
    runtime = trace.rows_of(Category.RUNTIME)
    trace.correlation[runtime] = [*(number for number, _ in calls), *[NONE] * (len(runtime) - own_calls)]
    rows = trace.rows_of(Category.KERNEL)
    trace.correlation[rows] = [number for number, _ in sorted(kernels, key=lambda kernel: kernel[1])]
    for row, found in zip(rows.tolist(), launch_rows(trace, rows).tolist(), strict=True):
        of_id = [call for call in runtime.tolist() if trace.correlation[call] == trace.correlation[row] > 0]
        of_id.sort(key=lambda call: trace.start_ns[call])
        begun = [call for call in of_id if trace.start_ns[call] <= trace.start_ns[row]]
        assert found == (begun[-1] if begun else of_id[0] if of_id else NONE)


def test_no_ids_find_nothing() -> None:
    ids = np.array([0, -1], np.int64)
    assert (last_row_of_id(ids, np.arange(2), np.array([0, 5], np.int64)) == NONE).all()
