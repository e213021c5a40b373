"""Calls into torch's CUDA allocator. They are all made through this module, so that tests can replace them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

HISTORY_ENTRIES = 100_000
"""Allocations and frees remembered, several steps of a large model; torch keeps its own buffer for each device."""


def is_in_use() -> bool:
    """Whether this process has used CUDA; nothing here may be the first to do so."""
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.cuda.is_initialized())


def when_in_use(begin: Callable[[], None]) -> bool:
    """Have `begin`, which must not raise, called by this process's first use of CUDA, before anything is allocated.

    False where this torch has no such thing, or none is imported yet.
    """
    torch = sys.modules.get("torch")
    call_later = None if torch is None else getattr(torch.cuda, "_lazy_call", None)
    if call_later is None:
        return False
    call_later(begin)
    return True


def snapshot() -> dict[str, Any]:
    """torch's memory snapshot: segments and blocks, and the history where it is recorded."""
    import torch

    found: dict[str, Any] = torch.cuda.memory._snapshot()
    return found


def begin_history() -> bool:
    """Have torch remember allocations with Python's stacks, 2 us each; False where it does already."""
    import torch

    is_on = getattr(torch._C, "_cuda_isHistoryEnabled", None)
    if is_on is not None and is_on():
        return False
    torch.cuda.memory._record_memory_history(context="alloc", stacks="python", max_entries=HISTORY_ENTRIES)
    return True


def end_history() -> None:
    """Have torch forget it again."""
    import torch

    torch.cuda.memory._record_memory_history(None)


def totals(device: int) -> dict[str, int]:
    """Of torch's allocator: what it has given out, holds, and held at most."""
    import torch

    stats = torch.cuda.memory_stats_as_nested_dict(device)
    allocated, reserved = stats["allocated_bytes"]["all"], stats["reserved_bytes"]["all"]
    return {
        "allocated_bytes": allocated["current"],
        "reserved_bytes": reserved["current"],
        "peak_allocated_bytes": allocated["peak"],
        "num_alloc_retries": stats["num_alloc_retries"],
        "num_ooms": stats["num_ooms"],
    }


def attach_observer(observer: Callable[[int, int, int, int], None]) -> bool:
    """Have `observer` called when the memory of a device runs out, before torch raises.

    It is given the device, the bytes asked for, the bytes torch may have of the device, and those free on it. It can
    never be taken away. False where this torch has no such thing.
    """
    import torch

    attach = getattr(torch._C, "_cuda_attach_out_of_memory_observer", None)
    if attach is None:
        return False
    attach(observer)
    return True
