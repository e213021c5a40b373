"""stepscope: where did every GPU-second go, whose fault was it, and what would fixing it buy?"""

from __future__ import annotations

from typing import Any

__version__ = "0.1.0"

_EXPORTS = dict.fromkeys(("every", "profile", "profiled"), "stepscope.training")

__all__ = ["__version__", "every", "profile", "profiled"]


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module 'stepscope' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_EXPORTS[name]), name)
