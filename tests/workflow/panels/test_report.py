"""Report page: complete, small for any job, and safe against any name."""

from __future__ import annotations

import random
import re
from dataclasses import replace

import pytest

from stepscope.core.documents.analysis import Analysis, Collective, KernelTime, RooflineCoverage
from stepscope.core.documents.run_directory import RankTimeline
from stepscope.core.text.numbers import percent
from stepscope.core.vocabulary import CATEGORY_ORDER, Evidence, Notice, TimeCategory
from stepscope.workflow.panels.report import render_report
from tests.dashboard.example_run import make_analysis, make_doubtful, make_timelines

MOST_BYTES = 1_000_000
SECTIONS = (
    "quality",
    "verdict",
    "root-causes",
    "what-if",
    "ledger",
    "timeline",
    "communication",
    "pipeline",
    "kernels",
    "warnings",
)
HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>\x00\u202e" + "x" * 50_000


@pytest.fixture(scope="module")
def timelines() -> list[RankTimeline]:
    return make_timelines()


@pytest.fixture(scope="module")
def analysis(timelines: list[RankTimeline]) -> Analysis:
    return make_analysis(timelines)


def page(analysis: Analysis, timelines: list[RankTimeline], title: str = "a run") -> str:
    return render_report(analysis, timelines, title=title, version="1.2.3")


def test_quality_comes_before_the_verdict_and_the_verdict_before_all_figures(
    analysis: Analysis, timelines: list[RankTimeline]
) -> None:
    text = page(analysis, timelines)
    places = [text.index(f'id="{section}"') for section in SECTIONS]
    assert places == sorted(places)
    assert len(text.encode()) < 200_000
    for words in (
        "Pipeline bubble",
        "Raise the number of micro-batches",
        "TP 2 × PP 2 × DP 2",
        "Trace quality: clean.",
    ):
        assert words in text


def test_bad_traces_are_said_before_the_verdict(timelines: list[RankTimeline]) -> None:
    text = page(make_doubtful(timelines), timelines)
    assert "read: 3 events dropped, 1 file truncated." in text
    assert text.index('id="quality"') < text.index('class="ss-kpis"') < text.index('id="verdict"')
    assert text.index("Read the numbers with this in mind") < text.index('id="verdict"')


def test_sections_without_content_are_left_out(analysis: Analysis) -> None:
    bare = replace(
        analysis,
        what_if=[],
        collectives=[],
        pipeline=None,
        warnings=[],
        roofline=replace(analysis.roofline, kernels=[]),
    )
    text = page(bare, [])
    for section in ("what-if", "timeline", "communication", "pipeline", "kernels", "warnings"):
        assert f'id="{section}"' not in text


def test_it_asks_nobody_and_runs_nothing(analysis: Analysis, timelines: list[RankTimeline]) -> None:
    text = page(analysis, timelines)
    assert "default-src &#x27;none&#x27;" in text
    assert re.findall(r"<(script|iframe|object|link|form)\b", text) == []
    assert re.findall(r'(?:src|href|srcset)="(?!data:image/png;base64,)', text) == []
    assert "http://" not in text
    assert "https://" not in text


def hostile(analysis: Analysis) -> Analysis:
    """Every string that a trace can bring, hostile and long."""
    kernel = KernelTime(HOSTILE, 1, 1.0, TimeCategory.COMPUTE_BOUND, "model", operator=HOSTILE, module=HOSTILE)
    collective = Collective(HOSTILE, HOSTILE, HOSTILE, 8, 1, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0.1, 1)
    verdict = replace(
        analysis.verdict,
        summary=HOSTILE,
        actions=[HOSTILE] * 500,
        evidence=[Evidence(HOSTILE, 1e39, HOSTILE, 1.0, list(range(0, 1024, 2)))] * 500,
    )
    roofline = replace(analysis.roofline, kernels=[kernel] * 500, by_operator=[kernel] * 500, by_module=[kernel] * 500)
    return replace(
        analysis,
        job=replace(analysis.job, gpu=HOSTILE),
        verdict=verdict,
        roofline=roofline,
        collectives=[collective] * 500,
        pipeline=replace(analysis.pipeline, schedule=HOSTILE) if analysis.pipeline else None,
        warnings=[Notice(HOSTILE, HOSTILE)] * 500,
    )


def test_hostile_names_are_text_and_short(analysis: Analysis, timelines: list[RankTimeline]) -> None:
    text = page(hostile(analysis), timelines, title=HOSTILE)
    assert "<script" not in text
    assert "<img src=x" not in text
    assert "\x00" not in text
    assert "\u202e" not in text
    assert "&lt;script&gt;" in text
    assert len(text.encode()) < MOST_BYTES


def test_a_thousand_hostile_ranks_with_noisy_time_lines_stay_under_a_megabyte(analysis: Analysis) -> None:
    chance = random.Random(5)
    ranks = [replace(analysis.ranks[0], rank=rank, steps=analysis.ranks[0].steps * 20) for rank in range(1024)]
    many = [_noise(rank, chance) for rank in range(1024)]
    large = hostile(replace(analysis, job=replace(analysis.job, ranks=list(range(1024)), world_size=1024), ranks=ranks))
    text = page(large, many)
    assert len(text.encode()) < MOST_BYTES
    assert "960 more ranks" in text.replace("\u202f", " ")


def _noise(rank: int, chance: random.Random) -> RankTimeline:
    """A time line that no compression makes small."""
    starts = list(range(0, 4_000_000, 2000))
    codes = [chance.randrange(len(CATEGORY_ORDER)) for _ in starts]
    return RankTimeline(rank, starts, 4_000_000, codes, [0], [0])


def test_the_shares_of_kernel_limits_add_up(analysis: Analysis, timelines: list[RankTimeline]) -> None:
    coverage = RooflineCoverage(model=0.7, by_name=0.05, none=0.0, borrowed=0.2, parameters=0.05)
    roofline = replace(analysis.roofline, coverage=coverage)
    text = page(replace(analysis, roofline=roofline), timelines)
    shares = (percent(0.95), percent(0.05), percent(0.0))
    assert "limits known from a model for {} of kernel time, by name for {}, unknown for {}".format(*shares) in text
