"""Ranks are found in the hang messages of training."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from benchmarks.accuracy.live_hang import ranks_in


@pytest.mark.parametrize(
    ("said", "ranks"),
    [
        ("rank 3 has not called", [3]),
        ("ranks 1-2, 5 never came", [1, 2, 5]),
        ("ranks 1\u20133 never came", [1, 2, 3]),
        ("nobody knows", []),
    ],
)
def test_ranks_in(said: str, ranks: list[int]) -> None:
    assert ranks_in(said) == ranks
