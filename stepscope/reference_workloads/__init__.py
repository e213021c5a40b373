"""Real 3D-parallel training with known bottlenecks: the ground truth."""

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
