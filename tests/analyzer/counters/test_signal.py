"""Arithmetic of the join: running totals of signals, and how evidence covers a loss."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.analyzer.counters.signal import Signal, overlap, periods

_EPOCH = 1_700_000_000 * 10**9
_shares = st.floats(0, 1)
_intervals = st.lists(st.tuples(st.integers(0, 10**11), st.integers(1, 10**10), _shares), max_size=20)
_edges = st.lists(st.integers(0, 2 * 10**11), min_size=2, max_size=20, unique=True).map(sorted)


def _signal(intervals: list[tuple[int, int, float]]) -> Signal:
    begins = np.array([_EPOCH + begin for begin, _, _ in intervals], np.int64)
    lengths = np.array([length for _, length, _ in intervals], np.int64)
    return Signal.of_intervals(begins, begins + lengths, np.array([value for *_, value in intervals], np.float64))


def _at(edges: list[int]) -> np.ndarray:
    return np.array(edges, np.int64) + _EPOCH


@given(_intervals, _edges)
def test_parts_of_a_time_add_up_to_the_whole(intervals: list[tuple[int, int, float]], edges: list[int]) -> None:
    signal = _signal(intervals)
    total, known = signal.over(_at(edges))
    whole, whole_known = signal.over(_at([edges[0], edges[-1]]))
    assert total.sum() == pytest.approx(whole[0], abs=1e-6)
    assert known.sum() == pytest.approx(whole_known[0], abs=1e-6)
    assert (known <= np.diff(edges) * 1e-9 + 1e-6).all()
    assert (total <= known + 1e-6).all()
    assert (total >= -1e-6).all()


@given(_intervals)
def test_all_of_a_signal_is_in_the_time_that_holds_it(intervals: list[tuple[int, int, float]]) -> None:
    signal = _signal(intervals)
    total, known = signal.over(_at([-1, 3 * 10**11]))
    covered: set[tuple[int, int]] = set()
    end, seconds = 0, 0.0
    for begin, length, _ in sorted(intervals, key=lambda one: one[0]):
        seconds += max(begin + length - max(begin, end), 0) * 1e-9
        end = max(end, begin + length)
        covered.add((begin, length))
    assert known[0] == pytest.approx(seconds, abs=1e-6)
    assert total[0] <= known[0] + 1e-6


@given(st.lists(_shares, min_size=2, max_size=20), st.integers(2, 5))
def test_it_does_not_matter_how_often_a_steady_value_is_sampled(values: list[float], times: int) -> None:
    second = 10**9
    once = Signal.of_samples([_EPOCH + at * second for at in range(len(values))], values)
    often = Signal.of_samples(
        [
            _EPOCH + at * second - second + (part + 1) * second // times
            for at in range(len(values))
            for part in range(times)
        ],
        [value for value in values for _ in range(times)],
    )
    edges = _at([-second, len(values) * second // 2, (len(values) - 1) * second])
    assert once.over(edges)[0] == pytest.approx(often.over(edges)[0], abs=1e-6)


def test_a_sample_stands_for_no_more_than_the_usual_time_before_it() -> None:
    second = 10**9
    signal = Signal.of_samples([_EPOCH + at * second for at in (1, 2, 3, 60, 61)], [1.0] * 5)
    total, known = signal.over(_at([0, 3 * second, 59 * second, 61 * second]))
    assert total.tolist() == pytest.approx([3, 0, 2])
    assert known.tolist() == pytest.approx([3, 0, 2])


def test_a_counter_that_began_anew_is_not_known_meanwhile() -> None:
    second = 10**9
    signal = Signal.of_total([_EPOCH + at * second for at in range(5)], [10.0, 10.5, None, 1.0, 1.25])
    total, known = signal.over(_at([0, second, 3 * second, 4 * second]))
    assert total.tolist() == pytest.approx([0.5, 0, 0.25])
    assert known.tolist() == pytest.approx([1, 0, 1])


@given(
    st.lists(st.tuples(_shares, st.floats(0.1, 10), st.one_of(_shares, st.just(float("nan")))), min_size=1, max_size=30)
)
def test_what_is_covered_is_a_part_of_the_loss(rows: list[tuple[float, float, float]]) -> None:
    seconds = np.array([length for _, length, _ in rows])
    lost = np.array([share for share, *_ in rows]) * seconds
    evidence = np.array([value for *_, value in rows])
    found = overlap(lost, seconds, evidence)
    if found is None:
        assert lost[~np.isnan(evidence)].sum() <= 0.5 * lost.sum() + 1e-9
        return
    assert 0 <= found.covered <= 1
    assert 0 <= found.during <= 1 + 1e-9
    more = overlap(lost, seconds, np.minimum(evidence + 0.1, 1.0))
    assert more is not None
    assert more.covered >= found.covered - 1e-9
    none = overlap(lost, seconds, np.where(np.isnan(evidence), np.nan, 0.0))
    assert none is not None
    assert (none.covered, none.is_reason) == (0, False)
    whole = overlap(lost, seconds, np.where(np.isnan(evidence), np.nan, 1.0))
    assert whole is not None
    assert whole.covered == pytest.approx(1)


@pytest.mark.parametrize(
    ("evidence", "is_reason"),
    [
        ([0.0, 0.5, 0.0, 0.5], True),
        ([0.5, 0.5, 0.5, 0.5], False),  # as much of it where nothing is lost
        ([0.5, 0.0, 0.5, 0.0], False),
        ([0.0, 0.2, 0.0, 0.2], False),  # too little
        ([0.0, 0.3, 0.0, 0.3], True),
        ([np.nan, 0.5, np.nan, 0.5], True),
        ([0.0, np.nan, 0.0, 0.5], True),  # of half of the loss it is known
        ([0.0, np.nan, 0.0, np.nan], False),
    ],
)
def test_a_reason_is_there_when_the_loss_is_and_large_enough(evidence: list[float], is_reason: bool) -> None:
    found = overlap(np.array([0.0, 5.0, 0.0, 5.0]), np.full(4, 10.0), np.array(evidence))
    assert (found is not None and found.is_reason) is is_reason


def test_of_a_loss_at_all_times_only_the_size_counts() -> None:
    lost, seconds = np.full(4, 3.0), np.full(4, 10.0)
    for share, is_reason in ((0.3, True), (0.16, True), (0.1, False)):
        found = overlap(lost, seconds, np.full(4, share))
        assert found is not None
        assert (found.elsewhere, found.is_reason) == (None, is_reason)


def test_periods_are_longer_than_samples_and_steps_and_not_too_many() -> None:
    assert np.diff(periods(_EPOCH, _EPOCH + 100, 10.0, 3.0)).tolist() == [20] * 5
    assert len(periods(_EPOCH, _EPOCH + 10**15, 1.0)) <= 20_002
