"""GPU time by use: each device-second in one state (busy, held but idle, free, unattributed) and of one job.

A device of several jobs is split evenly, so that all jobs together never get more than there is. A stretch without
kernels is held back until it is known what it is: from `idle_seconds` on all of it is held_but_idle, a shorter one was
part of the work. A job that has run no kernel yet is neither until then: it may be starting, or have held its GPU for
hours before the agent looked.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, field

from stepscope.collectors.jobs.devices import DeviceUsage
from stepscope.core.documents.jobs import Assignment, JobKind, UseState
from stepscope.core.hardware.devices import Device

GAP_SECONDS = 60.0
"""Nobody looked for longer than that (the machine slept, the driver hung): the state in between is not known."""
ENDED_SECONDS = 300.0
"""Series of an ended job stay for so long, for the last scrape (NVIDIA/dcgm-exporter#140)."""
_MOST_JOBS = 1000

JobKey = tuple[JobKind, str]


@dataclass(frozen=True, slots=True)
class JobActivity:
    """A job has a device: whether its kernels ran lately; None: not known."""

    job: JobKey
    ran: bool | None


@dataclass(frozen=True, slots=True)
class DeviceSample:
    """A device at one moment.

    Attributes:
        device: which one.
        holders: jobs that have it.
        state: where nobody has it, or it does not answer; None: the jobs' activity tells.
    """

    device: Device
    holders: tuple[JobActivity, ...] = ()
    state: UseState | None = None


@dataclass(slots=True)
class _Stretch:
    """How a job's time on a device goes.

    Attributes:
        waiting: its part of the time without kernels that is not booked yet, seconds.
        quiet_seconds: since its kernels ran last.
        has_run: whether they ever did.
    """

    waiting: float = 0.0
    quiet_seconds: float = 0.0
    has_run: bool = False


@dataclass(slots=True)
class _JobTime:
    """When a job was found to have no device any more, and its time by MIG profile and state."""

    ended: float | None = None
    seconds: dict[tuple[str, UseState], float] = field(default_factory=dict)


class UseLedger:
    """Books time. Counters only rise, but for those of ended jobs, which go."""

    def __init__(self, idle_seconds: float) -> None:
        """
        Args:
            idle_seconds: length of a stretch without kernels from which it counts as idle.
        """
        self._idle_seconds = idle_seconds
        self._last: float | None = None
        self._stretches: dict[tuple[Device, JobKey], _Stretch] = {}
        self._devices: dict[Device, dict[UseState, float]] = {}
        self._jobs: dict[JobKey, _JobTime] = {}
        self._states: dict[Device, UseState] = {}

    def observe(self, seen: Sequence[DeviceSample], now: float) -> None:
        """Book the time since the last call.

        Args:
            seen: all devices, each once. One that is no longer there is forgotten.
            now: seconds, of a clock that only goes forward.
        """
        seconds = 0.0 if self._last is None else max(0.0, now - self._last)
        self._last = now
        held = {(one.device, holder.job) for one in seen for holder in one.holders}
        for device, job in self._stretches.keys() - held:
            self._settle(device, job)
        for one in seen:
            if seconds > GAP_SECONDS:
                self._book(one, seconds, UseState.UNKNOWN)
            self._observe(one, seconds if seconds <= GAP_SECONDS else 0.0)
        there = {one.device for one in seen}
        self._devices = {device: time for device, time in self._devices.items() if device in there}
        self._states = {device: state for device, state in self._states.items() if device in there}
        here = {job for _, job in held}
        for job in here:
            self._jobs.setdefault(job, _JobTime())
        self._end_jobs(here, now)

    def device_seconds(self) -> dict[tuple[Device, UseState], float]:
        """Time of each device in each state, without stretches that are still open."""
        return {(device, state): value for device, time in self._devices.items() for state, value in time.items()}

    def job_seconds(self) -> dict[tuple[JobKey, str, UseState], float]:
        """Time of each job on whole GPUs (profile "") and MIG instances of each profile."""
        return {
            (job, profile, state): value
            for job, time in self._jobs.items()
            for (profile, state), value in time.seconds.items()
        }

    def jobs(self) -> Set[JobKey]:
        """Those of which there is time to tell, also some that ended."""
        return self._jobs.keys()

    def open_seconds(self) -> float:
        """Time in stretches that are still open."""
        return sum(stretch.waiting for stretch in self._stretches.values())

    def states(self) -> dict[Device, UseState]:
        """What each device is used for now."""
        return dict(self._states)

    def _observe(self, one: DeviceSample, seconds: float) -> None:
        if one.state is not None or not one.holders:
            state = one.state or UseState.FREE
            self._book(one, seconds, state)
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
            self._add(device, holder.job, UseState.BUSY, stretch.waiting + share)
            stretch.waiting, stretch.quiet_seconds, stretch.has_run = 0.0, 0.0, True
            return UseState.BUSY
        stretch.waiting += share
        stretch.quiet_seconds += seconds
        if stretch.quiet_seconds < self._idle_seconds:
            return UseState.BUSY if stretch.has_run else UseState.UNKNOWN
        self._add(device, holder.job, UseState.HELD_BUT_IDLE, stretch.waiting)
        stretch.waiting = 0.0
        return UseState.HELD_BUT_IDLE

    def _settle(self, device: Device, job: JobKey) -> None:
        """The job has the device no more. A stretch that was still open was work, if it ever worked there."""
        stretch = self._stretches.pop((device, job))
        if stretch.waiting:
            state = UseState.BUSY if stretch.has_run else UseState.HELD_BUT_IDLE
            self._add(device, job, state, stretch.waiting)

    def _book(self, one: DeviceSample, seconds: float, state: UseState) -> None:
        """The same state for all that have it."""
        if not one.holders:
            time = self._devices.setdefault(one.device, {})
            time[state] = time.get(state, 0.0) + seconds
        for holder in one.holders:
            self._add(one.device, holder.job, state, seconds / len(one.holders))

    def _add(self, device: Device, job: JobKey, state: UseState, seconds: float) -> None:
        of_device = self._devices.setdefault(device, {})
        of_device[state] = of_device.get(state, 0.0) + seconds
        of_job = self._jobs.setdefault(job, _JobTime()).seconds
        key = _profile_of(device), state
        of_job[key] = of_job.get(key, 0.0) + seconds

    def _end_jobs(self, here: set[JobKey], now: float) -> None:
        for job, time in self._jobs.items():
            time.ended = None if job in here else time.ended if time.ended is not None else now
        ended = sorted((time.ended, job) for job, time in self._jobs.items() if time.ended is not None)
        num_over = len(self._jobs) - _MOST_JOBS
        for position, (since, job) in enumerate(ended):
            if now - since >= ENDED_SECONDS or position < num_over:
                del self._jobs[job]


def _profile_of(device: Device) -> str:
    """MIG profile; "unknown" of an instance without (it has several compute instances), empty of a whole GPU."""
    return device.profile or ("unknown" if device.instance else "")


_LEAST = 0.01
"""Below NVML's whole percent, counters are noise."""
_EMPTY = 0.05
"""Share of the memory that drivers and displays take; whoever works holds more."""


class UseClassifier:
    """Judges device by device; what was seen last time counts where one look proves nothing."""

    def __init__(self) -> None:
        self._strangers: frozenset[Device] = frozenset()
        self._held: frozenset[Device] = frozenset()

    def seen(self, devices: Sequence[DeviceUsage], assignments: Sequence[Assignment]) -> list[DeviceSample]:
        """What becomes of each device now."""
        by_device: dict[Device, list[Assignment]] = {}
        for one in assignments:
            by_device.setdefault(one.device, []).append(one)
        nobodys = [one for one in devices if one.device not in by_device]
        strangers = frozenset(one.device for one in nobodys if is_used_by_strangers(one))
        states = dict.fromkeys(strangers - self._held, UseState.UNKNOWN)  # else they are the last values of a job's
        states |= dict.fromkeys(strangers & self._strangers, UseState.UNATTRIBUTED)
        self._strangers, self._held = strangers, frozenset(by_device)
        return [_device_sample(one, by_device.get(one.device, ()), states.get(one.device)) for one in devices]


def _device_sample(usage: DeviceUsage, here: Sequence[Assignment], without_job: UseState | None) -> DeviceSample:
    held = tuple(JobActivity(one.job.key, kernels_ran(usage, one.pids, is_alone=len(here) == 1)) for one in here)
    tells_nothing = usage.activity is None and usage.memory_ratio is None and not held
    if not usage.answers or tells_nothing:
        return DeviceSample(usage.device, held, UseState.UNKNOWN)
    return DeviceSample(usage.device, held, without_job)


def kernels_ran(device: DeviceUsage, pids: Iterable[int], *, is_alone: bool) -> bool | None:
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


def is_used_by_strangers(device: DeviceUsage) -> bool:
    """Whether a device without any job is used all the same: kernels run, or memory is held."""
    ran = device.activity is not None and device.activity >= _LEAST
    return ran or bool(device.holders) or (device.memory_ratio or 0.0) > _EMPTY
