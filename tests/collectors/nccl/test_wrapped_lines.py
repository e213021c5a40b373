"""Broken lines are found by their width and joined; whole ones stay as they are."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from stepscope.collectors.nccl.wrapped_lines import WidthDetector, join_paragraphs, join_rows


def _lines(least: int) -> st.SearchStrategy[list[str]]:
    text = st.text(st.characters(codec="ascii", exclude_characters="\r\n#[]|: "), min_size=least, max_size=300)
    return st.lists(text.map(lambda text: f"[rank0]:{text}"), min_size=1, max_size=8)


def _numbered(lines: Iterable[str]) -> list[tuple[int, str]]:
    return [(number, f"{line}\n") for number, line in enumerate(lines, 1)]


def _rows(line: str, width: int) -> list[str]:
    return [line[begin : begin + width] for begin in range(0, len(line), width)]


def _width_of(lines: Iterable[str]) -> int | None:
    detector = WidthDetector()
    detector.watch(line for _, line in _numbered(lines))
    return detector.width()


@given(_lines(1), st.integers(40, 120))
def test_rows_of_any_width_are_joined_to_the_lines_they_were(lines: list[str], width: int) -> None:
    rows = [row for line in lines for row in _rows(line, width)]
    assert [line for _, line in join_rows(_numbered(rows), width)] == lines
    assert [line for _, line in join_paragraphs(_numbered(rows), glue="")] == lines


@given(_lines(100))
def test_the_width_is_found(lines: list[str]) -> None:
    assert _width_of(row for line in lines for row in _rows(line, 90)) == 90


def test_a_joined_line_has_the_number_of_its_first_row() -> None:
    rows = ["[rank0]:" + "a" * 42, "b", "[rank1]:c"]
    assert [number for number, _ in join_rows(_numbered(rows), 50)] == [1, 3]


def test_lines_that_are_long_by_nature_have_no_width() -> None:
    assert _width_of(["[rank0]:" + "a" * 200, "[rank1]:" + "a" * 200, "[rank2]:b"]) is None
    assert _width_of(["a" * 20, "b"]) is None
    assert _width_of(["a" * 5000, "b"]) is None


def test_no_line_grows_without_end() -> None:
    joined = list(join_rows(_numbered(["a" * 50] * 100), 50))
    assert max(len(line) for _, line in joined) == 40 * 50
