"""gloo receives stay open until waited for: only the time in which the thread waits belongs to the call."""

from __future__ import annotations

import pytest

from stepscope.core.vocabulary import TimeCategory
from stepscope.trace.columns import ProcessGroup
from tests.analyzer.build import TraceBuilder
from tests.analyzer.readings import analyse, rank_us, view_of

GROUPS = (ProcessGroup("0", "default_pg", (0, 1)),)


def point_to_point(trace: TraceBuilder, kind: str, peer: int, start: int, until: int) -> None:
    """An asynchronous call: its operator returns at once, the backend's span lasts until it was waited for."""
    name = {"send": "c10d::send", "recv": "c10d::recv_"}[kind]
    trace.operator(name, start, start + 1, concrete=f'["", "", "{peer}", "0"]')
    trace.annotation(f"gloo:{kind}", start + 1, until)


def posted_early() -> list[TraceBuilder]:
    """Rank 0 asks for a and b at once; b has long come when it waits for a, which rank 1 sends 400 us late."""
    first, second = (TraceBuilder(rank=rank, world_size=2, gpu=None, groups=GROUPS) for rank in range(2))
    for trace in (first, second):
        trace.step(0, 0, 1000)
    point_to_point(first, "recv", 1, 10, 510)  # a
    point_to_point(first, "recv", 1, 20, 512)  # b
    first.operator("aten::mm", 520, 1000)
    second.operator("aten::mm", 0, 500)
    point_to_point(second, "send", 0, 500, 990)
    point_to_point(second, "send", 0, 505, 995)
    second.operator("aten::mm", 510, 1000)
    return [first, second]


def test_a_call_is_exposed_once_no_earlier_one_is_waited_for() -> None:
    a, b = view_of(posted_early()[0]).calls
    assert (a.start_ns, a.exposed_from_ns, a.end_ns) == (10_000, 10_000, 510_000)
    assert (b.start_ns, b.exposed_from_ns, b.end_ns) == (20_000, 510_000, 512_000)


def test_bytes_that_have_come_are_no_transfer_while_another_call_is_waited_for() -> None:
    analysis = analyse(*posted_early())
    assert rank_us(analysis, 0, TimeCategory.WAIT) == pytest.approx(490, abs=5)
    assert rank_us(analysis, 0, TimeCategory.COMMUNICATION) == pytest.approx(12, abs=5)
    # rank 1 did nothing else for 10 us between its operators, though its sends stay open for 490
    assert rank_us(analysis, 1, TimeCategory.COMMUNICATION) == pytest.approx(10, abs=1)
    assert rank_us(analysis, 1, TimeCategory.WAIT) == 0
