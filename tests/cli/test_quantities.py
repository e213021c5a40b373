"""Sizes and spans of time on the command line."""

from __future__ import annotations

import click
import pytest

from stepscope.cli.quantities import Size, Span


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [("0", 0), ("500GB", 500 * 10**9), ("1.5TiB", 3 * 2**39), ("10G", 10 * 2**30), ("7 kb", 7000), ("12b", 12)],
)
def test_sizes(text: str, num_bytes: int) -> None:
    assert Size().convert(text, None, None) == num_bytes


@pytest.mark.parametrize(("text", "seconds"), [("30d", 2_592_000.0), ("90min", 5400.0), ("2w", 1_209_600.0)])
def test_spans(text: str, seconds: float) -> None:
    assert Span().convert(text, None, None) == seconds


@pytest.mark.parametrize("text", ["", "30", "30m", "-1d", "1e9d", "d"])
def test_what_is_no_span(text: str) -> None:
    with pytest.raises(click.BadParameter):
        Span().convert(text, None, None)


@pytest.mark.parametrize("text", ["", "GB", "-5GB", "5iB", "5XB", "nan"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(click.BadParameter):
        Size().convert(text, None, None)
