"""Nanoseconds are exact for every mix of integers and floats, and the slow path is used only when needed."""

from __future__ import annotations

from decimal import Decimal
from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.trace.formats.kineto.fields import MAX_START_NS, UNKNOWN_NS, durations_ns, exact_starts_ns, starts_ns

THOUSANDTHS = st.integers(1 - 2**43 * 1000, 2**43 * 1000 - 1).map(lambda ns: float(Decimal(ns) / 1000))
MICROSECONDS = st.integers(-(2**70), 2**70) | THOUSANDTHS


@given(st.lists(THOUSANDTHS | st.integers(-(2**42), 2**42)))
def test_floats_and_integers_below_the_limit_need_no_second_look(values: list[int | float]) -> None:
    fast = starts_ns(values)
    assert fast is not None
    assert fast.tolist() == exact_starts_ns([Decimal(repr(value)) for value in values]).tolist()


@given(st.lists(st.integers(-(2**63), 2**63 - 1)))
def test_integers_are_exact_up_to_the_largest_start(values: list[int]) -> None:
    fast = starts_ns(values)
    assert fast is not None
    expected = [value * 1000 if abs(value * 1000) <= MAX_START_NS else int(UNKNOWN_NS) for value in values]
    assert fast.tolist() == expected


@given(st.lists(MICROSECONDS))
def test_the_fast_way_is_right_or_declines(values: list[int | float]) -> None:
    fast = starts_ns(values)
    if fast is not None:
        assert fast.tolist() == exact_starts_ns([Decimal(repr(value)) for value in values]).tolist()


@pytest.mark.parametrize(
    "values",
    [[2**63], [1, 2**64], [1.5, 10**400], [10**400], [1, 2**43 + 0.5], [float(2**43)], [2.5, 2**50], [inf], [-inf, 1]],
)
def test_what_float64_may_have_rounded_is_declined(values: list[int | float]) -> None:
    assert starts_ns(values) is None


def test_what_is_not_recorded_is_unknown() -> None:
    unknown = int(UNKNOWN_NS)
    fast = starts_ns([1, nan, 2.5])
    assert fast is not None
    assert fast.tolist() == [1000, unknown, 2500]
    assert durations_ns([1.0, nan, -1.0, inf, 2.0**43, 0.001]).tolist() == [1000, unknown, unknown, unknown, unknown, 1]
    assert durations_ns([]).tolist() == []
