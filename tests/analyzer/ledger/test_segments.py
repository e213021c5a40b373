"""Segments keep every instant once, and a TimeTable adds up the time within a span."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.analyzer.intervals import Intervals
from stepscope.analyzer.ledger.segments import CAUSE_CODE, TO_ATTRIBUTE, CategorySpans, Segments, TimeTable, assemble
from stepscope.core.vocabulary import CATEGORY_CODE, CATEGORY_ORDER, Cause, TimeCategory

codes = st.lists(st.one_of(st.none(), st.integers(0, 3)), min_size=1, max_size=16)
"""What each unit of time holds; None is a hole."""


def segments_of(units: list[int | None]) -> Segments:
    """One segment a unit, categories as given: assembling must join equal neighbours."""
    held = [(place, code) for place, code in enumerate(units) if code is not None]
    start = np.array([place for place, _ in held], np.int64)
    return assemble([CategorySpans(Intervals(start, start + 1), np.array([code for _, code in held], np.int8))])


@settings(max_examples=80, deadline=None)
@given(codes)
def test_assemble_keeps_every_instant_and_joins_equal_neighbours(units: list[int | None]) -> None:
    segments = segments_of(units)
    read: list[int | None] = [None] * len(units)
    for start, end, category in zip(segments.start_ns, segments.end_ns, segments.category, strict=True):
        read[start:end] = [int(category)] * int(end - start)
    assert read == units
    same = (segments.category[1:] == segments.category[:-1]) & (segments.start_ns[1:] == segments.end_ns[:-1])
    assert not same.any()


def test_assemble_puts_paints_in_time_order_and_gives_each_heading_its_own_charge() -> None:
    late = CategorySpans(Intervals(np.array([5]), np.array([9])), TimeCategory.WAIT)
    early = CategorySpans(Intervals(np.array([0]), np.array([5])), TimeCategory.COPY)
    attributed = CategorySpans(Intervals(np.array([9]), np.array([10])), TimeCategory.COPY, Cause.CHECKPOINT)
    segments = assemble([late, attributed, early])
    assert segments.category.tolist() == [
        CATEGORY_CODE[TimeCategory.COPY],
        CATEGORY_CODE[TimeCategory.WAIT],
        CATEGORY_CODE[TimeCategory.COPY],
    ]
    assert segments.cause.tolist() == [CAUSE_CODE[Cause.COPY], TO_ATTRIBUTE, CAUSE_CODE[Cause.CHECKPOINT]]


def test_every_category_has_a_cause_and_only_waiting_is_still_to_attribute() -> None:
    time = Intervals(np.array([0]), np.array([1]))
    to_attribute = [
        category for category in CATEGORY_ORDER if assemble([CategorySpans(time, category)]).cause[0] == TO_ATTRIBUTE
    ]
    assert to_attribute == [TimeCategory.WAIT]


@settings(max_examples=80, deadline=None)
@given(codes, st.lists(st.tuples(st.integers(-2, 18), st.integers(-2, 18)).map(sorted), min_size=1, max_size=5))
def test_time_table_counts_the_instants_of_each_code(units: list[int | None], spans: list[list[int]]) -> None:
    segments = segments_of(units)
    table = TimeTable(segments, segments.category, 4)
    got = table.between([s for s, _ in spans], [e for _, e in spans])
    for row, (start, end) in zip(got, spans, strict=True):
        inside = units[max(start, 0) : max(end, 0)]
        assert row.tolist() == [inside.count(code) for code in range(4)]
