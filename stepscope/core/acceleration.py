"""May the optional accelerators in C be used? They change how long things take, never what comes out."""

from __future__ import annotations

import os

PURE_VARIABLE = "STEPSCOPE_PURE"
"""Set to 1 to do everything in Python."""


def may_accelerate() -> bool:
    """Whether the environment leaves the accelerators on."""
    return os.environ.get(PURE_VARIABLE, "0") in ("", "0")
