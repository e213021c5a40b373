"""Which values there are, and in which combinations."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.analyzer.membership import combinations, distinct

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
