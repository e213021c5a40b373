"""Outliers of a job: values far from the others' median, and never the bulk."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stepscope.analyzer.fleet.outliers import outliers

_VALUES = st.lists(st.none() | st.floats(-1e6, 1e6), max_size=40)


def test_one_of_eight_is_far_below() -> None:
    busy = [0.95, 0.96, 0.94, 0.95, 0.2, 0.95, 0.97, 0.95]
    assert outliers(busy, low=0.25) == [4]
    assert outliers(busy, high=0.25) == []
    assert outliers(busy, low=0.8) == []


def test_above() -> None:
    assert outliers([60.0, 61.0, 59.0, 80.0], high=15.0) == [3]


def test_unknown_values_count_for_nothing() -> None:
    assert outliers([None, 0.9, 0.9, 0.9, None, 0.1, 0.9], low=0.25) == [5]
    assert outliers([0.9, 0.9, None, 0.1], low=0.25) == []  # three say nothing


def test_no_outliers_where_all_differ() -> None:
    assert outliers([0.1, 0.3, 0.5, 0.7, 0.9, 0.2, 0.4, 0.6], low=0.25) == []


@given(_VALUES, st.floats(0.0, 1e3))
def test_at_most_half_are_outliers_and_each_is_far(values: list[float | None], far: float) -> None:
    known = sorted(value for value in values if value is not None)
    found = outliers(values, low=far, high=far)
    assert len(found) <= len(known) / 2
    for place in found:
        value = values[place]
        assert value is not None
        assert sum(abs(value - other) >= far for other in known) >= len(known) / 2 - 1


@given(_VALUES, st.floats(-1e3, 1e3))
def test_a_shift_of_all_changes_nothing_much(values: list[float | None], by: float) -> None:
    whole = [None if value is None else float(round(value)) for value in values]
    shifted = [None if value is None else value + round(by) for value in whole]
    assert outliers(shifted, low=1.5, high=1.5) == outliers(whole, low=1.5, high=1.5)
