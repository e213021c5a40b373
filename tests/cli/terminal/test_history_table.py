"""Course of values in the terminal."""

from __future__ import annotations

import pytest

from stepscope.cli.terminal.history_table import course


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([0.0, 5.0, 10.0], "▁▅█"),
        ([0.0, None, 10.0], "▁ █"),
        ([3.0, 3.0], "▁▁"),
        ([], ""),
        ([None, None], "  "),
        ([0.0] * 30 + [10.0] * 30, "▁" * 15 + "█" * 15),
        ([0.0, 10.0] * 30, "▅" * 30),
    ],
)
def test_a_course(values: list[float | None], text: str) -> None:
    known = [value for value in values if value is not None] or [0.0]
    assert course(values, min(known), max(known)) == text
