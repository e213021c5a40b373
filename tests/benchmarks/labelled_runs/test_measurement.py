"""The truth of a labelled run follows from its construction and its bare steps."""

from __future__ import annotations

from typing import Any

from benchmarks.labelled_runs.job import Fault, Job
from benchmarks.labelled_runs.measurement import BareSteps, truth

_LOADER = Fault("loader", ("data_loading",), ("starved",))
_SAVES = Fault("saves", ("checkpoint",))


def _truth(faults: tuple[Fault, ...], losses: tuple[str, ...] = (), **bare_ms: float) -> dict[str, Any]:
    job = Job("job", "a job", lambda _: NotImplemented, faults, losses=losses)
    bare = {frozenset(on.split("_")) - {"none"}: BareSteps([mean, mean], 1.0) for on, mean in bare_ms.items()}
    return truth(job, bare)


def test_a_fault_is_told_by_the_bare_pair() -> None:
    entry = _truth((_LOADER,), loader=100.0, none=60.0)
    assert (entry["cause"], entry["share"], entry["fixed_ms"]) == (["data_loading"], 0.4, 60.0)


def test_a_control_with_a_loss_of_its_own_leaves_the_bottleneck_open() -> None:
    assert _truth((), none=60.0)["bottleneck"] is False
    entry = _truth((), ("communication",), none=60.0)
    assert (entry["cause"], entry["bottleneck"]) == (["compute_bound", "memory_bound", "communication"], None)


def test_faults_of_equal_gain_are_both_right_as_the_first() -> None:
    entry = _truth((_LOADER, _SAVES), loader_saves=100.0, loader=75.0, saves=70.0, none=45.0)
    assert entry["cause"] == ["data_loading", "checkpoint"]
    entry = _truth((_LOADER, _SAVES), loader_saves=100.0, loader=85.0, saves=70.0, none=55.0)
    assert entry["cause"] == ["data_loading"]


def test_faults_that_hide_each_other_are_no_healthy_job() -> None:
    entry = _truth((_LOADER, _SAVES), loader_saves=100.0, loader=98.0, saves=92.0, none=65.0)
    assert (entry["cause"], entry["bottleneck"]) == (["data_loading", "checkpoint"], None)
    assert "compute_bound" in _truth((_LOADER,), loader=100.0, none=91.0)["cause"]
