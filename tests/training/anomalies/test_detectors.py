"""Detectors: every event is found once, in its place, and noise is ignored."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.training.anomalies.detectors import (
    Anomaly,
    Detector,
    NotFiniteDetector,
    ScaleCollapseDetector,
    gradient_explosion_detector,
    loss_spike_detector,
)

_Events = list[tuple[int, Anomaly]]


def _events(detector: Detector, values: Iterable[float]) -> _Events:
    return [(place, event) for place, value in enumerate(values) if (event := detector.see(value)) is not None]


def _noise(make: Callable[[random.Random], float], num_steps: int, seed: int = 1) -> list[float]:
    generator = random.Random(seed)
    return [make(generator) for _ in range(num_steps)]


_QUIET = _noise(lambda generator: 2.3 + 0.02 * generator.gauss(0, 1), 200)


def test_a_spike_is_one_event_where_it_begins_and_the_next_another() -> None:
    values = [*_QUIET, 4.0, 9.0, *[5.0] * 10, *_QUIET, 3.5, *_QUIET]
    (first, event), (second, _) = _events(loss_spike_detector(), values)
    assert (first, second) == (200, 200 + 12 + 200)
    assert (event.kind, event.figure, event.value) == ("loss_spike", "loss", 4.0)
    assert event.usual == pytest.approx(2.3, rel=0.01)
    assert event.limit == pytest.approx(2.3 * 1.2, rel=0.01)


def test_a_small_rise_counts_only_when_it_lasts() -> None:
    assert _events(loss_spike_detector(), [*_QUIET, 2.55, 2.55, *_QUIET]) == []
    ((place, event),) = _events(loss_spike_detector(), [*_QUIET, 2.55, 2.55, 2.55, 2.55, *_QUIET])
    assert place == 202
    assert event.limit == pytest.approx(2.3 + max(6 * 0.02, 0.05 * 2.3), abs=0.03)


def test_a_new_level_becomes_usual() -> None:
    values = [*_QUIET, *(value + 2 for value in _QUIET), *(value + 2 for value in _QUIET), 9.0]
    assert [place for place, _ in _events(loss_spike_detector(), values)] == [200, 600]


def test_falling_and_negative_losses_are_in_order() -> None:
    assert _events(loss_spike_detector(), [10 * 0.99**step for step in range(2000)]) == []
    assert _events(loss_spike_detector(), [-value for value in _QUIET]) == []
    assert [place for place, _ in _events(loss_spike_detector(), [*(-value for value in _QUIET), 5.0])] == [200]


@given(
    st.lists(st.floats(0.98, 1.02), min_size=32, max_size=200),
    st.floats(1.5, 1e6),
    st.floats(1e-6, 1e6),
)
def test_a_rise_by_half_is_found_whatever_quiet_steps_came_before(
    before: list[float], ratio: float, size: float
) -> None:
    values = [size * value for value in before] + [ratio * size * 1.02]
    assert [place for place, _ in _events(loss_spike_detector(), values)] == [len(before)]


@given(st.lists(st.floats(1.0, 1.049), max_size=300))
def test_what_stays_within_five_percent_is_never_an_event(values: list[float]) -> None:
    assert _events(loss_spike_detector(), values) == []
    assert _events(gradient_explosion_detector("grad_norm"), values) == []


@given(st.lists(st.floats(1e-3, 1e3), min_size=40, max_size=200), st.integers(-20, 20))
def test_the_unit_of_the_loss_does_not_matter(values: list[float], power: int) -> None:
    places = [place for place, _ in _events(loss_spike_detector(), values)]
    assert [place for place, _ in _events(loss_spike_detector(), [value * 2.0**power for value in values])] == places


@given(st.lists(st.one_of(st.floats(), st.just(0), st.integers(-10, 2**70)), max_size=300))
def test_any_numbers_are_borne(values: list[float]) -> None:
    for detector in (
        loss_spike_detector(),
        gradient_explosion_detector("g"),
        NotFiniteDetector("k", "f"),
        ScaleCollapseDetector(),
    ):
        for _, event in _events(detector, values):
            numbers = [event.value, event.usual, event.limit]
            assert all(number is None or math.isfinite(number) for number in numbers)


def test_an_explosion_is_a_ratio() -> None:
    norms = _noise(lambda generator: math.exp(0.1 * generator.gauss(0, 1)), 200)
    assert _events(gradient_explosion_detector("grad_norm"), [*norms, 7.0, *norms, 0.0, *norms]) == []
    ((place, event),) = _events(gradient_explosion_detector("grad_norm"), [*norms, 12.0, 50.0, *norms])
    assert place == 200
    assert (event.kind, event.value) == ("gradient_explosion", 12.0)
    assert event.usual == pytest.approx(1.0, rel=0.05)
    assert event.limit == pytest.approx(10.0, rel=0.1)
    assert [place for place, _ in _events(gradient_explosion_detector("g"), [*norms, 3.5, 3.5, 3.5, *norms])] == [202]


@given(st.lists(st.booleans(), max_size=200))
def test_losses_that_are_not_finite_are_one_event_until_sixteen_are(flags: list[bool]) -> None:
    values = [math.nan if flag else 1.0 for flag in flags]
    expected = [place for place, flag in enumerate(flags) if flag and not any(flags[max(place - 16, 0) : place])]
    assert [place for place, _ in _events(NotFiniteDetector("loss_not_finite", "loss"), values)] == expected


def test_a_scale_that_falls_below_one_or_by_256_within_1000_steps_has_collapsed() -> None:
    search = [65536.0 / 2**step for step in range(10)]  # the first search is none
    found = [64.0] * 150
    assert _events(ScaleCollapseDetector(), [*search, *found, *[32.0, 16.0, 32.0, 8.0] * 400]) == []
    ((place, event),) = _events(
        ScaleCollapseDetector(), [*[65536.0] * 150, *(65536.0 / 2**step for step in range(1, 16))]
    )
    assert (place, event.value, event.usual, event.limit) == (150 + 8, 128.0, 65536.0, 256.0)
    ((place, event),) = _events(ScaleCollapseDetector(), [65536.0 / 2**step for step in range(20)])
    assert (place, event.value, event.limit) == (17, 0.5, 1.0)


def test_a_scale_that_shrinks_slowly_finds_its_place() -> None:
    values = [65536.0 / 2**halved for halved in range(15) for _ in range(200)]
    assert _events(ScaleCollapseDetector(), values) == []


_RATE_STEPS = 20_000


@pytest.mark.parametrize(
    ("make", "most"),
    [
        (lambda generator: 2.3 + 0.05 * generator.gauss(0, 1), 0),
        (lambda generator: round(2.3 + 0.05 * generator.gauss(0, 1), 1), 0),
        (lambda generator: generator.expovariate(1), 0),
        (lambda generator: math.exp(0.5 * generator.gauss(0, 1)), 0),
        (lambda generator: math.exp(generator.gauss(0, 1)), 10),
    ],
    ids=["normal", "rounded", "exponential", "log-normal 0.5", "log-normal 1"],
)
def test_noise_is_hardly_ever_an_event(make: Callable[[random.Random], float], most: int) -> None:
    noise = _noise(make, _RATE_STEPS)
    assert len(_events(loss_spike_detector(), noise)) <= most
    assert len(_events(gradient_explosion_detector("grad_norm"), noise)) <= most


@settings(max_examples=20)
@given(st.lists(st.integers(0, 20), min_size=101, max_size=2500))
def test_the_highest_recent_scale_is_that_of_the_last_thousand_steps(powers: list[int]) -> None:
    collapse = ScaleCollapseDetector()
    scales = [2.0**power for power in powers]
    for place, scale in enumerate(scales):
        event = collapse.see(scale)
        if not collapse._is_found:
            assert event is None
            continue
        begin = max(place - 999, 0)
        assert collapse._recent[0][1] <= max(scales[begin : place + 1])
        assert collapse._recent[0][1] >= scale
