"""A lasting change of the step time is found once, and mere scatter is ignored."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.training.anomalies.detectors import Anomaly, StepTimeChangeDetector


def _events(durations: list[float]) -> list[tuple[int, Anomaly]]:
    change = StepTimeChangeDetector()
    return [(place, event) for place, duration in enumerate(durations) if (event := change.see(duration)) is not None]


@settings(max_examples=30)
@given(st.integers(130, 400), st.sampled_from([0.5, 0.8, 1.2, 3.0]), st.integers(0, 10**6), st.integers(-10, 10))
def test_a_change_is_found_once_within_three_blocks(at: int, ratio: float, seed: int, power: int) -> None:
    generator = random.Random(seed)
    durations = [30 * (1 + 0.01 * generator.gauss(0, 1)) * (ratio if step >= at else 1.0) for step in range(at + 200)]
    ((place, event),) = _events(durations)
    assert at + 16 <= place <= at + 48
    assert (event.kind, event.figure) == ("step_time_change", "step_ms")
    assert event.value == pytest.approx(30 * ratio, rel=0.02)
    assert event.usual == pytest.approx(30, rel=0.02)
    assert event.value is not None
    assert event.limit is not None
    assert (event.value > event.limit) == (ratio > 1)
    scaled = _events([duration * 2.0**power for duration in durations])
    assert [found for found, _ in scaled] == [place]


def test_a_few_slow_steps_and_a_small_change_are_none() -> None:
    quiet = [30 + 0.1 * (step % 7) for step in range(300)]
    assert _events([*quiet, *[90.0] * 7, *quiet]) == []
    assert _events([*quiet, *(duration * 1.03 for duration in quiet)]) == []
    assert _events([*quiet, *[90.0] * 16, *quiet]) == []  # one block
    assert len(_events([*quiet, *[90.0] * 128, *quiet])) == 2  # there and back


@given(st.lists(st.floats(1.0, 1.04), max_size=300))
def test_what_stays_within_five_percent_is_never_an_event(durations: list[float]) -> None:
    assert _events(durations) == []


@pytest.mark.parametrize(
    "make",
    [
        lambda generator: 30 * (1 + 0.05 * generator.gauss(0, 1)),
        lambda generator: 30 * math.exp(0.5 * generator.gauss(0, 1)),
        lambda generator: 30 * (3 if generator.random() < 0.1 else 1),
    ],
    ids=["normal", "log-normal", "every tenth"],
)
def test_noise_is_no_change(make: Callable[[random.Random], float]) -> None:
    generator = random.Random(1)
    assert _events([make(generator) for _ in range(20_000)]) == []
