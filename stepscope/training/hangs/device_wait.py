"""Waits of a training thread for its device, recognised by the call that its Python code is in.

A thread that stands in such a call returns when the device has finished the work before. The name of the call is in the
bytecode; the CUDA runtime, which may hold a lock meanwhile, is not asked.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Sequence
from types import FrameType

_METHODS = frozenset(
    ["item", "tolist", "cpu", "numpy", "to", "cuda", "copy_", "nonzero", "masked_select", "synchronize",
     "_cuda_synchronize"]
)  # fmt: skip
"""Of tensors, streams, events and torch itself: they read from the device, copy to or from it, or wait for it."""

_BUILTINS = frozenset(["float", "int", "bool"])
_TRUTH_TESTS = ("POP_JUMP_", "JUMP_IF_", "TO_BOOL", "UNARY_NOT")
_OF_OBJECTS = frozenset(["LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR"])
_OF_MODULES = frozenset(["LOAD_GLOBAL", "LOAD_NAME"])


def device_wait_call(frames: Sequence[FrameType]) -> str:
    """Name of the call in which a thread waits for its device; empty if it is in none that is known to.

    Args:
        frames: of a thread that stands still, innermost first.
    """
    torch = sys.modules.get("torch")
    if torch is None or not frames or not torch.cuda.is_initialized():
        return ""
    return waiting_call(frames[0])


def waiting_call(frame: FrameType) -> str:
    """Name of the call of this frame that reads a tensor or waits for a device; empty if it is in another one."""
    instructions = list(dis.get_instructions(frame.f_code))
    current = next((one for one in instructions if one.offset == frame.f_lasti), None)
    if current is None:
        return ""
    if current.opname.startswith(_TRUTH_TESTS):
        return "bool"
    at = current.positions
    if not current.opname.startswith("CALL") or at is None:
        return ""
    end = (-1, -1)
    called: dis.Instruction | None = None
    for one in instructions:
        here = one.positions
        if one.offset >= current.offset or here is None or None in here:
            continue
        if one.opname not in _OF_OBJECTS and one.opname not in _OF_MODULES:
            continue
        # what is called begins where the call begins, and of the names that do the last is its own
        if (here.lineno, here.col_offset) == (at.lineno, at.col_offset):
            ends = here.end_lineno or 0, here.end_col_offset or 0
            if ends >= end:
                end, called = ends, one
    if called is None:
        return ""
    names = _METHODS if called.opname in _OF_OBJECTS else _BUILTINS
    return str(called.argval) if called.argval in names else ""
