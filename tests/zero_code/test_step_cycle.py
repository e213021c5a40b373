"""Optimizer whose update ends a step."""

from __future__ import annotations

import pytest

from stepscope.zero_code.step_detection import MOST_PATIENCE, MOST_UPDATES_WITHOUT, StepCycle


class _Optimizer:
    """Nothing but an identity."""


class _Unreferable:
    """What no weak reference can be made to."""

    __slots__ = ("inner",)


@pytest.mark.parametrize("updates_of_the_first", [1, 5])
def test_of_several_optimizers_the_first_counts(updates_of_the_first: int) -> None:
    cycle, first, second = StepCycle(), _Optimizer(), _Optimizer()
    for _ in range(30):
        assert [cycle.ends_with(first) for _ in range(updates_of_the_first)] == [True] * updates_of_the_first
        assert not cycle.ends_with(second)


def test_hundreds_that_update_once_a_turn_count_once() -> None:
    cycle, optimizers = StepCycle(), [_Optimizer() for _ in range(300)]
    for _ in range(3):
        assert [cycle.ends_with(optimizer) for optimizer in optimizers] == [True] + [False] * 299


def test_the_next_takes_over_when_the_first_is_gone() -> None:
    cycle, first, second = StepCycle(), _Optimizer(), _Optimizer()
    assert cycle.ends_with(first)
    assert cycle.counts(first)
    del first
    assert cycle.ends_with(second)
    assert cycle.counts(second)


def test_one_that_cannot_be_referred_to_weakly_counts_like_any_other() -> None:
    cycle, first, second = StepCycle(), _Unreferable(), _Unreferable()
    for _ in range(3):
        assert [cycle.ends_with(first), cycle.ends_with(second)] == [True, False]
    assert cycle.counts(first)
    assert [cycle.ends_with(second) for _ in range(MOST_UPDATES_WITHOUT)][-1]


def test_the_next_takes_over_when_the_first_is_idle() -> None:
    cycle, first, second = StepCycle(), _Optimizer(), _Optimizer()
    assert cycle.ends_with(first)
    updates = [cycle.ends_with(second) for _ in range(MOST_UPDATES_WITHOUT + 2)]
    assert updates == [False] * (MOST_UPDATES_WITHOUT - 1) + [True] * 3
    assert not cycle.ends_with(first)


@pytest.mark.parametrize("num_optimizers", [2, 3, 5])
@pytest.mark.parametrize("updates", [51, 80, 150])
def test_long_turns_of_several_settle_on_one(num_optimizers: int, updates: int) -> None:
    cycle, optimizers = StepCycle(), [_Optimizer() for _ in range(num_optimizers)]
    turns = [[sum(cycle.ends_with(each) for _ in range(updates)) for each in optimizers] for _ in range(5)]
    assert [sum(turn) for turn in turns[1:]] == [updates] * 4
    assert all(turn == turns[1] for turn in turns[1:])


def test_one_that_came_back_once_does_not_keep_others_from_the_place_for_ever() -> None:
    cycle, first, second, third = StepCycle(), _Optimizer(), _Optimizer(), _Optimizer()
    assert cycle.ends_with(first)
    assert sum(cycle.ends_with(second) for _ in range(10_000)) == 10_001 - MOST_UPDATES_WITHOUT
    assert not cycle.ends_with(first)
    assert sum(cycle.ends_with(third) for _ in range(MOST_PATIENCE)) == 1
