"""The accelerator and Python agree on the longest paths through a graph."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.analyzer.what_if.replay import ACCELERATOR, longest_times, longest_times_in_python

_WEIGHT = st.integers(-(2**60), 2**40)


@st.composite
def _ways(draw: st.DrawFn) -> list[np.ndarray[tuple[int], np.dtype[np.int64]]]:
    count = draw(st.integers(1, 30))
    sources = [[draw(st.integers(0, max(slot - 1, 0))) for slot in range(count)] for _ in range(2)]
    weights = [draw(st.lists(_WEIGHT, min_size=count, max_size=count)) for _ in range(2)]
    return [np.array(column, np.int64) for column in (sources[0], weights[0], sources[1], weights[1])]


@given(ways=_ways())
def test_both_give_the_same_times(ways: list[np.ndarray[tuple[int], np.dtype[np.int64]]]) -> None:
    assert longest_times(*ways).tolist() == longest_times_in_python(*ways).tolist()


def test_the_longer_way_counts() -> None:
    ways = ([0, 0, 1], [9, 5, 2], [0, 0, 0], [9, 3, 8])
    assert longest_times(*(np.array(column, np.int64) for column in ways)).tolist() == [0, 5, 8]


def test_a_slot_that_waits_for_a_later_one_is_refused() -> None:
    if ACCELERATOR is None:
        pytest.skip("the accelerator is not built here")
    source = np.array([0, 2, 0], np.int64)
    with pytest.raises(ValueError, match="later"):
        longest_times(source, source, source, source)
