"""Slurm's node lists: the names that `scontrol show hostnames` prints for them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.core.errors import UsageError
from stepscope.workflow.nodes.node_list import expand_node_list


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("login1", ["login1"]),
        ("gpu[1-3]", ["gpu1", "gpu2", "gpu3"]),
        ("gpu[008-010,2],cpu1", ["gpu008", "gpu009", "gpu010", "gpu2", "cpu1"]),
        ("r[1-2]n[01-02]", ["r1n01", "r1n02", "r2n01", "r2n02"]),
        ("gpu[1,3]-ib.cluster", ["gpu1-ib.cluster", "gpu3-ib.cluster"]),
        (" a1 , b2 ", ["a1", "b2"]),
        ("n[9-11]", ["n9", "n10", "n11"]),
        ("[1-2]", ["1", "2"]),
    ],
)
def test_expanded(text: str, names: list[str]) -> None:
    assert expand_node_list(text) == names


@pytest.mark.parametrize(
    "text",
    ["", ",", "a[1", "a]1", "a[[1]]", "a[]", "a[x]", "a[3-1]", "a[1-]", "a b", "a;b", "n[0-999999999999]",
     "a[0-999]b[0-999]", "a\nb", "$(id)"],
)  # fmt: skip
def test_refused(text: str) -> None:
    with pytest.raises(UsageError):
        expand_node_list(text)


_PREFIX = st.text("abcdefghijklmnopqrstuvwxyz", min_size=1, max_size=5)


@given(_PREFIX, st.integers(1, 5), st.lists(st.tuples(st.integers(0, 500), st.integers(0, 20)), min_size=1, max_size=6))
def test_ranges_are_counted_with_their_zeros(prefix: str, width: int, ranges: list[tuple[int, int]]) -> None:
    texts = [f"{first:0{width}d}-{first + more:0{width}d}" for first, more in ranges]
    names = [f"{prefix}{number:0{width}d}" for first, more in ranges for number in range(first, first + more + 1)]
    assert expand_node_list(f"{prefix}[{','.join(texts)}]") == names


@given(st.text(max_size=40))
def test_any_text_is_expanded_or_refused(text: str) -> None:
    try:
        names = expand_node_list(text)
    except UsageError:
        return
    assert names
    assert all(name and not set("[],") & set(name) for name in names)
