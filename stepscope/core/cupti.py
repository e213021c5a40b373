"""Detachment of CUPTI after a capture: whether torch's profiler may do it, and the variable that decides."""

from __future__ import annotations

DETACH_VARIABLE = "TEARDOWN_CUPTI"
"""Kineto's environment variable: 1 detaches CUPTI after each recording."""

FIRST_SAFE_CUDA = (12, 6)
"""In older ones a process with CUDA graphs crashes when CUPTI is attached again."""


def why_attached(cuda: str, choice: str | None) -> str | None:
    """Core fact of training and `doctor`: why CUPTI stays attached after a capture; None where stepscope detaches it.

    Args:
        cuda: version that torch is built for.
        choice: value of DETACH_VARIABLE in the environment; None where it is not set.
    """
    if choice not in (None, "1"):
        return f"{DETACH_VARIABLE}={choice} is set"
    if tuple(int(part) for part in cuda.split(".")[:2] if part.isdecimal()) < FIRST_SAFE_CUDA:
        return f"detaching it is not safe before CUDA 12.6, and torch is built for CUDA {cuda}"
    return None
