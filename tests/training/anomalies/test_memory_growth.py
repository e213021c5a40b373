"""Memory growth: a leak is found by its slope, and mere variation is ignored."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.training.anomalies.detectors import Anomaly, MemoryGrowthDetector

_GIB = float(2**30)
_NUM_SAMPLES = 3000


def _events(samples: list[float], steps_apart: int = 1) -> list[tuple[int, Anomaly]]:
    growth = MemoryGrowthDetector("memory_allocated_bytes", least_bytes=16 * 2**20, least_ratio=0.01)
    seen = ((place, growth.see(place * steps_apart, num_bytes)) for place, num_bytes in enumerate(samples))
    return [(place, event) for place, event in seen if event is not None]


@settings(max_examples=20)
@given(st.floats(0.05, 5.0), st.integers(1, 50), st.integers(0, 10**6))
def test_a_leak_is_found_once_by_its_bytes_per_step(mib_per_step: float, steps_apart: int, seed: int) -> None:
    generator = random.Random(seed)
    leak = mib_per_step * 2**20
    samples = [
        10 * _GIB + place * steps_apart * leak + _GIB * generator.random() * 0.01 for place in range(_NUM_SAMPLES * 4)
    ]
    ((place, event),) = _events(samples, steps_apart)
    assert (event.kind, event.figure) == ("memory_growth", "memory_allocated_bytes")
    assert event.value == pytest.approx(leak, rel=0.2)
    assert event.value is not None
    assert event.limit is not None
    assert event.value >= event.limit
    assert place >= 16 * 24 - 1


def _noise(generator: random.Random) -> list[float]:
    return [10 * _GIB + _GIB * generator.gauss(0, 1) for _ in range(_NUM_SAMPLES)]


def _with_memory(generator: random.Random) -> list[float]:
    level, samples = 0.0, []
    for _ in range(_NUM_SAMPLES):
        level = 0.9 * level + 0.4 * generator.gauss(0, 1)
        samples.append(10 * _GIB + _GIB * level)
    return samples


def _sawtooth(generator: random.Random) -> list[float]:
    period = generator.randrange(50, 300)
    return [10 * _GIB + place % period / period * 3 * _GIB for place in range(_NUM_SAMPLES)]


def _jump(generator: random.Random) -> list[float]:
    at = generator.randrange(_NUM_SAMPLES)
    return [10 * _GIB + 2 * _GIB * (place > at) + 1e7 * generator.gauss(0, 1) for place in range(_NUM_SAMPLES)]


def _warm_up(generator: random.Random) -> list[float]:
    until = generator.randrange(100)
    return [min(place, until) * _GIB / 10 + 1e6 * generator.gauss(0, 1) for place in range(_NUM_SAMPLES)]


@pytest.mark.parametrize("make", [_noise, _with_memory, _sawtooth, _jump, _warm_up])
def test_what_varies_does_not_grow(make: Callable[[random.Random], list[float]]) -> None:
    assert [seed for seed in range(30) if _events(make(random.Random(seed)))] == []


def test_growth_that_does_not_matter_is_none() -> None:
    assert _events([10 * _GIB + place * 1000 for place in range(_NUM_SAMPLES)]) == []
    assert _events([10 * _GIB] * _NUM_SAMPLES) == []


def test_a_leak_that_ends_and_begins_again_is_two_events() -> None:
    leak = [10 * _GIB + place * 2e7 for place in range(2000)]
    rest = [leak[-1]] * 20_000
    again = [leak[-1] + place * 2e7 for place in range(40_000)]
    first, second = (place for place, _ in _events([*leak, *rest, *again]))
    assert first < 2000
    assert second > 22_000
