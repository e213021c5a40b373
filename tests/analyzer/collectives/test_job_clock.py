"""A job on two hosts is split as on one, and the clock residual widens the intervals."""

from __future__ import annotations

import pytest

from stepscope.core.vocabulary import Cause, TimeCategory
from tests.analyzer.build import TraceBuilder
from tests.analyzer.jobs import data_parallel
from tests.analyzer.readings import analyse, rank_us, row_of

STEPS = 8
COMPUTE_US = [[100] * STEPS, [300] * STEPS]


def on_two_hosts(ahead_us: int) -> list[TraceBuilder]:
    def adjust(rank: int, trace: TraceBuilder) -> None:
        trace.host = f"node{rank}"
        trace.base_ns = ahead_us * 1000 * rank

    return data_parallel(COMPUTE_US, adjust=adjust)


@pytest.mark.parametrize("ahead_us", [0, 7_000, -450])
def test_a_clock_that_stands_apart_changes_nothing(ahead_us: int) -> None:
    one, two = analyse(*data_parallel(COMPUTE_US)), analyse(*on_two_hosts(ahead_us))
    for rank in (0, 1):
        for category in TimeCategory:
            assert rank_us(two, rank, category) == pytest.approx(rank_us(one, rank, category), abs=0.01)
    assert row_of(two, Cause.STRAGGLER).ranks == [1]


def test_ranks_in_another_order_give_the_same_answer() -> None:
    there, back = on_two_hosts(7_000), on_two_hosts(7_000)[::-1]
    one, two = analyse(*there), analyse(*back)
    assert one.ledger == two.ledger
    assert one.root_causes == two.root_causes
    assert one.collectives == two.collectives


def test_the_residual_of_the_clocks_widens_the_intervals() -> None:
    def uneven(rank: int, trace: TraceBuilder) -> None:
        trace.host = f"node{rank}"

    traces = data_parallel(COMPUTE_US, adjust=uneven)
    for number, row in enumerate(row for row in traces[1]._rows if "nccl" in row.name):
        row.end += 4 * (number % 3)  # the second host seems to leave 0, 4 or 8 us later
    apart = analyse(*traces)
    assert apart.trace_quality.clock_residual_us == pytest.approx(4.0)
    for cause in (Cause.COMMUNICATION, Cause.STRAGGLER):
        found = row_of(apart, cause)
        assert found.interval is not None
        low, high = found.interval
        assert high - low > 0.01
        assert low < found.fraction < high
    same = analyse(*data_parallel(COMPUTE_US))
    sure = row_of(same, Cause.COMMUNICATION).interval
    assert sure is not None
    assert sure[1] - sure[0] < 1e-9
