"""Bursts are found where there are some."""

from __future__ import annotations

import pytest

from stepscope.analyzer.fleet.samples import bursts_of


@pytest.mark.parametrize("period", [3, 5, 10])
def test_a_rhythm_has_its_period(period: int) -> None:
    series = [0.9 if at % period < 2 else 0.0 for at in range(60)]
    bursts = bursts_of(series, 0.5)
    assert bursts is not None
    assert bursts.period_seconds == pytest.approx(0.5 * period)
    assert bursts.duty == pytest.approx(2 / period)
    assert bursts.empty == pytest.approx(1 - 2 / period)


def test_steady_work_low_work_and_few_samples_have_no_bursts() -> None:
    assert bursts_of([0.8] * 60, 1) is None
    assert bursts_of([0.1, 0.0] * 30, 1) is None
    assert bursts_of([0.9, 0.0, 0.9], 1) is None


def test_one_pause_is_no_rhythm() -> None:
    bursts = bursts_of([0.9] * 30 + [0.0] * 10 + [0.9] * 20, 1)
    assert bursts is not None
    assert bursts.period_seconds is None
