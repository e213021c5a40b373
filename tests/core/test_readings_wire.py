"""Does a collection come out of the pipe as it went in, and is nonsense told from it?"""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.core.readings import Collection, Finding, Missing, MissingReason, Reading
from stepscope.core.readings_wire import WireError, decode, encode

texts = st.text(max_size=10)
labels = st.lists(st.tuples(texts, texts), max_size=3).map(lambda pairs: tuple(sorted(pairs)))
times = st.integers(0, 2**63)
collections = st.builds(
    Collection,
    st.lists(st.builds(Reading, texts, st.floats(allow_nan=False, allow_infinity=False), labels, times)).map(tuple),
    st.lists(st.builds(Missing, texts, labels, st.sampled_from(MissingReason), texts)).map(tuple),
    st.lists(st.builds(Finding, texts, texts, labels, times)).map(tuple),
)


@given(collections)
def test_what_is_written_is_read(collection: Collection) -> None:
    assert decode(json.loads(json.dumps(encode(collection)))) == collection


@pytest.mark.parametrize(
    "message",
    [
        {},
        {"readings": [], "missing": [], "findings": [], "labels": [["gpu"]]},
        {"readings": [["power", 1.0, 3, 0]], "missing": [], "findings": [], "labels": []},
        {"readings": [["power", float("nan"), 0, 0]], "missing": [], "findings": [], "labels": [[]]},
        {"readings": [], "missing": [["power", 0, "bored", ""]], "findings": [], "labels": [[]]},
    ],
)
def test_nonsense_is_an_error_of_its_own(message: dict[str, object]) -> None:
    with pytest.raises(WireError):
        decode(message)
