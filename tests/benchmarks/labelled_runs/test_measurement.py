"""The truth of a labelled run follows from its construction and its bare steps."""

from __future__ import annotations

from typing import Any

from benchmarks.labelled_runs.job import Change, Fault, Job
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


def test_the_changes_of_a_job_are_measured_for_its_samples() -> None:
    changes = (Change("sdpa", 'attn_implementation="sdpa"', "sdpa"), Change("batch", "batch x 4", "batch", samples=4))
    job = Job("job", "a job", lambda _: NotImplemented, changes=changes, is_tuned=True)
    bare = {
        frozenset[str](): BareSteps([100.0, 100.0], 60.0),
        frozenset({"sdpa"}): BareSteps([40.0, 40.0], 30.0),
        frozenset({"batch"}): BareSteps([320.0, 320.0], 60.0),
    }
    entry = truth(job, bare)
    assert [(one["step_ms"], one["gain"]) for one in entry["headroom"].values()] == [(40.0, 0.6), (80.0, 0.2)]
    assert (entry["headroom_ms"], entry["bottleneck"], entry["is_tuned"]) == (40.0, False, True)


def test_a_host_that_is_near_leaves_the_bottleneck_open() -> None:
    job = Job("job", "a job", lambda _: NotImplemented, changes=(Change("sdpa", "sdpa", "sdpa"),))
    entry = truth(job, {frozenset[str](): BareSteps([100.0], 90.0), frozenset({"sdpa"}): BareSteps([80.0], 70.0)})
    assert entry["bottleneck"] is None
    assert "host_bound" in entry["cause"]
