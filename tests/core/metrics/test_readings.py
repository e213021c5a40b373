"""Readings distinguish unknown values from zero."""

from __future__ import annotations

import math
import pickle
from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.core.metrics.readings import (
    Collection,
    Finding,
    Missing,
    MissingReason,
    Reading,
    ReadingColumns,
    ReadingNames,
    Readings,
    ReadingSelection,
    labels_of,
    readings_of,
    with_labels,
)

GPU = labels_of(uuid="GPU-1", gpu=0)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_known_is_no_reading(value: float) -> None:
    with pytest.raises(ValueError, match="must be a Missing"):
        Reading("stepscope_gpu_power_watts", value, GPU, 1)


def test_a_reading_stays_as_it_is_and_can_be_copied() -> None:
    reading = Reading("stepscope_gpu_power_watts", 1.0, GPU, 1)
    with pytest.raises(FrozenInstanceError):
        reading.value = 2.0  # type: ignore[misc]
    assert replace(reading, value=2.0) == Reading("stepscope_gpu_power_watts", 2.0, GPU, 1)
    assert pickle.loads(pickle.dumps(reading)) == reading
    assert len({reading, replace(reading)}) == 1


def test_labels_are_equal_whatever_their_order() -> None:
    assert labels_of(gpu=0, uuid="GPU-1") == GPU == (("gpu", "0"), ("uuid", "GPU-1"))
    assert with_labels(GPU, pid=7, gpu=1) == (("gpu", "1"), ("pid", "7"), ("uuid", "GPU-1"))


def test_collections_join_in_their_order() -> None:
    reading = Reading("stepscope_gpu_power_watts", 0.0, GPU, 1)
    missing = Missing("stepscope_gpu_fan_speed_ratio", GPU, MissingReason.NOT_SUPPORTED)
    finding = Finding("xid", "XID 79", GPU, 2)
    joined = Collection.joined([Collection((reading,)), Collection((reading,), (missing,), (finding,)), Collection()])
    assert joined == Collection((reading, reading), (missing,), (finding,))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_column_has_no_unknown_value(value: float) -> None:
    with pytest.raises(ValueError, match="b is not finite: unknown values must be a Missing"):
        ReadingColumns(ReadingNames([("a", GPU), ("b", GPU)]), [1.0, value], 1)


def test_a_column_has_a_value_for_each_name() -> None:
    with pytest.raises(ValueError, match="1, not 2"):
        ReadingColumns(ReadingNames([("a", GPU), ("b", GPU)]), [1.0], 1)


pairs = st.tuples(st.sampled_from("abcd"), st.sampled_from([(), GPU, labels_of(gpu=1), labels_of(gpu=1, link=2)]))
blocks = st.lists(
    st.lists(st.tuples(pairs, st.floats(allow_nan=False, allow_infinity=False), st.integers(1, 2)), max_size=8),
    max_size=4,
)


@given(blocks)
def test_columns_are_the_readings_that_they_are_made_of(given_blocks: list[list[Any]]) -> None:
    plain = [
        tuple(Reading(metric, value, labels, time) for (metric, labels), value, time in block) for block in given_blocks
    ]
    columns = [
        readings_of([pair for pair, _, _ in block], [value for _, value, _ in block], [time for _, _, time in block])
        for block in given_blocks
    ]
    joined = Collection.joined(map(Collection, columns)).readings
    every = [one for block in plain for one in block]
    assert len(joined) == len(every)
    assert list(joined) == every
    assert joined == tuple(every)
    assert joined[:2] == tuple(every[:2])
    selection = ReadingSelection(
        lambda metric, labels: (dict(labels).get("gpu"), (metric, labels)) if metric in "ab" else None
    )
    wanted = [(dict(one.labels).get("gpu"), one) for one in every if one.metric in "ab"]
    for readings in (joined, joined, Readings(plain), every):  # the second time its names are known
        found = [
            (owner, Reading(metric, value, labels, time))
            for owner, uses, values, time in selection.of(readings)
            for (metric, labels), value in zip(uses, values, strict=True)
        ]
        assert found == wanted
