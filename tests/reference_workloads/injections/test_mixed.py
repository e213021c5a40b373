"""Two faults in one run: each with its own time, the larger one first, the other listed after it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stepscope.core.vocabulary import Cause
from stepscope.reference_workloads import ParallelPlan, run_workload
from stepscope.reference_workloads.injections.compute import Straggler
from stepscope.reference_workloads.injections.host import SlowLoader
from stepscope.training import once
from stepscope.workflow.analyze import analyze

LAYER_MS, ITEM_MS, NUM_ITEMS, NUM_LAYERS = 12.0, 40.0, 4, 4
LOADING_MS = ITEM_MS * NUM_ITEMS
"""of each rank in each step"""
EXTRA_MS = 3 * LAYER_MS * NUM_LAYERS
"""of the straggler, for which its one peer waits"""


def test_a_straggler_beside_a_slow_loader_takes_nothing_from_it(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    faults = [Straggler(), SlowLoader(milliseconds_per_item=ITEM_MS)]
    result = run_workload(
        ParallelPlan(dp=2),
        out=tmp_path,
        run="both",
        num_steps=5,
        simulate_compute_ms=LAYER_MS,
        injections=faults,
        schedule=once(wait=1, warmup=1, active=2),
        device="cpu",
    )
    analysis = analyze([str(result.run_dir)]).analysis
    costs = {row.cause: row for row in analysis.root_causes}
    # Layers and loader sleep, so each takes its time at least; other work on the machine adds to all.
    assert (costs[Cause.DATA_LOADING].ms_per_step or 0.0) > 0.9 * LOADING_MS
    assert (costs[Cause.STRAGGLER].ms_per_step or 0.0) > 0.5 * EXTRA_MS / 2
    assert costs[Cause.STRAGGLER].ranks == [1]
    assert analysis.verdict.cause is Cause.DATA_LOADING
    built_in = json.loads((result.run_dir / "truth" / "injected.json").read_text())
    assert [fault["name"] for fault in built_in] == ["straggler", "slow_loader"]
