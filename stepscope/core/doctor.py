"""What stands in the way of measuring on this machine? The typed form of `stepscope.doctor/1`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from stepscope.core.analysis import Notice

DOCTOR_SCHEMA = "stepscope.doctor/1"


class DoctorState(StrEnum):
    """How a thing is; the later ones are worse."""

    OK = "ok"
    WARN = "warn"  # it works, with something missing or slower than it could be
    FAIL = "fail"  # something does not work


@dataclass(frozen=True, slots=True)
class DoctorLine:
    """One thing that was looked at.

    Attributes:
        topic: what: "torch", "driver", "NCCL_P2P_DISABLE".
        state: how it is.
        found: what is so, in one line.
        what_next: what to do; empty where nothing is to be done.
    """

    topic: str
    state: DoctorState
    found: str
    what_next: str = ""


@dataclass(frozen=True, slots=True)
class Doctor:
    """The whole document, lines in the order in which things were looked at."""

    schema: str
    host: str
    lines: list[DoctorLine]
    warnings: list[Notice]
