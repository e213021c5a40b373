"""Token buckets never give more than they hold."""

from __future__ import annotations

from stepscope.agent.web.routes import TokenBucket


def test_it_is_refilled_up_to_its_burst_and_may_be_owed() -> None:
    now = [0.0]
    budget = TokenBucket(1.0, 0.1, lambda: now[0])
    assert budget.has_any()
    budget.spend(3.0)
    now[0] = 19.0
    assert not budget.has_any()
    now[0] = 21.0
    assert budget.has_any()
    now[0] = 1000.0
    assert budget.has_any()
    budget.spend(1.0)
    assert not budget.has_any()


def test_whole_ones_are_taken_or_not() -> None:
    now = [0.0]
    budget = TokenBucket(2.0, 0.5, lambda: now[0])
    assert [budget.take(1.0) for _ in range(3)] == [True, True, False]
    now[0] = 1.9
    assert not budget.take(1.0)
    now[0] = 2.1
    assert budget.take(1.0)
