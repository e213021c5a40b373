"""GPU time by use: each device-second in one state (busy, held but idle, free, unattributed) and of one job.

The time of a device that several jobs have is split evenly, so that all jobs together never get more than there is. A
stretch without kernels is attributed only when its length is known: from `idle_seconds` on all of it is held_but_idle,
a shorter one was part of the work. Until then the state of a job that has run no kernel yet is unknown: it may be
starting, or have held its GPU for hours before the agent began.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, field

from stepscope.collectors.jobs.devices import DeviceUsage
from stepscope.core.documents.jobs import Assignment, JobKind, UseState
from stepscope.core.hardware.devices import Device

GAP_SECONDS = 60.0
"""Longest time between two samples (the machine may sleep, the driver hang) of which the state is known."""
ENDED_SECONDS = 300.0
"""Time for which series of an ended job stay, for the last scrape (NVIDIA/dcgm-exporter#140)."""
_MAX_JOBS = 1000

JobKey = tuple[JobKind, str]


@dataclass(frozen=True, slots=True)
class JobActivity:
    """Whether kernels of a job ran on a device lately; None: not known."""

    job: JobKey
    ran: bool | None


@dataclass(frozen=True, slots=True)
class DeviceSample:
    """A GPU or MIG instance at one moment: the jobs that have it, and its state of use.

    Attributes:
        state: of a device without a job, or that does not answer; None: it follows from the jobs' activity.
    """

    device: Device
    holders: tuple[JobActivity, ...] = ()
    state: UseState | None = None


@dataclass(slots=True)
class _Stretch:
    """A job's current stretch without kernels on a device.

    Attributes:
        open_seconds: its part of the time without kernels that is not attributed to a state yet.
        quiet_seconds: since its kernels ran last.
        has_run: whether they ever did.
    """

    open_seconds: float = 0.0
    quiet_seconds: float = 0.0
    has_run: bool = False


@dataclass(slots=True)
class _JobTime:
    """Time of a job by MIG profile and state, and when it had no device any more."""

    ended: float | None = None
    seconds: dict[tuple[str, UseState], float] = field(default_factory=dict)


class GpuTimeCounter:
    """GPU time of devices and jobs by state. Counters only rise, until those of ended jobs are removed.

    Args:
        idle_seconds: length of a stretch without kernels from which it counts as idle.
    """

    def __init__(self, idle_seconds: float) -> None:
        self._idle_seconds = idle_seconds
        self._last: float | None = None
        self._stretches: dict[tuple[Device, JobKey], _Stretch] = {}
        self._devices: dict[Device, dict[UseState, float]] = {}
        self._jobs: dict[JobKey, _JobTime] = {}
        self._states: dict[Device, UseState] = {}

    def observe(self, seen: Sequence[DeviceSample], now: float) -> None:
        """Attribute the time since the last call.

        Args:
            seen: all devices, each once. A device that is no longer there is forgotten.
        """
        seconds = 0.0 if self._last is None else max(0.0, now - self._last)
        self._last = now
        held = {(one.device, holder.job) for one in seen for holder in one.holders}
        for device, job in self._stretches.keys() - held:
            self._settle(device, job)
        for one in seen:
            if seconds > GAP_SECONDS:
                self._attribute(one, seconds, UseState.UNKNOWN)
            self._observe(one, seconds if seconds <= GAP_SECONDS else 0.0)
        there = {one.device for one in seen}
        self._devices = {device: time for device, time in self._devices.items() if device in there}
        self._states = {device: state for device, state in self._states.items() if device in there}
        here = {job for _, job in held}
        for job in here:
            self._jobs.setdefault(job, _JobTime())
        self._end_jobs(here, now)

    def device_seconds(self) -> dict[tuple[Device, UseState], float]:
        """Seconds of each device in each state, without open stretches."""
        return {(device, state): value for device, time in self._devices.items() for state, value in time.items()}

    def job_seconds(self) -> dict[tuple[JobKey, str, UseState], float]:
        """Seconds of each job on whole GPUs (profile "") and MIG instances of each profile."""
        return {
            (job, profile, state): value
            for job, time in self._jobs.items()
            for (profile, state), value in time.seconds.items()
        }

    def jobs(self) -> Set[JobKey]:
        """Jobs that have time, also some that ended."""
        return self._jobs.keys()

    def open_seconds(self) -> float:
        return sum(stretch.open_seconds for stretch in self._stretches.values())

    def states(self) -> dict[Device, UseState]:
        return dict(self._states)

    def _observe(self, one: DeviceSample, seconds: float) -> None:
        if one.state is not None or not one.holders:
            state = one.state or UseState.FREE
            self._attribute(one, seconds, state)
            self._states[one.device] = state
            return
        share = seconds / len(one.holders)
        states = [self._advance(one.device, holder, seconds, share) for holder in one.holders]
        order = (UseState.BUSY, UseState.UNKNOWN, UseState.HELD_BUT_IDLE)
        self._states[one.device] = next(state for state in order if state in states)

    def _advance(self, device: Device, holder: JobActivity, seconds: float, share: float) -> UseState:
        stretch = self._stretches.setdefault((device, holder.job), _Stretch())
        if holder.ran is None:
            self._add(device, holder.job, UseState.UNKNOWN, share)
            return UseState.UNKNOWN
        if holder.ran:
            self._add(device, holder.job, UseState.BUSY, stretch.open_seconds + share)
            stretch.open_seconds, stretch.quiet_seconds, stretch.has_run = 0.0, 0.0, True
            return UseState.BUSY
        stretch.open_seconds += share
        stretch.quiet_seconds += seconds
        if stretch.quiet_seconds < self._idle_seconds:
            return UseState.BUSY if stretch.has_run else UseState.UNKNOWN
        self._add(device, holder.job, UseState.HELD_BUT_IDLE, stretch.open_seconds)
        stretch.open_seconds = 0.0
        return UseState.HELD_BUT_IDLE

    def _settle(self, device: Device, job: JobKey) -> None:
        """Close the stretch of a job that has left the device: it was work if the job ever worked there."""
        stretch = self._stretches.pop((device, job))
        if stretch.open_seconds:
            state = UseState.BUSY if stretch.has_run else UseState.HELD_BUT_IDLE
            self._add(device, job, state, stretch.open_seconds)

    def _attribute(self, one: DeviceSample, seconds: float, state: UseState) -> None:
        """Attribute time in one state to all jobs that have the device."""
        if not one.holders:
            time = self._devices.setdefault(one.device, {})
            time[state] = time.get(state, 0.0) + seconds
        for holder in one.holders:
            self._add(one.device, holder.job, state, seconds / len(one.holders))

    def _add(self, device: Device, job: JobKey, state: UseState, seconds: float) -> None:
        of_device = self._devices.setdefault(device, {})
        of_device[state] = of_device.get(state, 0.0) + seconds
        of_job = self._jobs.setdefault(job, _JobTime()).seconds
        # MIG profile; "unknown" of an instance without (it has several compute instances), empty of a whole GPU.
        profile = device.profile or ("unknown" if device.instance else "")
        key = profile, state
        of_job[key] = of_job.get(key, 0.0) + seconds

    def _end_jobs(self, here: set[JobKey], now: float) -> None:
        for job, time in self._jobs.items():
            time.ended = None if job in here else time.ended if time.ended is not None else now
        ended = sorted((time.ended, job) for job, time in self._jobs.items() if time.ended is not None)
        num_over = len(self._jobs) - _MAX_JOBS
        for position, (since, job) in enumerate(ended):
            if now - since >= ENDED_SECONDS or position < num_over:
                del self._jobs[job]


_MIN_ACTIVITY = 0.01
"""Below NVML's whole percent, counters are noise."""
_IDLE_MEMORY_RATIO = 0.05
"""Share of the memory that drivers and displays take; a process that computes holds more."""


class GpuUseClassifier:
    """State of use of each GPU by its counters; uses the previous samples where one sample proves nothing."""

    def __init__(self) -> None:
        self._unattributed: frozenset[Device] = frozenset()
        self._held: frozenset[Device] = frozenset()

    def seen(self, devices: Sequence[DeviceUsage], assignments: Sequence[Assignment]) -> list[DeviceSample]:
        by_device: dict[Device, list[Assignment]] = {}
        for one in assignments:
            by_device.setdefault(one.device, []).append(one)
        without_job = [one for one in devices if one.device not in by_device]
        unattributed = frozenset(one.device for one in without_job if _is_used_without_job(one))
        states = dict.fromkeys(unattributed - self._held, UseState.UNKNOWN)  # they may be the last values of a job
        states |= dict.fromkeys(unattributed & self._unattributed, UseState.UNATTRIBUTED)
        self._unattributed, self._held = unattributed, frozenset(by_device)
        return [_device_sample(one, by_device.get(one.device, ()), states.get(one.device)) for one in devices]


def _device_sample(usage: DeviceUsage, here: Sequence[Assignment], without_job: UseState | None) -> DeviceSample:
    held = tuple(JobActivity(one.job.key, _kernels_ran(usage, one.pids, is_alone=len(here) == 1)) for one in here)
    tells_nothing = usage.activity is None and usage.memory_ratio is None and not held
    if not usage.answers or tells_nothing:
        return DeviceSample(usage.device, held, UseState.UNKNOWN)
    return DeviceSample(usage.device, held, without_job)


def _kernels_ran(device: DeviceUsage, pids: Iterable[int], *, is_alone: bool) -> bool | None:
    """Agent's jobs: whether kernels of a job ran on a device in the last sample; None: not known.

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
    if device.activity < _MIN_ACTIVITY:
        return False
    if is_alone:
        return True
    has_ratios = any(holder.sm_ratio is not None for holder in device.holders.values())
    return False if has_ratios else None


def _is_used_without_job(device: DeviceUsage) -> bool:
    """Agent's jobs: whether a device without any job is used: kernels run, or memory is held."""
    ran = device.activity is not None and device.activity >= _MIN_ACTIVITY
    return ran or bool(device.holders) or (device.memory_ratio or 0.0) > _IDLE_MEMORY_RATIO
