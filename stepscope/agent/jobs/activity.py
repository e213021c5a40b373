"""Did a job's kernels run on a device lately? What cannot be told is None, not no."""

from __future__ import annotations

from collections.abc import Iterable

from stepscope.collectors.jobs.devices import Device

_LEAST = 0.01
"""Below NVML's whole percent, counters are noise."""
_EMPTY = 0.05
"""Share of the memory that drivers and displays take; whoever works holds more."""


def kernels_ran(device: Device, pids: Iterable[int], *, is_alone: bool) -> bool | None:
    """Whether kernels of these processes ran there in the last sample.

    Args:
        device: with its counters and the share of time of each process.
        pids: the job's processes that hold it.
        is_alone: whether no other job has the device.
    """
    own = [holder.sm_ratio for pid in pids if (holder := device.holders.get(pid)) is not None]
    if any(ratio for ratio in own if ratio):
        return True
    if device.activity is None:
        return False if own and None not in own else None
    if device.activity < _LEAST:
        return False
    if is_alone:
        return True
    is_told_apart = any(holder.sm_ratio is not None for holder in device.holders.values())
    return False if is_told_apart else None


def is_used_by_strangers(device: Device) -> bool:
    """Whether a device without any job is used all the same: kernels run, or memory is held."""
    ran = device.activity is not None and device.activity >= _LEAST
    return ran or bool(device.holders) or (device.memory_ratio or 0.0) > _EMPTY
