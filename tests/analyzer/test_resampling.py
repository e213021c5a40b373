"""Resamples draw every place as often, and the same ones each time."""

from __future__ import annotations

import numpy as np
import pytest

from stepscope.analyzer.resampling import resampled_places


@pytest.mark.parametrize("num_places", [1, 2, 3, 10, 100])
def test_places_are_drawn_evenly_and_independently(num_places: int) -> None:
    drawn = resampled_places(1000, num_places)
    assert drawn.shape == (1000, num_places)
    counts = np.bincount(drawn.ravel(), minlength=num_places)
    assert counts.sum() == 1000 * num_places
    assert abs(counts - 1000).max() < 160  # five standard deviations
    of_means = np.sqrt((num_places**2 - 1) / 12 / num_places)
    assert drawn.mean(axis=1).std() == pytest.approx(of_means, rel=0.1)


def test_draws_are_pinned() -> None:
    assert resampled_places(2, 5).tolist() == [[0, 0, 4, 4, 2], [0, 3, 0, 4, 0]]
