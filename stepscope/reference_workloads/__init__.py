"""Reference workloads: real 3D-parallel training with known bottlenecks, the ground truth of the analysis.

A job is a `ParallelPlan` of a `Preset` under a `Recipe`; `run_workload` trains it. `injections` build a fault in,
`estimate` plans a job without running it, `bench` measures throughput, `suite` scores the analysis on labelled runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stepscope.reference_workloads.launch import WorkloadResult, run_workload
    from stepscope.reference_workloads.plan import ParallelPlan

_EXPORTS = {"ParallelPlan": "plan", "WorkloadResult": "launch", "run_workload": "launch"}

__all__ = ["ParallelPlan", "WorkloadResult", "run_workload"]


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_EXPORTS[name]}"), name)
