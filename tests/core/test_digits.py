"""Are digits kept as far as they tell something, without an exponent for what is large?"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.core.digits import significant


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [(1489.1, 3, "1,489"), (999.4, 3, "999"), (999.6, 3, "1,000"), (12.34, 3, "12.3"), (0.1234, 3, "0.123"),
     (0, 3, "0"),
     (-1489.1, 3, "-1,489"), (12345.6, 4, "12,346"), (1234.5, 4, "1234"), (9999.6, 4, "10,000"),
     (3e30, 3, "3e+30")],
)  # fmt: skip
def test_significant_digits(value: float, digits: int, text: str) -> None:
    assert significant(value, digits) == text


def test_a_change_has_its_sign() -> None:
    assert significant(1489.1, sign="+") == "+1,489"
    assert significant(2.5, sign="+") == "+2.5"
    assert significant(-2.5, sign="+") == "-2.5"


@given(st.floats(min_value=1, max_value=1e15), st.integers(2, 6))
def test_what_is_large_has_no_exponent(value: float, digits: int) -> None:
    assert "e" not in significant(value, digits)
