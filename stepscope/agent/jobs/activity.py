"""Do jobs' kernels run on their devices, and are there devices that strangers use? What cannot be told is not no."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stepscope.agent.jobs.ledger import Held, Seen
from stepscope.collectors.jobs.devices import Device
from stepscope.core.jobs import Assignment, UseState
from stepscope.core.readings import Labels

_LEAST = 0.01
"""Below NVML's whole percent, counters are noise."""
_EMPTY = 0.05
"""Share of the memory that drivers and displays take; whoever works holds more."""


class Activity:
    """Judges device by device; what was seen last time counts where one look proves nothing."""

    def __init__(self) -> None:
        self._strangers: frozenset[Labels] = frozenset()
        self._held: frozenset[Labels] = frozenset()

    def seen(self, devices: Sequence[Device], assignments: Sequence[Assignment]) -> list[Seen]:
        """What becomes of each device now."""
        by_device: dict[Labels, list[Assignment]] = {}
        for one in assignments:
            by_device.setdefault(one.device, []).append(one)
        nobodys = [device for device in devices if device.labels not in by_device]
        strangers = frozenset(device.labels for device in nobodys if is_used_by_strangers(device))
        states = dict.fromkeys(strangers - self._held, UseState.UNKNOWN)  # else they are the last values of a job's
        states |= dict.fromkeys(strangers & self._strangers, UseState.UNATTRIBUTED)
        self._strangers, self._held = strangers, frozenset(by_device)
        return [_seen(device, by_device.get(device.labels, ()), states.get(device.labels)) for device in devices]


def _seen(device: Device, here: Sequence[Assignment], without_job: UseState | None) -> Seen:
    held = tuple(Held(one.job.key, kernels_ran(device, one.pids, is_alone=len(here) == 1)) for one in here)
    tells_nothing = device.activity is None and device.memory_ratio is None and not held
    if not device.answers or tells_nothing:
        return Seen(device.labels, held, UseState.UNKNOWN)
    return Seen(device.labels, held, without_job)


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
