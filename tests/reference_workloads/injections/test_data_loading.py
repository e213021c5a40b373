"""Data loading faults are diagnosed as what they are."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from stepscope.core.documents.analysis import Analysis
from stepscope.core.vocabulary import Cause, Reason


def test_a_slow_loader_is_data_loading_and_leaves_its_truth(
    analysis_of: Callable[..., Analysis], tmp_path: Path
) -> None:
    analysis = analysis_of("slow_loader:milliseconds_per_item=100", simulate_ms=5, dp=2)
    assert analysis.verdict.cause == Cause.DATA_LOADING
    assert Reason.NO_WORKERS in analysis.verdict.reasons
    truth = json.loads((tmp_path / "faulty" / "truth" / "injected.json").read_text())
    assert [(fault["name"], fault["cause"], fault["severity"]) for fault in truth] == [
        ("slow_loader", "data_loading", {"milliseconds_per_item": 100.0, "num_workers": 0})
    ]


def test_workers_that_make_their_batches_at_once_come_in_bursts(analysis_of: Callable[..., Analysis]) -> None:
    # Two workers make a batch each in 600 ms, which two steps of some 70 ms use up.
    verdict = analysis_of("bursty_loader:milliseconds_per_item=150", simulate_ms=5, dp=2, zero=0).verdict
    assert verdict.cause == Cause.DATA_LOADING
    assert Reason.BURSTY in verdict.reasons
    # On a busy machine the rhythm may be lost, or a wait in between, which leaves a multiple of it.
    assert all(item.value % 2 == 0 for item in verdict.evidence if item.metric == "period_of_waits")


def test_workers_on_one_core_starve_the_loop(analysis_of: Callable[..., Analysis]) -> None:
    verdict = analysis_of("cpu_starved_loader:cpu_milliseconds_per_item=80", simulate_ms=5, dp=2, zero=0).verdict
    assert verdict.cause == Cause.DATA_LOADING
    assert verdict.reasons[0] is Reason.STARVED
