"""Readings distinguish unknown values from zero."""

from __future__ import annotations

import json
import math
import pickle
from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.core.metrics.readings import (
    Collection,
    CollectionWireError,
    Finding,
    Missing,
    MissingReason,
    Reading,
    StreamReader,
    StreamWriter,
    labels_of,
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


texts = st.text(max_size=10)
labels = st.lists(st.tuples(texts, texts), max_size=3).map(lambda pairs: tuple(sorted(pairs)))
times = st.integers(0, 2**63)
collections = st.builds(
    Collection,
    st.lists(
        st.builds(Reading, texts, st.floats(allow_nan=False, allow_infinity=False), labels, times), max_size=5
    ).map(tuple),
    st.lists(st.builds(Missing, texts, labels, st.sampled_from(MissingReason), texts), max_size=5).map(tuple),
    st.lists(st.builds(Finding, texts, texts, labels, times), max_size=5).map(tuple),
)


POWER = Reading("power", 1.0, (("gpu", "0"),), 5)
TOLD = Collection((POWER, replace(POWER, metric="energy")), (Missing("fan", (), MissingReason.NOT_SUPPORTED),))


@st.composite
def streams(draw: st.DrawFn) -> list[Collection]:
    """Collections of one stream: some alike but for their values and times, as most are."""
    told = draw(st.lists(collections, min_size=1, max_size=4))
    for number in draw(st.lists(st.integers(0, len(told) - 1), max_size=6)):
        value, time_ns = draw(st.floats(-1e9, 1e9)), draw(times)
        readings = tuple(replace(one, value=value, time_ns=time_ns) for one in told[number].readings)
        told.insert(draw(st.integers(0, len(told))), replace(told[number], readings=readings))
    return told


@given(streams())
def test_what_is_written_is_read(stream: list[Collection]) -> None:
    writer, reader = StreamWriter(), StreamReader()
    for collection in stream:
        assert reader.read(json.loads(json.dumps(writer.write(collection)))) == collection


def test_what_stays_the_same_is_written_once() -> None:
    writer = StreamWriter()
    assert "shape" in writer.write(TOLD)
    assert writer.write(TOLD) == {"values": [1.0, 1.0], "times": 5}
    assert "shape" in writer.write(replace(TOLD, missing=()))


def test_a_stream_cannot_be_read_from_its_middle() -> None:
    writer = StreamWriter()
    writer.write(TOLD)
    with pytest.raises(CollectionWireError, match="without a shape"):
        StreamReader().read(writer.write(TOLD))


def shaped(readings: list[Any], missing: list[Any], labels: list[Any], **told: Any) -> dict[str, Any]:
    return {"shape": {"readings": readings, "missing": missing, "labels": labels}, "values": [], "times": [], **told}


@pytest.mark.parametrize(
    "message",
    [
        {},
        {"values": [1.0], "times": 1},
        shaped([], [], [["gpu"]]),
        shaped([["power", 3]], [], [], values=[1.0], times=1),
        shaped([["power", 0]], [], [[]], values=[float("nan")], times=1),
        shaped([["power", 0]], [], [[]], values=["1"], times=1),
        shaped([["power", 0]], [], [[]], values=[1.0], times="now"),
        shaped([["power", 0]], [], [[]], values=[1.0], times=[1, 2]),
        shaped([["power", 0]], [], [[]], values=[1.0, 2.0], times=1),
        shaped([], [["power", 0, "bored", ""]], [[]]),
        shaped([], [], [], findings=[["xid", "XID 79", [], 1, 2]]),
    ],
)
def test_nonsense_is_an_error_of_its_own(message: dict[str, Any]) -> None:
    with pytest.raises(CollectionWireError):
        StreamReader().read(message)


def test_a_collection_alone_is_read_alone() -> None:
    readings = (Reading("stepscope_gpu_up", 1.0, (("gpu", "0"),), 5),)
    assert StreamReader().read(json.loads(json.dumps(StreamWriter().write(Collection(readings))))) == Collection(
        readings
    )
