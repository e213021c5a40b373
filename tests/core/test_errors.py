"""Is every refusal one line that a terminal can show?"""

from __future__ import annotations

import pytest

from stepscope.core.errors import DataError


@pytest.mark.parametrize(
    ("what", "shown"),
    [
        ("is\nbroken\tin two", "is broken in two"),
        ("red \x1b[31m", "red \\x1b[31m"),
        ("turned \u202e", "turned \\u202e"),
        ("half \udcff", "half \\udcff"),
        ("is schön 你", "is schön 你"),
    ],
)
def test_an_error_is_one_line_without_orders_to_the_terminal(what: str, shown: str) -> None:
    assert str(DataError(what, where="a.json", what_next="do\r\nsomething")) == f"a.json: {shown}; do something"
