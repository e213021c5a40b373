"""Is one thing said as one, and several as several?"""

from __future__ import annotations

import pytest

from stepscope.core.counting import counted, noun


@pytest.mark.parametrize(
    ("number", "singular", "text"),
    [(0, "step", "0 steps"), (1, "step", "1 step"), (2, "step", "2 steps"), (1200, "event", "1,200 events"),
     (2, "boundary", "2 boundaries"), (2, "relay", "2 relays"), (2, "process", "2 processes"),
     (2, "micro-batch", "2 micro-batches"), (1.0, "page", "1 page"), (3.0, "page", "3 pages"), (0.6, "page", "1 page")],
)  # fmt: skip
def test_a_number_stands_with_its_noun(number: float, singular: str, text: str) -> None:
    assert counted(number, singular) == text


def test_a_plural_that_no_rule_makes_is_told() -> None:
    assert counted(2, "run of one", "runs of one") == "2 runs of one"
    assert noun(1, "index", "indices") == "index"
    assert noun(2, "index", "indices") == "indices"
