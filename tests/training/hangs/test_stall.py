"""Stall threshold: late enough for slow steps, and before torch ends the job."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.training.hangs.stall import StallThresholds, StepSituation, parse_stuck_after

_GLOO, _NCCL = 1800.0, 600.0


def _after(*seconds: float) -> StallThresholds:
    patience = StallThresholds()
    for each in (1.0, 1.0, 1.0, *seconds):  # the first three are not counted
        patience.add(each)
    return patience


@pytest.mark.parametrize(
    ("patience", "situation", "expected"),
    [
        (StallThresholds(), StepSituation(), 600),
        (StallThresholds(), StepSituation(timeout_seconds=_NCCL), 480),
        (StallThresholds(), StepSituation(timeout_seconds=_GLOO), 600),
        (_after(0.3), StepSituation(timeout_seconds=_NCCL), 60),
        (_after(0.3), StepSituation(True, _GLOO), 600),
        (_after(0.3), StepSituation(True, _NCCL), 480),
        (_after(20.0), StepSituation(timeout_seconds=_GLOO), 200),
        (_after(0.3, 0.3, 50.0), StepSituation(), 150),  # a checkpoint that no phase names comes again
        (_after(0.3), StepSituation(timeout_seconds=15), 12),
        (_after(10.0), StepSituation(timeout_seconds=15), 30),  # steps longer than a group's timeout: it is not theirs
        (StallThresholds(7.0), StepSituation(True, 5.0), 7),
    ],
)
def test_limits(patience: StallThresholds, situation: StepSituation, expected: float) -> None:
    assert patience.limit_seconds(situation) == pytest.approx(expected)


@given(
    seconds=st.lists(st.floats(1e-3, 1e4), max_size=120),
    is_long=st.booleans(),
    timeout=st.none() | st.floats(1, 1e5),
)
def test_no_step_like_those_before_reaches_the_limit_and_torch_is_never_later(
    seconds: list[float], is_long: bool, timeout: float | None
) -> None:
    patience = _after(*seconds)
    limit = patience.limit_seconds(StepSituation(is_long, timeout))
    median = patience.median_seconds
    if median is not None:
        assert limit >= 3 * median
    if timeout is None:
        assert limit >= max([60.0, *(3 * each for each in seconds[-100:])])
    else:
        assert limit <= max(0.8 * timeout, 3 * (median or 0.0))
    assert patience.limit_seconds(StepSituation(True, timeout)) >= patience.limit_seconds(StepSituation(False, timeout))


@pytest.mark.parametrize(("stuck_after", "seconds"), [("auto", None), ("off", math.inf), ("90", 90.0), (0.5, 0.5)])
def test_what_the_user_may_say(stuck_after: float | str, seconds: float | None) -> None:
    assert parse_stuck_after(stuck_after) == seconds


@pytest.mark.parametrize("wrong", ["never", 0, -1, "nan", None, "0"])
def test_what_the_user_may_not_say(wrong: Any) -> None:
    with pytest.raises(ValueError, match="stuck_after"):
        parse_stuck_after(wrong)


def test_a_look_is_worth_it_sooner_and_one_checkpoint_in_many_steps_is_no_measure() -> None:
    assert _after(*[0.1] * 50).look_seconds(_NCCL) == 12
    assert _after(*[0.1] * 50, 60.0).look_seconds(_NCCL) == 12
    assert _after(*[0.1] * 9, 60.0, *[0.1] * 9, 60.0).look_seconds(_NCCL) == 120
    assert _after(5.0).look_seconds(_NCCL) == 20
    assert StallThresholds().look_seconds(_GLOO) == 600
    assert StallThresholds(7.0).look_seconds(_GLOO) == 7


def test_no_step_of_usual_length_is_looked_at() -> None:
    assert _after(0.1).first_look_seconds(12.0) == 5
    assert _after(20.0).first_look_seconds(80.0) == 30
    assert StallThresholds(0.4).first_look_seconds(0.4) == 0.2
