"""Collections of readings travel as the messages of a stream."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.core.metrics.readings import Collection, Finding, Missing, MissingReason, Reading, labels_of
from stepscope.core.metrics.stream import CollectionWireError, StreamReader, StreamWriter

GPU = labels_of(uuid="GPU-1", gpu=0)

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
