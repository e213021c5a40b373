"""Profilers of one job that began to record seconds apart: what precedes the last opening is not part of the window."""

from __future__ import annotations

import pytest

from stepscope.analyzer.alignment.openings import Beginning, common_beginning
from stepscope.analyzer.rank import view_rank
from tests.analyzer.build import TraceBuilder
from tests.analyzer.readings import view_of

STEP = 100_000
"""Microseconds."""


def job(*, apart: int, marked: bool = True, num_earlier: int = 0, hosts: int = 1) -> list[TraceBuilder]:
    """Two ranks of five steps; rank 1 begins to record later, while rank 0 waits for it or runs earlier steps."""
    traces = [TraceBuilder(rank=rank, world_size=2, host=f"node{rank % hosts}") for rank in (0, 1)]
    for trace, begin in zip(traces, (0, apart), strict=True):
        now = begin
        for step in range(num_earlier if trace.rank else 0, num_earlier + 5):
            wait = apart if begin == 0 and step == 0 and not num_earlier else 0
            if marked:
                trace.step(step, now, now + STEP + wait)
            trace.kernel(now + 1000, now + 80_000, launch=now + 995)
            trace.collective("allreduce", now + 80_000, now + 95_000 + wait, launch=now + 1100, group=(0, 1))
            now += STEP + wait
    return traces


def beginning(traces: list[TraceBuilder]) -> Beginning | None:
    return common_beginning({trace.rank or 0: view_of(trace) for trace in traces})


def test_the_window_begins_with_the_first_step_that_all_recorded_from_its_begin() -> None:
    traces = job(apart=5_000_000)
    begins = beginning(traces)
    assert begins == Beginning(5_000_000_000, step=1)
    assert "5,000.0 ms apart: the steps before 1 are left out" in begins.notice.message
    views = [view_rank(trace.build(), trace.rank or 0, begins=begins) for trace in traces]
    assert [view.window.index.tolist() for view in views] == [[1, 2, 3, 4]] * 2
    assert views[0].window.start_ns == views[1].window.start_ns == 5_101_000_000


def test_steps_that_one_rank_did_not_record_are_left_out() -> None:
    assert beginning(job(apart=30 * STEP, num_earlier=30)) == Beginning(3_000_000_000, step=30)


def test_without_steps_the_window_begins_when_the_ranks_have_met() -> None:
    traces = job(apart=5_000_000, marked=False)
    begins = beginning(traces)
    assert begins == Beginning(5_000_000_000, time_ns=5_095_000_000)
    window = view_rank(traces[0].build(), 0, begins=begins).window
    assert (window.start_ns, window.before_ns) == (5_095_000_000, 5_095_000_000 - 995_000)


@pytest.mark.parametrize(
    "traces",
    [
        job(apart=0),
        job(apart=900_000),
        job(apart=5_000_000, marked=False, hosts=2),
        job(apart=60_000_000, num_earlier=1),
    ],
    ids=["together", "less than a second", "clocks of two hosts", "never together"],
)
def test_windows_stay_as_they_are(traces: list[TraceBuilder]) -> None:
    assert beginning(traces) is None
