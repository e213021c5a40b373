"""Do numbers and names read as a person writes them?"""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.core.analysis import MeshSizes
from stepscope.core.causes import Cause, Reason
from stepscope.core.headings import Heading
from stepscope.dashboard import words


def plain(text: str) -> str:
    """The text with ordinary spaces."""
    return text.replace("\u202f", " ")


@pytest.mark.parametrize(
    ("fraction", "text"),
    [(0.314, "31.4 %"), (1.0, "100.0 %"), (0.0, "0.0 %"), (0.0003, "<0.1 %"), (-0.00001, "0.0 %"), (None, "–")],
)
def test_fractions_read_as_percent(fraction: float | None, text: str) -> None:
    assert plain(words.percent(fraction)) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(110.0, "110 ms"), (34.62, "34.6 ms"), (1.234, "1.23 ms"), (0.87, "870 µs"), (1240.0, "1.24 s"), (999.7, "1.00 s"),
     (0.0, "0 ms"), (0.9997, "1.00 ms"), (None, "–"), (-2.0, "-2.00 ms")],
)  # fmt: skip
def test_times_keep_three_digits_and_a_unit_that_fits(value: float | None, text: str) -> None:
    assert plain(words.milliseconds(value)) == text


@given(st.floats(min_value=1e-2, max_value=1e6, allow_nan=False))
def test_a_time_reads_back_within_half_a_percent(value: float) -> None:
    number, unit = plain(words.milliseconds(value)).split(" ")

    assert math.isclose(float(number) * {"s": 1e3, "ms": 1.0, "µs": 1e-3}[unit], value, rel_tol=0.006)


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [(4, "4 B"), (1536, "1.5 KiB"), (33_554_432, "32.0 MiB"), (5 * 2**40, "5.0 TiB"), (None, "–")],
)
def test_sizes_are_binary(num_bytes: int | None, text: str) -> None:
    assert plain(words.size(num_bytes)) == text


@pytest.mark.parametrize(
    ("ranks", "world_size", "text"),
    [([0, 1, 2, 5], 8, "ranks 0–2, 5"), ([3], 8, "rank 3"), (list(range(8)), 8, "all 8 ranks"), ([0], 1, "rank 0"),
     ([0, 1], 2, "both ranks"),
     ([], 8, "no rank in particular"), ([4, 4, 3], None, "ranks 3–4")],
)  # fmt: skip
def test_ranks_are_folded_into_ranges(ranks: list[int], world_size: int | None, text: str) -> None:
    assert words.ranks_words(ranks, world_size=world_size) == text


def test_the_layout_leaves_out_what_is_not_known() -> None:
    assert words.mesh_words(MeshSizes(tp=2, pp=None, dp=4)) == "TP 2 × DP 4"
    assert words.mesh_words(MeshSizes()) == ""


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [(0.2, "fraction", "20.0 %"), (1.5, "us", "1.50 µs"), (2048.0, "bytes", "2.0 KiB"), (4.0, "count", "4"),
     (12345.0, "", "12 345"), (3.7, "GB/s", "3.70 GB/s")],
)  # fmt: skip
def test_evidence_reads_by_its_unit(value: float, unit: str, text: str) -> None:
    assert plain(words.evidence_value(value, unit)) == text


def test_every_name_reads_without_underscores() -> None:
    names = [
        *(words.cause_words(cause) for cause in Cause),
        *(words.heading_words(heading) for heading in Heading),
        *(words.reason_words(reason) for reason in Reason),
    ]

    assert not [name for name in names if "_" in name or not name]
    assert set(words.HEADING_MEANINGS) == set(Heading)


def test_moments_are_utc_and_say_so() -> None:
    assert words.moment(1_785_938_592_123_456_789) == "2026-08-05 14:03 UTC"
