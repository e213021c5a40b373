"""Rows by category and name are those that a look at every row finds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.trace.columns import RowIndex

NAMES = ("a", "b", "c")
_ROWS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), max_size=12)


@given(_ROWS, st.sets(st.sampled_from(NAMES)), st.lists(st.integers(0, 3), unique=True))
def test_finds_what_a_look_at_every_row_finds(rows: list[tuple[int, int]], wanted: set[str], of: list[int]) -> None:
    category, name = (np.array([row[place] for row in rows], np.int8) for place in (0, 1))
    index = RowIndex(category, name, NAMES)
    expected = [place for place, row in enumerate(rows) if row[0] in of]
    for _ in range(2):  # what is kept is what was found
        assert index.of(tuple(of)).tolist() == expected
        assert index.named(tuple(of), wanted.__contains__).tolist() == [
            place for place in expected if NAMES[rows[place][1]] in wanted
        ]


def test_asks_for_each_name_of_the_categories_once() -> None:
    asked: list[str] = []
    index = RowIndex(np.array([0, 0, 1, 0]), np.array([0, 0, 1, 2]), NAMES)
    index.named((0,), asked.append)
    assert asked == ["a", "c"]


def test_rows_that_all_share_cannot_be_written() -> None:
    rows = RowIndex(np.array([0, 1]), np.array([0, 1]), NAMES).of((0,))
    with pytest.raises(ValueError, match="read-only"):
        rows[0] = 1
