"""Lower resolution loses nothing that sums of steps need."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.core.metrics import MetricKind
from stepscope.store.history.resolution import coarser
from stepscope.store.history.samples import TableRows, sorted_rows
from tests.store.history.blocks import gpu

KINDS = {"power": MetricKind.GAUGE, "energy_total": MetricKind.COUNTER}
MINUTE = 60_000

values = st.one_of(st.floats(0, 1e6, width=32), st.just(float("nan")))
samples = st.lists(
    st.tuples(st.integers(0, 2), st.integers(1, 40 * MINUTE), values, values),
    min_size=1,
    max_size=80,
    unique_by=lambda one: one[:2],
)


def rows_of(some: list[tuple[int, int, float, float]]) -> TableRows:
    """Sorted rows of samples: entity, time in ms, gauge, counter."""
    entity, times, power, energy = (np.array(column) for column in zip(*some, strict=True))
    names = tuple(name for name, _ in gpu(0))
    columns = {"power": power.astype(np.float64), "energy_total": energy.astype(np.float64)}
    entities = tuple(gpu(index) for index in range(3))
    return sorted_rows(TableRows(names, entities, entity.astype(np.int32), times.astype(np.int64), columns))


@given(samples)
def test_ten_minutes_of_minutes_are_those_of_the_samples(some: list[tuple[int, int, float, float]]) -> None:
    rows = rows_of(some)
    by_minutes = coarser(coarser(rows, KINDS, MINUTE), KINDS, 10 * MINUTE)
    at_once = coarser(rows, KINDS, 10 * MINUTE)
    assert by_minutes.entity.tolist() == at_once.entity.tolist()
    assert by_minutes.times_ms.tolist() == at_once.times_ms.tolist()
    assert by_minutes.columns.keys() == at_once.columns.keys()
    for name, column in at_once.columns.items():
        np.testing.assert_allclose(by_minutes.columns[name], column, rtol=1e-9, atol=1e-6)


@given(samples)
def test_a_counter_keeps_its_increase_over_restarts(some: list[tuple[int, int, float, float]]) -> None:
    whole = coarser(rows_of(some), KINDS, 60 * MINUTE)
    for row, entity in enumerate(whole.entity.tolist()):
        known = sorted((time, value) for one, time, _, value in some if one == entity and value == value)
        assert whole.columns["energy_total.count"][row] == len(known)
        if known:
            rise = sum(after - before if after >= before else after for (_, before), (_, after) in pairwise(known))
            assert whole.columns["energy_total.increase"][row] == pytest.approx(rise)
            assert whole.times_ms[row] - whole.columns["energy_total.first_age_ms"][row] == known[0][0]
            assert whole.times_ms[row] - whole.columns["energy_total.last_age_ms"][row] == known[-1][0]
