"""Labels made from foreign texts are readable and of bounded length."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.core.text.numbers import label_text, nearest


@given(st.text(), st.integers(1, 20))
def test_whatever_the_text_is_it_can_be_seen_and_ends(text: str, longest: int) -> None:
    told = label_text(text, longest)
    assert told.isprintable()
    assert len(told) == min(len(text), longest)


def test_what_can_be_seen_stays() -> None:
    assert label_text("train-7b/größe") == "train-7b/größe"
    assert label_text("a\x1b[31m\u202eb") == "a [31m b"
    assert label_text("x" * 101) == "x" * 99 + "…"


@pytest.mark.parametrize(
    ("name", "near"), [("analize", "analyze"), ("steptime", "step_time"), ("foo", None), ("", None)]
)
def test_the_nearest_name_is_told(name: str, near: str | None) -> None:
    assert nearest(name, ["analyze", "step_time", "communication"]) == near
