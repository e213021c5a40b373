"""Lines of trace quality count what was repaired, lost and left out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stepscope.core.text.trace_quality import quality_lines
from tests.dashboard import example_run as example

CLEAN = example.make_analysis(example.make_timelines()).trace_quality


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (1, "1 event repaired, 1 event dropped, 1 activity clipped (by 5 us), 1 file truncated"),
        (2, "2 events repaired, 2 events dropped, 2 activities clipped (by 5 us), 2 files truncated"),
        (
            1200,
            "1,200 events repaired, 1,200 events dropped, 1,200 activities clipped (by 5 us), 1,200 files truncated",
        ),
    ],
)
def test_what_was_mended_is_counted(number: int, text: str) -> None:
    mended = replace(CLEAN, repaired=number, dropped=number, clipped=number, clipped_us=5.0, truncated_files=number)

    assert quality_lines(mended)["read"] == text


@pytest.mark.parametrize(
    ("number", "launches", "boundaries"),
    [(1, "1 launch before", "1 boundary merged"), (3, "3 launches before", "3 boundaries merged")],
)
def test_what_could_not_be_linked_or_told_apart_is_counted(number: int, launches: str, boundaries: str) -> None:
    lines = quality_lines(
        replace(CLEAN, steps_marked=[1], steps_used=[1], lost_at_start=number, merged_boundaries=number)
    )

    assert launches in lines["linked"]
    assert boundaries in lines["steps"]
