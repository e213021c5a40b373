"""Figures show the numbers of the frames, in the palette, in light and dark."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import stepscope
from stepscope.api.figures import FIGURES, THEMES, category_at, lowest_and_highest
from stepscope.api.run import Run
from stepscope.core.documents.run_directory import RankTimeline
from stepscope.core.errors import DataError, UsageError

_RECORDED = Path(__file__).parents[1] / "reference_workloads/suite/recorded"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A recorded run of two H200s with step records."""
    loaded: Run = stepscope.load(shutil.copytree(_RECORDED / "ddp-straggler", tmp_path_factory.mktemp("runs") / "ddp"))
    return loaded


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_is_drawn_in_both_themes(run: Run, name: str, theme: str) -> None:
    figure = run.figure(name, theme)  # type: ignore[arg-type]
    assert figure.layout.paper_bgcolor == THEMES[theme][1]
    assert figure.layout.title.text.endswith("?")
    assert len(figure.data) >= 1


def test_breakdown_shows_the_frame(run: Run) -> None:
    figure, frame = run.figure("breakdown"), run.breakdown(by="rank")
    shown = sum(np.array(bar.y) for bar in figure.data)
    assert shown == pytest.approx(np.ones(len(frame)))
    assert {bar.marker.color for bar in figure.data} <= set(THEMES["light"][0].values())


def test_of_many_ranks_those_that_wait_least_are_together(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepscope.api.figures._MAX_NAMED_RANKS", 1)
    figure, frame = run.figure("breakdown"), run.breakdown(by="rank")
    assert list(figure.data[0].customdata) == list(frame.sort_values("wait").index) == [1, 0]
    for bar in figure.data:
        assert bar.marker.pattern.shape == ""
    shown = sum(np.array(bar.y) for bar in figure.data)
    assert shown == pytest.approx(np.ones(len(frame)))


def test_timeline_shares_are_those_of_the_breakdown(run: Run) -> None:
    (heatmap, *_) = run.figure("timeline").data
    frame = run.breakdown(by="rank")
    for row, rank in zip(heatmap.z, frame.index, strict=True):
        for place, category in enumerate(frame.columns):
            assert np.nanmean(row == place) == pytest.approx(frame.loc[rank, category], abs=0.15)


def test_a_run_without_step_records_says_so() -> None:
    traces = sorted((_RECORDED / "ddp-straggler").rglob("rank*.json.gz"))
    with pytest.raises((DataError, UsageError)):
        stepscope.load(traces).figure("steps")


def test_an_unknown_figure_names_the_known_ones(run: Run) -> None:
    with pytest.raises(UsageError, match="breakdown"):
        run.figure("brakdown")
    with pytest.raises(UsageError, match="dark"):
        run.figure("breakdown", "darc")  # type: ignore[arg-type]


_VALUES = st.lists(st.one_of(st.floats(-1e9, 1e9), st.just(float("nan"))), max_size=300)


@given(_VALUES, st.integers(4, 64))
def test_a_thinned_line_keeps_ends_lowest_and_highest(values: list[float], most: int) -> None:
    array = np.array(values)
    places = lowest_and_highest(array, most)
    assert len(places) <= max(most + 2, min(len(values), most))
    assert (np.diff(places) > 0).all()
    if len(values):
        assert places[0] == 0
        assert places[-1] == len(values) - 1
    if not np.isnan(array).all():
        assert np.nanmin(array[places]) == np.nanmin(array)
        assert np.nanmax(array[places]) == np.nanmax(array)


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(0, 15)), min_size=1, max_size=20), st.integers(-5, 1100))
def test_the_category_at_a_time_is_that_of_its_segment(segments: list[tuple[int, int]], time_ns: int) -> None:
    ends = np.cumsum([length for length, _ in segments])
    starts = [0, *ends[:-1].tolist()]
    timeline = RankTimeline(0, starts, int(ends[-1]), [category for _, category in segments], [], [])
    expected = -1
    for start, end, (_, category) in zip(starts, ends, segments, strict=True):
        if start <= time_ns < end:
            expected = category
    assert category_at(timeline, np.array([time_ns]))[0] == expected
