"""Verdict of a job's counters alone: what its GPUs spend time on, or nothing."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from stepscope.analyzer.counters.alone import counters_alone
from stepscope.analyzer.counters.rank_signals import rank_signals
from stepscope.core.documents.analysis import LayerVerdict
from stepscope.core.documents.run_counters import RankCounters
from stepscope.core.vocabulary import Cause
from tests.analyzer.counters.messages import rank_counters

_COMPUTING = {
    "graphics_engine_active_ratio": 0.97,
    "sm_active_ratio": 0.85,
    "tensor_active_ratio": 0.5,
    "dram_active_ratio": 0.4,
    "power_watts": 600.0,
    "power_limit_watts": 700.0,
}
_RESTING = {**dict.fromkeys(_COMPUTING, 0.0), "power_watts": 120.0, "power_limit_watts": 700.0}


def _alone(counters: Sequence[RankCounters]) -> LayerVerdict | None:
    return counters_alone(rank_signals(counters))


def test_gpus_that_compute_are_no_bottleneck() -> None:
    found = _alone([rank_counters(60, rank=rank, gpu=lambda _: _COMPUTING) for rank in range(2)])
    assert found is not None
    assert (found.cause, found.bottleneck, found.ranks) == (Cause.COMPUTE_BOUND, False, [])


def test_the_ranks_whose_gpus_rest_are_named() -> None:
    resting = rank_counters(60, rank=5, gpu=lambda _: _RESTING)
    found = _alone(
        [resting, rank_counters(60, rank=7, gpu=lambda _: _RESTING), rank_counters(60, gpu=lambda _: _COMPUTING)]
    )
    assert found is not None
    assert (found.cause, found.bottleneck, found.ranks) == (Cause.IDLE, True, [5, 7])


@pytest.mark.parametrize(
    "counters",
    [
        [],
        [rank_counters(60, host=lambda _: {"cpus": 8.0})],
        [rank_counters(5, gpu=lambda _: _COMPUTING)],
        [rank_counters(60, gpu=lambda _: {"temperature_celsius": 50.0})],
    ],
)
def test_without_samples_of_gpu_time_nothing_is_told(counters: list[RankCounters]) -> None:
    assert _alone(counters) is None
