"""stepscope: where did every GPU-second go, whose fault was it, and what would fixing it buy?"""

from __future__ import annotations

from typing import Any

__version__ = "0.1.0"

_EXPORTS = dict.fromkeys(("every", "once", "profile", "profiled", "slow_step"), "stepscope.training")

__all__ = ["__version__", "every", "once", "profile", "profiled", "slow_step", "training"]


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name == "training":
        return import_module("stepscope.training")
    if name not in _EXPORTS:
        raise AttributeError(f"module 'stepscope' has no attribute {name!r}")
    return getattr(import_module(_EXPORTS[name]), name)
