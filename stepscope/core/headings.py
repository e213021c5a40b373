"""Under which heading is an instant of a GPU booked? Exactly one of these."""

from __future__ import annotations

from enum import StrEnum


class Heading(StrEnum):
    """The ledger's headings; mutually exclusive, they add up to the window."""

    COMPUTE_BOUND = "compute_bound"
    MEMORY_BOUND = "memory_bound"
    LATENCY_BOUND = "latency_bound"
    COMPUTE_OTHER = "compute_other"
    COMMUNICATION = "communication"
    WAIT = "wait"
    BUBBLE = "bubble"
    COMMUNICATION_UNSPLIT = "communication_unsplit"
    COPY = "copy"
    DATA_LOADING = "data_loading"
    CHECKPOINT = "checkpoint"
    SYNCHRONIZATION = "synchronization"
    HOST_BOUND = "host_bound"
    DEVICE_GAP = "device_gap"
    PROFILER = "profiler"
    IDLE_OTHER = "idle_other"


COMPUTE_HEADINGS = (
    Heading.COMPUTE_BOUND,
    Heading.MEMORY_BOUND,
    Heading.LATENCY_BOUND,
    Heading.COMPUTE_OTHER,
)
"""A non-communication kernel runs."""

EXPOSED_COMMUNICATION_HEADINGS = (
    Heading.COMMUNICATION,
    Heading.WAIT,
    Heading.BUBBLE,
    Heading.COMMUNICATION_UNSPLIT,
)
"""Only communication runs."""

IDLE_HEADINGS = (
    Heading.DATA_LOADING,
    Heading.CHECKPOINT,
    Heading.SYNCHRONIZATION,
    Heading.HOST_BOUND,
    Heading.DEVICE_GAP,
    Heading.PROFILER,
    Heading.IDLE_OTHER,
)
"""Nothing runs on the device."""
