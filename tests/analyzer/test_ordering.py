"""Order by two columns is what np.lexsort says."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stepscope.analyzer.ordering import order_of


@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(-3, 3)), max_size=30))
def test_agrees_with_lexsort(rows: list[tuple[int, int]]) -> None:
    major, minor = (np.array([row[place] for row in rows], np.int64) for place in (0, 1))
    assert order_of(major, minor).tolist() == np.lexsort((minor, major)).tolist()
