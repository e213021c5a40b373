"""A streamed pickle gives the same value as Python's own unpickler, and is as safe."""

from __future__ import annotations

import io
import pickle
import tracemalloc
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.collectors.safe_pickle.loading import UnsafePickleError
from stepscope.collectors.safe_pickle.streaming import KeyPath, stream_plain
from stepscope.core.errors import DataError

_LEAF = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
_PLAIN = st.recursive(
    _LEAF,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text() | st.integers(), inner, max_size=4)
    ),
    max_leaves=30,
)


def _nothing(_: KeyPath, __: list[Any]) -> bool:
    return False


@given(_PLAIN, st.integers(0, 5))
def test_what_nobody_takes_comes_back_whole(value: Any, protocol: int) -> None:
    content = pickle.dumps(value, protocol)
    assert stream_plain(content, _nothing, where="here") == pickle.loads(content)


@given(st.lists(_LEAF, max_size=9), st.lists(st.lists(_LEAF, max_size=9), max_size=3), _PLAIN, st.integers(0, 5))
def test_lists_near_the_top_are_handed_over_in_order(
    first: list[Any], lists: list[list[Any]], other: Any, protocol: int
) -> None:
    value = {"other": other, "first": first, "lists": lists, "last": other}
    taken: dict[KeyPath, list[Any]] = {}

    def take(path: KeyPath, items: list[Any]) -> bool:
        if path == ("first",) or (path[:1] == ("lists",) and len(path) == 2):
            taken.setdefault(path, []).extend(items)
            return True
        return False

    left = stream_plain(pickle.dumps(value, protocol), take, where="here")
    assert left == {"other": other, "first": [], "lists": [[] for _ in lists], "last": other}
    assert taken.get(("first",), []) == first
    assert [taken.get(("lists", place), []) for place in range(len(lists))] == lists


@pytest.mark.parametrize("protocol", range(6))
def test_a_list_that_is_the_value_itself_is_handed_over(protocol: int) -> None:
    taken: list[Any] = []

    def take(path: KeyPath, items: list[Any]) -> bool:
        if path == ():
            taken.extend(items)
        return path == ()

    assert stream_plain(pickle.dumps([1, [2], "three"], protocol), take, where="here") == []
    assert taken == [1, [2], "three"]


def test_memory_stays_small_whatever_the_file_holds() -> None:
    frame = {"name": "forward", "line": 7}
    stream = io.BytesIO()
    pickle.Pickler(stream, 4).dump({"events": [{"addr": number, "frames": [frame]} for number in range(30_000)]})
    content = stream.getvalue()
    count = 0

    def take(_: KeyPath, items: list[Any]) -> bool:
        nonlocal count
        count += len(items) if len(items[0]) == 2 and "addr" in items[0] else 0
        return "addr" in items[0]

    tracemalloc.start()
    try:
        stream_plain(content, take, where="here")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert count == 30_000
    assert peak < 1.5 * len(content)


def test_what_is_more_than_data_is_refused() -> None:
    with pytest.raises(UnsafePickleError, match="nothing of it was run"):
        stream_plain(pickle.dumps({"events": [print]}), _nothing, where="here")


@given(_PLAIN, st.integers(0, 5), st.data())
def test_damaged_pickles_are_read_or_refused(value: Any, protocol: int, data: st.DataObject) -> None:
    content = bytearray(pickle.dumps(value, protocol))
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    with suppress(DataError):
        stream_plain(bytes(content), _nothing, where="here")
