"""Timeline tiles: the area of a colour is its time, at every zoom."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stepscope.core.documents.run_directory import RankTimeline
from stepscope.core.vocabulary import CATEGORY_ORDER
from stepscope.workflow.panels.timeline import SHARE_UNIT, Track, column_edges, make_tile, make_track, time_in_columns

NUM_HEADINGS = len(CATEGORY_ORDER)
ORIGIN = 1_785_938_592_123_456_789


def track_of(slices: list[tuple[int, int]], *, steps: list[int] | None = None) -> Track:
    """A track from (duration, heading code) pairs."""
    starts, clock = [], ORIGIN
    for duration, _ in slices:
        starts.append(clock)
        clock += duration
    steps = steps or []
    step_starts = [ORIGIN + step for step in steps]
    return make_track(
        RankTimeline(0, starts, clock, [code for _, code in slices], step_starts, list(range(len(steps))))
    )


def exact_time(slices: list[tuple[int, int]], start: int, end: int) -> list[int]:
    """Time of each heading between two times after the origin, by the definition."""
    times, clock = [0] * NUM_HEADINGS, 0
    for duration, code in slices:
        times[code] += max(0, min(clock + duration, end) - max(clock, start))
        clock += duration
    return times


slices_strategy = st.lists(
    st.tuples(st.integers(0, 5_000), st.integers(0, NUM_HEADINGS - 1)), min_size=1, max_size=120
).filter(lambda slices: sum(duration for duration, _ in slices) > 0)


@given(slices=slices_strategy, start=st.integers(0, 50_000), span=st.integers(1, 400_000), width=st.integers(1, 300))
def test_every_column_holds_exactly_its_time(slices: list[tuple[int, int]], start: int, span: int, width: int) -> None:
    absolute = column_edges(ORIGIN + start, ORIGIN + start + span, width)
    times = time_in_columns(track_of(slices), absolute)
    edges = (absolute - ORIGIN).tolist()

    assert times.shape == (width, NUM_HEADINGS)
    for column in range(width):
        assert exact_time(slices, edges[column], edges[column + 1]) == times[column].tolist()


@given(slices=slices_strategy, width=st.integers(1, 60))
def test_the_share_of_a_colour_is_the_share_of_its_time(slices: list[tuple[int, int]], width: int) -> None:
    window = sum(duration for duration, _ in slices)
    tile = make_tile(track_of(slices), origin_ns=ORIGIN, start_ns=0, end_ns=window, width=width)

    painted = [Fraction(0)] * NUM_HEADINGS
    if tile.slices is not None:
        for begin, finish, code in tile.slices:
            painted[code] += Fraction(finish - begin, window)
    else:
        assert tile.shares is not None
        widths = np.diff(column_edges(0, window, width))
        for code, shares in tile.shares.items():
            painted[code] = sum(
                (
                    Fraction(share, SHARE_UNIT) * Fraction(int(ns), window)
                    for share, ns in zip(shares, widths, strict=True)
                ),
                start=Fraction(0),
            )

    for code, time in enumerate(exact_time(slices, 0, window)):
        assert abs(painted[code] - Fraction(time, window)) < Fraction(1, 100)


def test_what_is_rare_in_every_column_is_not_lost() -> None:
    slices = [(99_970, 0), (30, 5)] * 2_000  # 0.03 % of every column, less than any rounding keeps in one column
    window = 100_000 * 2_000

    tile = make_tile(track_of(slices), origin_ns=ORIGIN, start_ns=0, end_ns=window, width=2_000)

    assert tile.shares is not None
    assert abs(sum(tile.shares[5]) / SHARE_UNIT / 2_000 - 0.0003) < 0.00001


def test_few_slices_are_exact_and_cut_to_the_view() -> None:
    slices = [(100, 0), (50, 3), (0, 7), (200, 6)]

    tile = make_tile(track_of(slices), origin_ns=ORIGIN, start_ns=90, end_ns=200, width=1000)

    assert tile.slices == [[90, 100, 0], [100, 150, 3], [150, 200, 6]]
    assert tile.shares is None


def test_only_steps_in_view_are_told() -> None:
    tile = make_tile(track_of([(1000, 0)], steps=[0, 400, 900]), origin_ns=ORIGIN, start_ns=300, end_ns=800, width=10)

    assert tile.steps == [[400, 1]]


def test_a_view_beyond_the_window_is_empty() -> None:
    tile = make_tile(track_of([(1000, 0)]), origin_ns=ORIGIN, start_ns=5_000, end_ns=9_000, width=10)

    assert tile.slices == []


def test_columns_narrower_than_a_nanosecond_do_no_harm() -> None:
    slices = [(1, code % 3) for code in range(40)]
    tile = make_tile(track_of(slices), origin_ns=ORIGIN, start_ns=0, end_ns=40, width=100)

    assert tile.shares is not None
    assert {code: sum(shares) // SHARE_UNIT for code, shares in tile.shares.items()} == {0: 14, 1: 13, 2: 13}
