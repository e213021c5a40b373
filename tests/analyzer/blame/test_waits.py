"""A late rank keeps the cause of its delay through operations that run behind compute, and only through those."""

from __future__ import annotations

import pytest

from stepscope.core.vocabulary import Cause, TimeCategory
from tests.analyzer.build import TraceBuilder
from tests.analyzer.jobs import TRANSFER_US, node_of_a_slow_rank, overlapped_buckets, prefetched_gathers
from tests.analyzer.readings import analyse, cause_us, rank_us, row_of

WAIT_US = 4 * 160
"""Of 200 us lateness in each of four steps; two transfers of 20 us run meanwhile."""


def test_a_late_start_is_the_cause_of_waiting_for_every_bucket_behind_backward() -> None:
    analysis = analyse(*overlapped_buckets(200))
    assert [rank_us(analysis, rank, TimeCategory.WAIT) for rank in range(3)] == [WAIT_US, WAIT_US, 0]
    assert cause_us(analysis, Cause.UNEXPLAINED) == cause_us(analysis, Cause.STRAGGLER) == 0
    # the first step's loading began before the window; 3 us a step are the host's and the launch's
    assert cause_us(analysis, Cause.BEFORE_WINDOW) == 2 * WAIT_US / 4
    assert cause_us(analysis, Cause.DATA_LOADING) == pytest.approx(3 * 198 + 2 * WAIT_US * 3 / 4, rel=0.01)
    assert row_of(analysis, Cause.DATA_LOADING).ranks == [2]
    assert analysis.verdict.cause is Cause.DATA_LOADING


def test_who_is_slow_as_well_as_late_shares_the_wait() -> None:
    analysis = analyse(*overlapped_buckets(200, extra_us=50))
    # of the last bucket's wait of 80 us: 200 parts loading, 50 parts slow kernels, on both ranks in each of four steps
    assert cause_us(analysis, Cause.STRAGGLER) == pytest.approx(2 * 4 * 80 * 50 / 250, rel=0.02)
    assert cause_us(analysis, Cause.UNEXPLAINED) == 0


def test_lateness_ends_with_an_operation_that_held_the_late_rank_up() -> None:
    """Rank 1 loads 200 us before the first all-reduce of a step, and computes 100 us more before the second."""
    traces = [TraceBuilder(rank=rank, world_size=2) for rank in (0, 1)]
    begin = 1000
    for step in range(4):
        first, second = begin + 300 + TRANSFER_US, begin + 300 + TRANSFER_US + 200 + TRANSFER_US
        for rank, trace in enumerate(traces):
            start, ahead = begin + 200 * rank, 300 * (1 - rank)
            trace.step(step, begin - 20 - ahead, second - 20 - ahead)
            launch = start - 2 - ahead
            trace.kernel(start, start + 100, launch=launch)
            trace.collective("allreduce", start + 100, first, launch=launch + 1, group=(0, 1))
            trace.kernel(first, first + 100 * (1 + rank), launch=launch + 2)
            trace.collective("allreduce", first + 100 * (1 + rank), second, launch=launch + 3, group=(0, 1))
        traces[1].annotation("prof.data", begin - 15, begin + 190)
        begin = second
    analysis = analyse(*traces)
    assert rank_us(analysis, 0, TimeCategory.WAIT) == 4 * (200 + 100)
    assert cause_us(analysis, Cause.STRAGGLER) == 4 * 100


def test_an_operation_that_ends_while_a_rank_waits_for_another_levels_nobody() -> None:
    """Rank 2 was a kernel ahead of rank 0 at the end of their first reduction, and is not slower for that."""
    analysis = analyse(*node_of_a_slow_rank())
    waited = sum(rank_us(analysis, rank, TimeCategory.WAIT) for rank in range(4))
    assert cause_us(analysis, Cause.STRAGGLER) == waited
    assert row_of(analysis, Cause.STRAGGLER).ranks == [1]
    assert cause_us(analysis, Cause.UNEXPLAINED) == cause_us(analysis, Cause.IMBALANCE) == 0


def test_a_transfer_that_only_a_wait_exposed_has_the_cause_of_that_wait() -> None:
    """Rank 0 gathers no more slowly than rank 2, which waits for it."""
    analysis = analyse(*prefetched_gathers())
    own = sum(rank_us(analysis, rank, TimeCategory.COMMUNICATION) for rank in range(4))
    assert cause_us(analysis, Cause.COMMUNICATION) == own
    assert row_of(analysis, Cause.DATA_LOADING).ranks == [1]


def test_work_done_later_is_no_cause_where_a_late_host_explains_the_wait() -> None:
    """Rank 1's host launches the second half of its backward 300 us late; rank 0 did that half before the first
    all-reduce, which ran behind it on both."""
    traces = [TraceBuilder(rank=rank, world_size=2) for rank in (0, 1)]
    begin = 1000
    for step in range(4):
        end = begin + 700 + TRANSFER_US
        for trace in traces:
            trace.step(step, begin - 20, end - 20)
            trace.kernel(begin, begin + 200, launch=begin - 10)
            trace.collective("allreduce", begin + 100, begin + 220, launch=begin - 9, group=(0, 1), stream=20)
        traces[0].kernel(begin + 200, begin + 400, launch=begin - 8)
        traces[0].collective("allreduce", begin + 400, end, launch=begin - 7, group=(0, 1), stream=20)
        traces[1].kernel(begin + 500, begin + 700, launch=begin + 498)
        traces[1].collective("allreduce", begin + 700, end, launch=begin + 499, group=(0, 1), stream=20)
        for trace in traces:
            trace.kernel(end, end + 50, launch=begin if trace is traces[0] else begin + 500)
        begin = end + 50
    analysis = analyse(*traces)
    assert rank_us(analysis, 0, TimeCategory.WAIT) == 4 * 300
    # its idle time covers all but the 20 us in which the first all-reduce ran alone
    assert cause_us(analysis, Cause.UNEXPLAINED) == 4 * 20
    assert row_of(analysis, Cause.HOST_BOUND).ranks == [1]
