"""Ratios of rounds cancel a slow drift, and the noise of equal blocks is reported."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from benchmarks.agent.beside_training import noise_of, ratio_of


def test_a_drift_is_no_cost() -> None:
    times = [100.0 + number for number in range(80)]  # with the agent, frozen, frozen, with it
    with_agent = [time for number, time in enumerate(times) if number % 4 in (0, 3)]
    frozen = [time for number, time in enumerate(times) if number % 4 in (1, 2)]
    assert ratio_of(with_agent, frozen) == pytest.approx((1.0, 1.0, 1.0))
    assert ratio_of([1.02 * time for time in with_agent], frozen).median == pytest.approx(1.02)


def test_noise() -> None:
    assert noise_of([1.0, 1.1] * 9) == pytest.approx((1.1, 1.1, 1.1))
