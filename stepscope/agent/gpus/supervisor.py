"""Supervisor of the probe processes: which one is asked what and when, and what follows from its answer or silence.

A GPU whose process times out, crashes or is slow gets a process of its own, so that the others do not wait for it, and
returns to the shared process when it has answered well for long enough. Pure: time is an argument.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from stepscope.agent.gpus.process import NAMELESS, GpuProbe, ProbeReaper, ProbeSlot
from stepscope.agent.gpus.targets import ProbeCounts, ProbeTarget, XidLog
from stepscope.core.errors import UsageError
from stepscope.core.hardware.devices import Device, device_in, device_of
from stepscope.core.metrics.readings import GPU, Collection, MissingReason, ReadingSelection
from stepscope.core.metrics.stream import CollectionWireError


@dataclass(frozen=True, slots=True)
class ProbeTiming:
    """Intervals, deadlines and retries of the GPU probes, in seconds.

    Attributes:
        interval: between two readings of a GPU.
        slow_poll: seconds between two readings of what changes slowly.
        deadline: for one GPU's answer. A driver without persistence mode takes up to 3 s to wake a GPU.
        start_deadline: for a new process's first answer: it loads the driver's library.
        look: between two searches for the GPUs that are present.
        slow: longest answer of a GPU that others wait for; slower ones get a process of their own.
        first_retry, last_retry: the first wait after a failure, which doubles up to the last.
        lost_retry: the shortest wait after a driver called a GPU lost. Health looks more often, and sees it also where
            the next process is answered.
        healthy: how long a GPU must answer well before it is read with the others again.
        stale: age from which a sample is dropped.
        grace: time for processes to exit when the agent ends.
    """

    interval: float = 1.0
    slow_poll: float = 10.0
    deadline: float = 5.0
    start_deadline: float = 30.0
    look: float = 60.0
    slow: float = 0.5
    first_retry: float = 1.0
    last_retry: float = 300.0
    lost_retry: float = 10.0
    healthy: float = 600.0
    stale: float = 60.0
    grace: float = 5.0

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) <= 0:
                raise UsageError(f"{name} must be more than 0 seconds, not {getattr(self, name)}")
        if self.stale <= max(self.slow_poll, self.interval) + self.deadline:
            raise UsageError(
                f"samples would be stale ({self.stale:g} s) before the next ones come",
                what_next=f"make stale longer than {max(self.slow_poll, self.interval) + self.deadline:g} s",
            )

    def retry_after(self, failures: int) -> float:
        """Seconds to wait after so many failures in a row, at least one."""
        return min(self.last_retry, self.first_retry * 2.0 ** min(failures - 1, 30))


_UP = GPU + "up"
_SILENT = "its driver does not answer"
_ALL_SILENT = "the driver does not answer"
_CRASHED = "reading it ended the process"
_STUCK = "its driver does not answer, and the process that asked cannot be killed"


_ANSWERS = ReadingSelection(lambda metric, labels: (device_of(labels), metric) if metric == _UP else None)


def _device_in(parts: Iterable[Collection]) -> Device | None:
    """The GPU by its newest reading that it answers: its index and UUID may have changed."""
    for part in parts:
        for device, _, _, _ in _ANSWERS.of(part.readings):
            return device
    return None


class ProbeSupervisor:
    """All GPUs and the probe processes that read them; `refusal` says why no GPU can be asked, None while they can.

    Attributes:
        known_before: GPUs that an earlier agent had found at this boot, by index. One that does not give its name any
            more is still that GPU.
    """

    def __init__(self, start: Callable[[], GpuProbe], timing: ProbeTiming) -> None:
        self._start = start
        self._timing = timing
        self._shared = ProbeSlot([], is_shared=True)
        self._apart: dict[str, ProbeSlot] = {}
        self._reaper = ProbeReaper(timing.grace)
        self.targets: dict[str, ProbeTarget] = {}
        self.refusal: tuple[MissingReason, str] | None = (MissingReason.NOT_YET, "the driver has not answered yet")
        self.counts = ProbeCounts()
        self.xids = XidLog()
        self.known_before: dict[str, Device] = {}

    def probes(self) -> list[GpuProbe]:
        return [slot.probe for slot in self._slots() if slot.probe is not None]

    @property
    def is_waiting(self) -> bool:
        """Whether any of them is to answer."""
        return any(slot.is_waiting for slot in self._slots())

    def known(self) -> tuple[ProbeTarget, ...]:
        """All GPUs as they are now, by index."""
        ordered = sorted(self.targets.items(), key=lambda entry: (entry[1].index, entry[0]))
        return tuple(
            replace(target, key=key, is_apart=key in self._apart, parts=dict(target.parts)) for key, target in ordered
        )

    def step(self, now: float, now_ns: int) -> float:
        """Do all that is due; the time of the next step, unless an answer comes before."""
        self._reaper.reap(now)
        self.counts.left_behind = self._reaper.left_behind(now, self._timing.interval)
        for slot in self._slots():
            if slot.probe is not None:
                self._receive(slot, now, now_ns)
            if slot.probe is not None and slot.is_waiting:
                if now >= slot.progress_at + self._patience(slot):
                    self.counts.timed_out += 1
                    self._lose(slot, MissingReason.TIMED_OUT, _SILENT, now)
                elif slot.is_shared and self.targets and now >= slot.progress_at + self._timing.deadline:
                    self._is_silent(slot, _ALL_SILENT)  # a new process has longer, but earlier readings no longer hold
        for slot in self._slots():
            self._ask(slot, now)
        return min(self._next(slot, now) for slot in self._slots())

    def close(self, now: float) -> bool:
        """Tell all processes to exit; whether they have.

        Args:
            now: monotonic time, seconds; those that hang at `grace` after the first call are killed.
        """
        for slot in self._slots():
            self._retire(slot, now)
        self._reaper.reap(now)
        self.counts.left_behind = self._reaper.left_behind(now, self._timing.interval)
        return self._reaper.is_empty

    def _slots(self) -> list[ProbeSlot]:
        return [self._shared, *self._apart.values()]

    def _next(self, slot: ProbeSlot, now: float) -> float:
        if slot.probe is None:
            return slot.retry_at
        if not slot.is_waiting:
            return slot.due
        silent_at, ends_at = slot.progress_at + self._timing.deadline, slot.progress_at + self._patience(slot)
        return silent_at if now < silent_at < ends_at else ends_at

    def _patience(self, slot: ProbeSlot) -> float:
        return self._timing.start_deadline if slot.is_fresh else self._timing.deadline

    # asking

    def _ask(self, slot: ProbeSlot, now: float) -> None:
        if slot.probe is None:
            if now < slot.retry_at or self._is_blocked(slot, now):
                return
            try:
                slot.probe = self._start()
            except OSError as error:  # no memory, process or descriptor left, or the program is being replaced
                detail = f"no process can be started to ask it ({error.strerror or error})"
                self._fails_all(slot, MissingReason.FAILED, detail, detail.replace("ask it", "ask the driver"), now)
                return
            self.counts.started += 1
            slot.due = slot.look_due = now
        if slot.is_waiting or now < slot.due:
            return
        request = slot.next_request(now, self._skipped())
        if request is None:
            slot.due = slot.look_due
            return
        if not slot.probe.send(request):
            self._crashes(slot, now)

    def _is_blocked(self, slot: ProbeSlot, now: float) -> bool:
        """Whether its last call has not returned: its process was killed, but hangs in the kernel."""
        if not self._reaper.is_out(None if slot.is_shared else slot.keys[0]):
            return False
        slot.retry_at = now + self._timing.interval
        if slot.is_shared:
            self._is_silent(slot, _STUCK)
        else:
            self.targets[slot.keys[0]].fails(MissingReason.TIMED_OUT, _STUCK)
        return True

    # answers

    def _receive(self, slot: ProbeSlot, now: float, now_ns: int) -> None:
        probe = slot.probe
        assert probe is not None
        answers, has_ended = probe.receive()
        for answer in answers:
            slot.progress_at, slot.is_fresh = now, False
            try:
                self._take(slot, answer, now, now_ns)
            except (KeyError, TypeError, ValueError, CollectionWireError):
                has_ended = True  # an invalid answer
                break
            if slot.probe is not probe:
                return  # the process was replaced
        if has_ended:
            self._crashes(slot, now)

    def _take(self, slot: ProbeSlot, answer: dict[str, Any], now: float, now_ns: int) -> None:
        if "unusable" in answer:
            self._is_refused(slot, MissingReason(answer["unusable"][0]), str(answer["unusable"][1]), now)
        elif "count" in answer:
            self.refusal = None
            skipped = self._skipped() if slot.is_shared else []
            wanted = range(answer["count"]) if slot.is_shared else [int(slot.keys[0].removeprefix(NAMELESS))]
            slot.pending = [f"{NAMELESS}{index}" for index in wanted if index not in skipped]
        elif "index" in answer:
            self._finds(slot, answer)
        elif "key" in answer:
            self._reads(slot, answer, now, now_ns)
        elif answer.get("end") and slot.is_waiting:
            self._completes(slot, now)

    def _finds(self, slot: ProbeSlot, answer: dict[str, Any]) -> None:
        """Take the key of a GPU, or why it has none."""
        nameless = f"{NAMELESS}{answer['index']}"
        if slot.pending and nameless in slot.pending:
            slot.pending.remove(nameless)
        if "missing" in answer:
            reason, detail = answer["missing"]
            key = self._known_at(answer["index"])
            self.targets[key].fails(MissingReason(reason), detail)
            self._shared.found.add(key)
            return
        key, device = str(answer["target"]["key"]), device_in(dict(answer["target"]["labels"]))
        slot.found.add(key)
        if key != nameless and nameless in self.targets:  # its key is known now
            del self.targets[nameless]
            named = self._apart.pop(nameless, None)
            if named is not None and key not in self._apart:
                named.keys = [key]
                self._apart[key] = named
        self._know(key, device).device = device
        for other, target in self.targets.items():
            if other != key and target.device.uuid == device.uuid:  # the GPUs are numbered anew
                target.device = Device(index=target.device.index)
        if key not in self._apart and key not in self._shared.keys:
            self._shared.keys.append(key)

    def _skipped(self) -> list[int]:
        """Indices of GPUs that have processes of their own."""
        return [self.targets[key].index for key in self._apart]

    def _know(self, key: str, device: Device) -> ProbeTarget:
        return self.targets.setdefault(key, ProbeTarget(device))

    def _known_at(self, index: int) -> str:
        """Key of the GPU of this index; made of the index if its own is not known."""
        key = next((key for key, target in self.targets.items() if target.index == index), f"{NAMELESS}{index}")
        device = self.known_before.get(str(index), Device(index=str(index)))
        is_elsewhere = any(target.device.uuid == device.uuid for target in self.targets.values())
        self._know(key, Device(index=str(index)) if is_elsewhere else device)
        return key

    def _reads(self, slot: ProbeSlot, answer: dict[str, Any], now: float, now_ns: int) -> None:
        key = answer["key"]
        parts = {str(part): slot.read(key, part, message) for part, message in answer["parts"].items()}
        if slot.pending and key in slot.pending:
            slot.pending.remove(key)
        target = self.targets[key]
        for part in parts.values():
            self.xids.add(part.findings, "nvml")
        self.counts.findings_dropped = self.xids.num_dropped
        if not answer["usable"]:
            lost = next((one for part in parts.values() for one in part.missing if not one.metric), None)
            target.fails(lost.reason if lost else MissingReason.FAILED, lost.detail if lost else "")
            self._set_apart(key, now)
            return
        target.parts |= {name: (part, now) for name, part in parts.items()}
        target.device = _device_in(parts.values()) or target.device
        target.reason, target.detail = None, ""
        target.answered_ns, target.seconds = now_ns, float(answer["seconds"])
        target.slow_rounds = target.slow_rounds + 1 if target.seconds > self._timing.slow else 0
        if slot.is_shared and target.slow_rounds >= 2 and len(slot.keys) > 1:
            self._set_apart(key, now, wait=False)

    def _completes(self, slot: ProbeSlot, now: float) -> None:
        was_looking = slot.is_looking
        slot.is_looking, slot.is_sweeping, slot.pending = False, False, None
        slot.due = max(now, slot.asked_at + self._timing.interval)
        if was_looking:
            slot.due, slot.look_due = now, now + self._timing.look
            if slot.is_shared:
                # an index that was skipped may be another's by now: they change with a GPU that goes and a new driver
                may_be_skipped = bool(self._skipped())
                for key in [key for key in slot.keys if key not in slot.found]:
                    if not may_be_skipped:
                        self.targets[key].fails(MissingReason.GONE, "the driver counts it no more")
                    self._set_apart(key, now, wait=not may_be_skipped)
            elif slot.keys[0].startswith(NAMELESS):
                self._fails(slot, now)  # its key is still not known
            return
        if slot.is_shared or self.targets[slot.keys[0]].reason is None:
            slot.failures = 0
            slot.healthy_since = now if slot.healthy_since is None else slot.healthy_since
        else:
            self._fails(slot, now)
        if not slot.is_shared and slot.healthy_since is not None:
            self._rejoin_if_healthy(slot, now)

    # failures

    def _is_silent(self, slot: ProbeSlot, detail: str) -> None:
        """The driver answers for none of the GPUs that are read together, and it is the fault of none."""
        self.refusal = (MissingReason.TIMED_OUT, detail)
        for key in slot.keys:
            self.targets[key].fails(MissingReason.TIMED_OUT, detail)

    def _crashes(self, slot: ProbeSlot, now: float) -> None:
        self.counts.crashed += 1
        self._lose(slot, MissingReason.FAILED, _CRASHED, now)

    def _lose(self, slot: ProbeSlot, reason: MissingReason, detail: str, now: float) -> None:
        """A process hangs or has ended: the GPU that it was reading fails."""
        suspect, was_waiting = slot.suspect, slot.is_waiting
        if suspect is not None and suspect.startswith(NAMELESS):
            suspect = self._known_at(int(suspect.removeprefix(NAMELESS)))
        if (probe := slot.stop()) is not None:
            self._reaper.kill(probe, suspect if was_waiting else "", now)
        if suspect is not None:
            self.targets[suspect].fails(reason, detail)
        if not slot.is_shared:
            self._fails(slot, now)
        elif suspect is not None:
            self._set_apart(suspect, now)
            slot.retry_at = now  # the others need not wait
        else:
            if was_waiting and reason is MissingReason.TIMED_OUT:
                self._is_silent(slot, _ALL_SILENT)
            elif was_waiting:
                self.refusal = (reason, detail)
            self._fails(slot, now)

    def _is_refused(self, slot: ProbeSlot, reason: MissingReason, detail: str, now: float) -> None:
        """No GPU can be asked: the process ends by itself, and a new one may find the driver repaired."""
        self.counts.refused += 1
        self._fails_all(slot, reason, detail, detail, now)

    def _fails_all(self, slot: ProbeSlot, reason: MissingReason, detail: str, of_driver: str, now: float) -> None:
        for key in slot.keys:
            self.targets[key].fails(reason, detail)
        if slot.is_shared:
            self.refusal = (reason, of_driver)
        self._fails(slot, now)

    def _fails(self, slot: ProbeSlot, now: float) -> None:
        """Try again later, in a new process."""
        slot.failures += 1
        self._retire(slot, now)
        slot.retry_at = now + self._wait_of(slot)

    def _wait_of(self, slot: ProbeSlot) -> float:
        """Seconds until a slot that failed is tried again."""
        wait = self._timing.retry_after(slot.failures)
        is_lost = not slot.is_shared and self.targets[slot.keys[0]].reason is MissingReason.GONE
        return max(wait, self._timing.lost_retry) if is_lost else wait

    def _set_apart(self, key: str, now: float, *, wait: bool = True) -> None:
        """Give a GPU a process of its own, at once or after a while."""
        if key in self._apart:
            return
        if key in self._shared.keys:
            self._shared.keys.remove(key)
        slot = self._apart[key] = ProbeSlot([key], is_shared=False)
        self.targets[key].times_apart += 1
        if wait:
            slot.failures = 1
            slot.retry_at = now + self._wait_of(slot)

    def _rejoin_if_healthy(self, slot: ProbeSlot, now: float) -> None:
        """Read a GPU with the others again: sooner the first time than one that keeps failing."""
        (key,) = slot.keys
        target = self.targets[key]
        needed = self._timing.healthy * 2.0 ** min(target.times_apart - 1, 10)
        if slot.healthy_since is None or now - slot.healthy_since < needed or target.slow_rounds:
            return
        self._retire(slot, now)
        del self._apart[key]
        self._shared.keys.append(key)

    # ends

    def _retire(self, slot: ProbeSlot, now: float) -> None:
        if (probe := slot.stop()) is not None:
            self._reaper.finish(probe, now)
