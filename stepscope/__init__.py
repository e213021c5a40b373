"""stepscope: where did every GPU-second go, whose fault was it, and what would fixing it buy?"""

from __future__ import annotations

from typing import Any

__version__ = "0.1.0"

_TRAINING = ("every", "once", "profile", "profiled", "slow_step")
_API = (
    "compare",
    "compare_memory",
    "doctor",
    "goodput",
    "hang",
    "health",
    "history",
    "load",
    "memory",
    "nccl",
    "preflight",
    "runs",
    "status",
    "top",
    "trace_info",
)
_EXPORTS = dict.fromkeys(_TRAINING, "stepscope.training") | dict.fromkeys(_API, "stepscope.api")

__all__ = ["__version__", *_TRAINING, *_API, "training"]


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name == "training":
        return import_module("stepscope.training")
    if name not in _EXPORTS:
        raise AttributeError(f"module 'stepscope' has no attribute {name!r}")
    return getattr(import_module(_EXPORTS[name]), name)
