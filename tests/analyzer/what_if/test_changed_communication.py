"""The cost of a transfer is that of the calls it was fitted to, and claims no latency that they do not prove."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.analyzer.what_if.changed_communication import MOST_LATENCY_NS, SLOWEST_NS_PER_BYTE, fitted_costs

LATENCIES = st.floats(0.0, 1e7)
RATES = st.floats(0.001, 10.0)
SIZES = st.lists(st.integers(1_000, 100_000_000), min_size=2, max_size=8, unique=True)


@given(LATENCIES, RATES, SIZES)
def test_latency_and_rate_come_back_from_calls_of_several_sizes(latency: float, rate: float, sizes: list[int]) -> None:
    sizes = [*sizes, 4 * min(sizes)]
    took = [latency + rate * size for size in sizes]
    (cost,) = fitted_costs(sizes, took)
    assert [cost.of(size) for size in sizes] == pytest.approx(took, rel=1e-6)


@given(st.integers(1_000, 100_000_000), st.floats(1.0, 1e9))
def test_one_size_proves_only_what_the_slowest_network_leaves(size: int, took: float) -> None:
    cost, *others = fitted_costs([size] * 3, [took] * 3)
    assert [one.of(size) for one in (cost, *others)] == pytest.approx([took] * (1 + len(others)))
    assert all(other.latency_ns > cost.latency_ns for other in others)
    assert cost.latency_ns == pytest.approx(min(max(took - SLOWEST_NS_PER_BYTE * size, 0.0), MOST_LATENCY_NS))


@given(st.lists(st.tuples(st.integers(1, 10**9), st.floats(1.0, 1e9)), min_size=1, max_size=10))
def test_neither_part_is_negative(calls: list[tuple[int, float]]) -> None:
    costs = fitted_costs([size for size, _ in calls], [took for _, took in calls])
    assert costs
    assert all(cost.latency_ns >= 0 and cost.ns_per_byte >= 0 for cost in costs)


def test_calls_without_a_size_or_time_tell_nothing() -> None:
    assert fitted_costs([0, 100], [50.0, 0.0]) == []
