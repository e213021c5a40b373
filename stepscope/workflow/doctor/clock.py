"""Is this machine's clock kept in step with others'?"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

from stepscope.core.doctor import DoctorLine, DoctorState

_UNSYNCHRONIZED = 0x40
"""STA_UNSYNC."""
_LOOSE_SECONDS = 0.1
"""The kernel's bound of the error. chrony in a data centre keeps it below some ms."""
_OK, _WARN = DoctorState.OK, DoctorState.WARN


class _Timex(ctypes.Structure):
    """struct timex of adjtimex(2), as far as it is read, and room for the rest."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("frequency", ctypes.c_long),
        ("maximum_error_us", ctypes.c_long),
        ("estimated_error_us", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_byte * 256),
    )


@dataclass(frozen=True, slots=True)
class ClockState:
    """What the kernel says of its clock.

    Attributes:
        is_synchronized: whether something corrects it.
        error_seconds: bound of its error.
    """

    is_synchronized: bool
    error_seconds: float


def read_clock() -> ClockState | None:
    """Ask the kernel, which changes nothing; None where it refuses."""
    timex = _Timex()
    if ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(timex)) < 0:
        return None
    return ClockState(not timex.status & _UNSYNCHRONIZED, timex.maximum_error_us / 1e6)


def judge_clock(state: ClockState | None) -> DoctorLine:
    """Whether times of this node can be held against those of others."""
    advice = "start chronyd or systemd-timesyncd: captures start by the clock, logs and events are put together by it"
    if state is None:
        return DoctorLine("clock", _OK, "the kernel does not tell whether it is kept in step")
    if not state.is_synchronized:
        return DoctorLine("clock", _WARN, "nothing keeps it in step with other machines", advice)
    if state.error_seconds > _LOOSE_SECONDS:
        return DoctorLine("clock", _WARN, f"kept in step within {state.error_seconds:.2g} s only", advice)
    return DoctorLine("clock", _OK, f"kept in step within {state.error_seconds * 1e3:.2g} ms")
