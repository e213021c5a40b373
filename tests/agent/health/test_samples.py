"""How much a counter grew: never less than nothing, never more than it did."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.agent.health.samples import CounterWindow, TimedValue
from tests.agent.health.machines import SECOND


def _sample(value: float, seconds: float, source: str = "nvml") -> TimedValue:
    return TimedValue(value, int(seconds * SECOND), source)


def test_growth_of_the_last_minute() -> None:
    window = CounterWindow(60)
    assert not window.add(_sample(1e6, 0))  # what was before is not known
    assert window.add(_sample(1e6 + 30, 30))
    assert window.growth == 30
    assert window.add(_sample(1e6 + 90, 60))
    assert window.growth == 90
    assert window.add(_sample(1e6 + 90, 75))
    assert window.growth == pytest.approx(60 + 15)


def test_growth_over_a_long_gap_counts_by_its_share() -> None:
    window = CounterWindow(60)
    window.add(_sample(0, 0))
    window.add(_sample(1000, 600))
    assert window.growth == pytest.approx(100)


@pytest.mark.parametrize(
    "anew",
    [
        _sample(3, 20),  # the driver was reloaded
        _sample(5000, 20, "dcgm_exporter"),  # another source counts differently
        _sample(5000, 5),  # the clock was set back
    ],
)
def test_what_begins_anew_did_not_grow(anew: TimedValue) -> None:
    window = CounterWindow(60)
    window.add(_sample(1000, 0))
    window.add(_sample(1010, 10))
    assert not window.add(anew)
    assert window.growth == 0
    assert window.add(_sample(anew.value + 2, 30, anew.source))
    assert window.growth == 2


def test_the_same_sample_again_is_no_new_one() -> None:
    window = CounterWindow(60)
    window.add(_sample(1, 0))
    assert window.add(_sample(2, 10))
    assert not window.add(_sample(2, 10))
    assert not window.add(None)


@given(
    st.lists(
        st.tuples(st.floats(0, 1e12), st.integers(-30, 300), st.sampled_from(["nvml", "dcgm_exporter"])), max_size=60
    )
)
def test_growth_is_never_negative_and_never_more_than_all_rises(steps: list[tuple[float, int, str]]) -> None:
    window, now, rises, last = CounterWindow(60), 1000, 0.0, None
    for value, seconds, source in steps:
        now += seconds
        window.add(_sample(value, now, source))
        rises += max(0.0, value - last) if last is not None else 0.0
        last = value
        assert 0 <= window.growth <= rises * (1 + 1e-9)
