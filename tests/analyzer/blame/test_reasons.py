from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.analyzer.blame.reasons import why_data_is_late
from stepscope.analyzer.rank_view import RankView
from stepscope.core.vocabulary import Reason

READY_NS, SHORT_NS, LONG_NS = 80_000, 3_000_000, 40_000_000


def judged(view: RankView, waits_ns: list[int]) -> tuple[list[Reason], dict[str, float]]:
    reasons, evidence = why_data_is_late([view], {view.rank: waits_ns})
    return reasons, {item.metric: item.value for item in evidence}


@pytest.mark.parametrize("period", [2, 4, 8, 16])
def test_a_wait_every_nth_batch_is_a_burst_of_that_period(view: RankView, period: int) -> None:
    reasons, figures = judged(view, ([READY_NS] * (period - 1) + [LONG_NS]) * 6)
    assert reasons == [Reason.BURSTY]
    assert figures["period_of_waits"] == period


def test_bursts_of_several_batches_and_some_jitter_keep_their_period(view: RankView) -> None:
    waits = []
    for length in (8, 8, 9, 8, 8, 8, 7, 8, 8):
        waits += [READY_NS] * (length - 2) + [LONG_NS, SHORT_NS * 4]
    reasons, figures = judged(view, waits)
    assert reasons == [Reason.BURSTY]
    assert figures["period_of_waits"] == 8


def test_when_most_batches_are_late_the_step_is_starved(view: RankView) -> None:
    assert judged(view, [LONG_NS] * 20)[0] == [Reason.STARVED]


def test_bursts_without_rhythm_have_no_period(view: RankView) -> None:
    waits = [READY_NS] * 60
    for at in (3, 5, 18, 21, 44, 58):
        waits[at] = LONG_NS
    reasons, figures = judged(view, waits)
    assert reasons == [Reason.BURSTY]
    assert "period_of_waits" not in figures


def test_three_captured_steps_show_no_rhythm(view: RankView) -> None:
    assert judged(view, [READY_NS, LONG_NS, READY_NS])[0] == [Reason.STARVED]


def test_the_traces_own_waits_serve_where_the_run_kept_none(view: RankView) -> None:
    traced = replace(
        view, host_work=replace(view.host_work, load_waits_ns=(LONG_NS, READY_NS) * 8, loads_in_process=True)
    )
    assert why_data_is_late([traced], {})[0] == [Reason.BURSTY, Reason.NO_WORKERS]


@given(st.lists(st.integers(0, 10**10), max_size=60))
def test_any_series_gets_one_reason(view: RankView, waits: list[int]) -> None:
    reasons, _ = judged(view, waits)
    assert reasons in ([Reason.STARVED], [Reason.BURSTY])
