"""Faults attached to layers find them under every wrapper, and leave the values unchanged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from stepscope.reference_workloads import ParallelPlan, run_workload
from stepscope.reference_workloads.injections.compute import MemoryBound
from stepscope.reference_workloads.injections.faults import layers_of, widest_matrix
from stepscope.reference_workloads.injections.host import HostSync
from stepscope.reference_workloads.job import FaultSite, Injection

torch = pytest.importorskip("torch")


class _Counts(Injection):
    """Checks that each rank finds its layers."""

    name = "counts"
    shows = ""

    def prepare(self, site: FaultSite) -> None:
        assert len(list(layers_of(site))) == 4 // site.job.plan.pp
        assert {widest_matrix(layer).out_features for layer in layers_of(site)} == {256}


@pytest.mark.parametrize("plan", [ParallelPlan(dp=2, zero=0), ParallelPlan(dp=2, zero=3), ParallelPlan(pp=2)], ids=str)
def test_layers_are_found_and_losses_stay(plan: ParallelPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in (MemoryBound, HostSync):
        monkeypatch.setattr(kind, "needs", ())
    train: Callable[..., Any] = lambda *faults: run_workload(  # noqa: E731  # one call, three ways
        plan, profiled=False, num_steps=3, device="cpu", injections=faults
    )
    faulty = train(_Counts(), MemoryBound(passes_per_layer=2), HostSync(reads_per_layer=2))
    assert faulty.losses == pytest.approx(train().losses, abs=1e-5)
