"""Interval functions agree with counting instants one by one."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.analyzer import intervals
from stepscope.analyzer.intervals import Intervals

AXIS = 24

Span = tuple[int, int]
spans = st.lists(st.tuples(st.integers(0, AXIS), st.integers(0, AXIS)).map(sorted).map(tuple), max_size=8)


def columns(given_spans: list[Span]) -> tuple[intervals.Nanoseconds, intervals.Nanoseconds]:
    return np.array([s for s, _ in given_spans], np.int64), np.array([e for _, e in given_spans], np.int64)


def union_of(given_spans: list[Span]) -> Intervals:
    return intervals.union(*columns(given_spans))


def instants(given_spans: list[Span]) -> set[int]:
    return {instant for start, end in given_spans for instant in range(start, end)}


def instants_of(cover: Intervals) -> set[int]:
    return instants(list(zip(cover.start.tolist(), cover.end.tolist(), strict=True)))


def assert_canonical(cover: Intervals) -> None:
    assert np.all(cover.end > cover.start)
    assert np.all(cover.start[1:] > cover.end[:-1]) or np.all(cover.start[1:] >= cover.end[:-1])


@settings(max_examples=80, deadline=None)
@given(spans)
def test_union_covers_what_any_span_covers_and_is_disjoint(a: list[Span]) -> None:
    cover = union_of(a)
    assert instants_of(cover) == instants(a)
    assert cover.total == len(instants(a))
    assert np.all(cover.start[1:] > cover.end[:-1])


@settings(max_examples=80, deadline=None)
@given(spans, spans)
def test_intersect_and_subtract_are_the_set_operations(a: list[Span], b: list[Span]) -> None:
    left, right = union_of(a), union_of(b)
    for cover, expected in (
        (intervals.intersect(left, right), instants(a) & instants(b)),
        (intervals.subtract(left, right), instants(a) - instants(b)),
    ):
        assert_canonical(cover)
        assert instants_of(cover) == expected
        assert cover.total == len(expected)


@settings(max_examples=80, deadline=None)
@given(spans, st.integers(0, AXIS), st.integers(0, AXIS))
def test_clip_keeps_what_lies_inside(a: list[Span], start: int, end: int) -> None:
    assert instants_of(intervals.clip(union_of(a), start, end)) == instants(a) & set(range(start, end))


@settings(max_examples=80, deadline=None)
@given(spans, spans)
def test_pieces_are_each_spans_part_under_the_cover(a: list[Span], b: list[Span]) -> None:
    start, end = columns(a)
    span, piece_start, piece_end = intervals.pieces(start, end, union_of(b))
    assert np.all(np.diff(span) >= 0)
    for number, one in enumerate(a):
        mine = [(int(s), int(e)) for n, s, e in zip(span, piece_start, piece_end, strict=True) if n == number]
        assert instants(mine) == instants([one]) & instants(b)
        assert sum(e - s for s, e in mine) == len(instants(mine))


@settings(max_examples=80, deadline=None)
@given(spans, spans)
def test_covered_time_counts_each_spans_instants_under_the_cover(a: list[Span], b: list[Span]) -> None:
    expected = [len(instants([one]) & instants(b)) for one in a]
    assert intervals.covered_time(*columns(a), union_of(b)).tolist() == expected


@settings(max_examples=80, deadline=None)
@given(spans, st.lists(st.integers(-1, AXIS + 1), max_size=6))
def test_contains_is_half_open(a: list[Span], times: list[int]) -> None:
    expected = [time in instants(a) for time in times]
    assert intervals.contains(union_of(a), np.array(times, np.int64)).tolist() == expected


@settings(max_examples=80, deadline=None)
@given(spans)
def test_owned_gives_every_covered_instant_to_the_earliest_started_span(a: list[Span]) -> None:
    start, end = intervals.owned(*columns(a), tie=np.arange(len(a)))
    for instant in range(AXIS):
        running = [number for number, (s, e) in enumerate(a) if s <= instant < e]
        owners = [number for number in range(len(a)) if start[number] <= instant < end[number]]
        assert owners == ([min(running, key=lambda number: (a[number][0], number))] if running else [])


def test_touching_spans_are_joined() -> None:
    assert len(intervals.union([0, 5], [5, 9])) == 1


def test_empty_spans_leave_nothing() -> None:
    assert len(intervals.union([3], [3])) == 0
    assert intervals.empty().total == 0
