"""Categories of GPU time: each instant of a rank's window is attributed to exactly one."""

from __future__ import annotations

from enum import StrEnum


class TimeCategory(StrEnum):
    """What a rank's GPU time is spent on; mutually exclusive, and together the whole window."""

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
"""Time in which a compute kernel runs."""

EXPOSED_COMMUNICATION_CATEGORIES = (
    TimeCategory.COMMUNICATION,
    TimeCategory.WAIT,
    TimeCategory.BUBBLE,
    TimeCategory.COMMUNICATION_UNSPLIT,
)
"""Time in which only communication runs."""

IDLE_CATEGORIES = (
    TimeCategory.DATA_LOADING,
    TimeCategory.CHECKPOINT,
    TimeCategory.SYNCHRONIZATION,
    TimeCategory.HOST_BOUND,
    TimeCategory.DEVICE_GAP,
    TimeCategory.PROFILER,
    TimeCategory.IDLE_OTHER,
)
"""Time in which nothing runs on the device."""

CATEGORY_ORDER: tuple[TimeCategory, ...] = tuple(TimeCategory)
"""The code of a segment is the index of its category in this tuple."""

CATEGORY_CODE = {category: code for code, category in enumerate(CATEGORY_ORDER)}
