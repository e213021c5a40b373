"""Lines of a verdict read as natural sentences."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.core.documents.analysis import PredictedFix
from stepscope.core.text.wording import headline, quality_lines, verdict_lines
from stepscope.core.vocabulary import Evidence
from tests.dashboard import example_run as example

ANALYSIS = example.make_analysis(example.make_timelines())


def line_of(evidence: Evidence) -> str:
    """The evidence's line in a verdict, without its bullet."""
    lines = verdict_lines(replace(ANALYSIS.verdict, evidence=[evidence]), ANALYSIS.job)
    return next(line for line in lines if line.startswith("  - ")).removeprefix("  - ")


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [(1489.1, "ms", "1,489.1 ms"), (12.34, "ms", "12.3 ms"), (1_234_567.8, "ms", "1,234,567.8 ms"),
     (1489.1, "calls", "1,489 calls"), (999.7, "calls", "1,000 calls"), (1.0, "calls", "1 call"),
     (0.5, "calls", "0.5 calls"), (0.0, "calls", "0 calls"),
     (1.0, "batches", "1 batch"), (7.0, "batches", "7 batches"), (1.31, "times", "1.31 times"),
     (225.4, "GB/s", "225 GB/s"), (1800.0, "GB/s", "1,800 GB/s"), (0.00001, "GB/s", "<0.001 GB/s"),
     (0.123, "of the mean wait", "0.123 of the mean wait"), (3.0, "", "3"),
     (1e300, "ms", "– ms"), (float("nan"), "GB/s", "– GB/s")],
)  # fmt: skip
def test_a_value_stands_with_its_unit(value: float, unit: str, text: str) -> None:
    assert line_of(Evidence("what_if_step", value, unit)).partition(": ")[2] == text


@given(
    st.floats(min_value=0, max_value=1e15), st.sampled_from(["ms", "GB/s", "calls", "batches", "times", "ratio", ""])
)
def test_no_number_is_written_with_an_exponent(value: float, unit: str) -> None:
    text = line_of(Evidence("what_if_step", value, unit, threshold=value)).partition(": ")[2]

    assert not any(f"{digit}e" in text for digit in "0123456789"), text


def test_shares_are_percent_and_tell_from_where_they_are_named() -> None:
    assert line_of(Evidence("fraction_of_step", 0.317, "ratio", 0.1)) == (
        "Share of the captured time: 31.7% (named from 10%)"
    )


def test_one_rank_is_no_plural_and_several_are() -> None:
    assert line_of(Evidence("bus_bandwidth", 12.0, "GB/s", ranks=[3])).endswith("12 GB/s on rank 3")
    assert line_of(Evidence("bus_bandwidth", 12.0, "GB/s", 225.0, [0, 1])).endswith(
        "12 GB/s (threshold 225) on ranks 0, 1"
    )


def test_the_headline_counts_one_and_several() -> None:
    job = ANALYSIS.job

    assert headline(replace(job, ranks=[0], world_size=1, num_steps=1)).startswith("1 of 1 rank, ")
    assert ", 1 step, " in headline(replace(job, num_steps=1))
    assert headline(replace(job, ranks=[0, 1], world_size=8, num_steps=3)).startswith("2 of 8 ranks, ")
    assert ", 3 steps, " in headline(replace(job, num_steps=3))


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


def test_the_step_after_the_fix_has_its_gain_and_error_or_its_bounds() -> None:
    known = PredictedFix("more workers", 41.04, 4.63, 0.15, "telemetry")
    bounds = PredictedFix("fewer calls", None, None, None, "bound", (45.5, 65.0))
    assert "  Fix: about 41.0 ms per step, 4.6x faster (model error 15%)" in verdict_lines(
        replace(ANALYSIS.verdict, fix=known), ANALYSIS.job
    )
    assert "  Fix: 45.5 to 65.0 ms per step (bounds)" in verdict_lines(
        replace(ANALYSIS.verdict, fix=bounds), ANALYSIS.job
    )
