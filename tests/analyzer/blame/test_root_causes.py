"""Who is named for a cause."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.analyzer.blame.root_causes import ranks_as_bad, ranks_to_name


@pytest.mark.parametrize(
    ("contribution", "named"),
    [
        ({}, []),
        ({0: 0.0, 1: 0.0}, []),
        ({0: 1.0, 1: 5.0, 2: 20.0}, [2, 1]),
        ({rank: 20.0 + rank for rank in range(4)}, [3, 2, 1, 0]),  # all alike
        ({0: 22.0, 1: 22.0, 2: 22.0, 3: 32.0, 4: 118.0, 5: 117.0}, [4, 5]),  # 32 is a quarter, of which 22 is usual
        ({0: 22.0, 1: 22.0, 2: 22.0, 3: 50.0, 4: 118.0}, [4, 3]),
    ],
)
def test_ranks_are_named_by_what_they_cause_beyond_the_usual(contribution: dict[int, float], named: list[int]) -> None:
    assert ranks_to_name(contribution) == named


@given(st.dictionaries(st.integers(0, 20), st.floats(0, 1e12)))
def test_the_worst_rank_is_named_first(contribution: dict[int, float]) -> None:
    named = ranks_to_name(contribution)
    assert (
        named[:1] == [rank for rank in sorted(contribution) if 0 < contribution[rank] == max(contribution.values())][:1]
    )


@pytest.mark.parametrize(
    ("own", "named", "others"),
    [
        ({0: 1.0, 1: 1.0, 2: 1.0, 3: 40.0, 4: 38.0, 5: 30.0}, [3], [4, 5]),
        ({0: 1.0, 1: 1.0, 2: 1.0, 3: 40.0, 4: 15.0}, [3], []),  # nearer to the usual
        ({0: 0.0, 1: 0.0, 2: 0.0, 3: 0.0}, [2], []),  # named for what others waited for
        ({0: 0.0, 1: 0.0, 2: 0.0, 3: 0.1}, [2], []),
        ({0: 10.0, 1: 10.3, 2: 9.8, 3: 10.5, 4: 10.4}, [3], []),  # nobody stands out
        ({0: 1.0, 1: 40.0}, [0, 1], []),
        ({0: 1.0, 1: 40.0}, [], []),
    ],
)
def test_ranks_that_have_a_cause_as_much_as_the_named_ones_are_named_too(
    own: dict[int, float], named: list[int], others: list[int]
) -> None:
    assert ranks_as_bad(named, own) == others
