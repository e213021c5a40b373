"""What does a GPU spend its time on, told by counters alone? The words of fleet classes.

A class has the cause that a verdict of a trace has. What counters of one GPU cannot tell (whose fault a wait is, which
kernel is slow) stays with the traces.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum

from stepscope.core.analysis import Evidence
from stepscope.core.causes import Cause, Reason
from stepscope.core.jobs import Job
from stepscope.core.readings import Labels

FLEET_CAUSES: tuple[Cause, ...] = (
    Cause.COMPUTE_BOUND,
    Cause.MEMORY_BOUND,
    Cause.LATENCY_BOUND,
    Cause.COMMUNICATION,
    Cause.DATA_LOADING,
    Cause.HOST_BOUND,
    Cause.CHECKPOINT,
    Cause.COPY,
    Cause.THROTTLED,
    Cause.HANG,
    Cause.IDLE,
    Cause.INSUFFICIENT_EVIDENCE,
)
"""All that a fleet class can be."""


class Counters(StrEnum):
    """By which counters was it told? The first is the best; docs/fleet-class.md tells how good each is."""

    SM = "sm"  # SM activity beside the engine's: GPM on Hopper and newer, full PROF fields
    PIPES = "pipes"  # tensor and memory activity without the SMs': a dcgm-exporter's default page
    POWER = "power"  # utilisation and power alone: no profiling counters
    NONE = "none"


@dataclass(frozen=True, slots=True)
class TimeShares:
    """A GPU's time by what it did, shares that add up to 1. Estimates, not measurements, but for `empty`.

    Attributes:
        computing: kernels that compute or move the GPU's memory.
        waiting: communication kernels, which spin on a few SMs until their peers come and the bytes are through. None,
            as `computing`, where the two cannot be told apart.
        copying: between host and GPU, while no kernel ran.
        empty: nothing.
    """

    computing: float | None
    waiting: float | None
    copying: float
    empty: float

    @property
    def busy(self) -> float:
        """Share of time in which any kernel ran."""
        return 1.0 - self.copying - self.empty


@dataclass(frozen=True, slots=True)
class FleetClass:
    """What one GPU, or all GPUs of one job, spent a window of time on.

    Attributes:
        cause: one of `FLEET_CAUSES`.
        reasons: narrow it down, where counters can.
        confidence: 0..1; what it is made of is told in docs/fleet-class.md. 0 of `insufficient_evidence`.
        summary: one line for people.
        evidence: what it rests on: value and threshold of each metric.
        shares: of the time; None where they are not known.
        counters: by what it was told.
        begin_ns, end_ns: the window, ns since the epoch.
        num_samples: in the window.
    """

    cause: Cause
    reasons: tuple[Reason, ...]
    confidence: float
    summary: str
    evidence: tuple[Evidence, ...]
    shares: TimeShares | None
    counters: Counters
    begin_ns: int
    end_ns: int
    num_samples: int

    def spent(self) -> dict[str, float]:
        """The shares that are known, by name."""
        shares = {} if self.shares is None else asdict(self.shares)
        return {name: share for name, share in shares.items() if share is not None}


@dataclass(frozen=True, slots=True)
class JobClass:
    """A job, and what its devices on one machine spent their time on.

    Attributes:
        job: which.
        devices: labels of its devices; evidence names them by this order.
        told: the class.
    """

    job: Job
    devices: tuple[Labels, ...]
    told: FleetClass


@dataclass(frozen=True, slots=True)
class FleetReport:
    """The newest classes on one machine, of devices by their labels, and of jobs."""

    devices: Mapping[Labels, FleetClass] = field(default_factory=dict)
    jobs: tuple[JobClass, ...] = ()
