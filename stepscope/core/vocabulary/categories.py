"""Categories of GPU time: each instant of a rank's window is attributed to exactly one."""

from __future__ import annotations

from enum import StrEnum


class TimeCategory(StrEnum):
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


COMPUTE_CATEGORIES = (
    TimeCategory.COMPUTE_BOUND,
    TimeCategory.MEMORY_BOUND,
    TimeCategory.LATENCY_BOUND,
    TimeCategory.COMPUTE_OTHER,
)
"""A non-communication kernel runs."""

EXPOSED_COMMUNICATION_CATEGORIES = (
    TimeCategory.COMMUNICATION,
    TimeCategory.WAIT,
    TimeCategory.BUBBLE,
    TimeCategory.COMMUNICATION_UNSPLIT,
)
"""Only communication runs."""

IDLE_CATEGORIES = (
    TimeCategory.DATA_LOADING,
    TimeCategory.CHECKPOINT,
    TimeCategory.SYNCHRONIZATION,
    TimeCategory.HOST_BOUND,
    TimeCategory.DEVICE_GAP,
    TimeCategory.PROFILER,
    TimeCategory.IDLE_OTHER,
)
"""Nothing runs on the device."""


CATEGORY_ORDER: tuple[TimeCategory, ...] = tuple(TimeCategory)
"""A segment's code is its heading's place in this tuple."""

CATEGORY_CODE = {heading: code for code, heading in enumerate(CATEGORY_ORDER)}
