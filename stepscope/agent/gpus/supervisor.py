"""Supervisor of the probe processes: which one is asked what and when, and what follows from its answer.

Also from a timeout or an exit. Pure: time is an argument. `Timing` holds all intervals, deadlines and retries, in
seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from stepscope.agent.gpus.process import NAMELESS, Probe, ProbeReaper, ProbeSlot
from stepscope.agent.gpus.targets import ProbeCounts, Target, TargetSnapshot
from stepscope.agent.gpus.xid_log import XidLog
from stepscope.core.errors import UsageError
from stepscope.core.metrics.gpu import GPU
from stepscope.core.metrics.readings import Collection, Labels, MissingReason, WireError, labels_from, labels_of


@dataclass(frozen=True, slots=True)
class Timing:
    """All times in seconds.

    Attributes:
        interval: between two readings of a GPU.
        slow_poll: seconds between two readings of what changes slowly.
        deadline: for one GPU's answer. A driver without persistence mode takes up to 3 s to wake a GPU.
        start_deadline: for a new process's first answer: it loads the driver's library.
        look: between two looks which GPUs are there.
        slow: what a GPU may take of a round that others wait for; slower ones get a process of their own.
        first_retry, last_retry: the first wait after a failure, which doubles up to the last.
        healthy: how long a GPU must answer well before it is read with the others again.
        stale: age from which a sample is dropped.
        grace: for processes to end in when the agent ends.
    """

    interval: float = 1.0
    slow_poll: float = 10.0
    deadline: float = 5.0
    start_deadline: float = 30.0
    look: float = 60.0
    slow: float = 0.5
    first_retry: float = 1.0
    last_retry: float = 300.0
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
        """The wait after so many failures in a row, at least one."""
        return min(self.last_retry, self.first_retry * 2.0 ** min(failures - 1, 30))


_UP = GPU + "up"
_SILENT = "its driver does not answer"
_ALL_SILENT = "the driver does not answer"
_CRASHED = "reading it ended the process"
_STUCK = "its driver does not answer, and the process that asked cannot be killed"


def _labels_in(parts: Iterable[Collection]) -> Labels:
    """How a GPU is called now, by its own word that it answers."""
    return next((one.labels for part in parts for one in reversed(part.readings) if one.metric == _UP), ())


class ProbeSupervisor:
    """All GPUs and the processes that read them.

    Attributes:
        targets: GPUs by key.
        refusal: why no GPU can be asked; None while they can.
        counts: of the processes.
        xids: what came of them.
    """

    def __init__(self, start: Callable[[], Probe], timing: Timing) -> None:
        self._start = start
        self._timing = timing
        self._shared = ProbeSlot([], is_shared=True)
        self._apart: dict[str, ProbeSlot] = {}
        self._graveyard = ProbeReaper(timing.grace)
        self.targets: dict[str, Target] = {}
        self.refusal: tuple[MissingReason, str] | None = (MissingReason.NOT_YET, "the driver has not answered yet")
        self.counts = ProbeCounts()
        self.xids = XidLog()

    def probes(self) -> list[Probe]:
        """Processes that may answer."""
        return [lane.probe for lane in self._lanes() if lane.probe is not None]

    def known(self) -> tuple[TargetSnapshot, ...]:
        """All GPUs as they are now, by index."""
        ordered = sorted(self.targets.items(), key=lambda entry: (entry[1].index, entry[0]))
        return tuple(target.at(key, is_apart=key in self._apart) for key, target in ordered)

    def step(self, now: float, now_ns: int) -> float:
        """Do all that is due; when to come again if nothing is answered before.

        Args:
            now: monotonic time, seconds.
            now_ns: time since the epoch, ns.
        """
        self._graveyard.bury(now)
        self.counts.left_behind = self._graveyard.left_behind(now, self._timing.interval)
        for lane in self._lanes():
            if lane.probe is not None:
                self._receive(lane, now, now_ns)
            if lane.probe is not None and lane.is_waiting:
                self._check_deadline(lane, now)
        for lane in self._lanes():
            self._ask(lane, now)
        return min(self._next(lane, now) for lane in self._lanes())

    def close(self, now: float) -> bool:
        """Let all processes end; whether they have.

        Args:
            now: monotonic time, seconds; those that hang at `grace` after the first call are killed.
        """
        for lane in self._lanes():
            self._retire(lane, now)
        self._graveyard.bury(now)
        self.counts.left_behind = self._graveyard.left_behind(now, self._timing.interval)
        return self._graveyard.is_empty

    def _lanes(self) -> list[ProbeSlot]:
        return [self._shared, *self._apart.values()]

    def _next(self, lane: ProbeSlot, now: float) -> float:
        if lane.probe is None:
            return lane.retry_at
        if not lane.is_waiting:
            return lane.due
        silent_at, ends_at = lane.progress_at + self._timing.deadline, lane.progress_at + self._patience(lane)
        return silent_at if now < silent_at < ends_at else ends_at

    def _patience(self, lane: ProbeSlot) -> float:
        return self._timing.start_deadline if lane.is_fresh else self._timing.deadline

    # asking

    def _ask(self, lane: ProbeSlot, now: float) -> None:
        if lane.probe is None:
            if now < lane.retry_at or self._is_blocked(lane, now):
                return
            try:
                lane.probe = self._start()
            except OSError as error:  # no memory, process or descriptor left, or the program is being replaced
                self._cannot_start(lane, error, now)
                return
            self.counts.started += 1
            lane.due = lane.look_due = now
        if lane.is_waiting or now < lane.due:
            return
        request = lane.next_request(now, self._skipped())
        if request is None:
            lane.due = lane.look_due
            return
        if not lane.probe.send(request):
            self._crashes(lane, now)

    def _is_blocked(self, lane: ProbeSlot, now: float) -> bool:
        """Whether a call of it is still out: its process was killed, but hangs in the kernel."""
        if not self._graveyard.is_out(None if lane.is_shared else lane.keys[0]):
            return False
        lane.retry_at = now + self._timing.interval
        if lane.is_shared:
            self._is_silent(lane, _STUCK)
        else:
            self.targets[lane.keys[0]].fails(MissingReason.TIMED_OUT, _STUCK)
        return True

    # answers

    def _receive(self, lane: ProbeSlot, now: float, now_ns: int) -> None:
        probe = lane.probe
        assert probe is not None
        answers, has_ended = probe.receive()
        for answer in answers:
            lane.progress_at, lane.is_fresh = now, False
            try:
                self._take(lane, answer, now, now_ns)
            except (KeyError, TypeError, ValueError, WireError):
                has_ended = True  # it answers nonsense
                break
            if lane.probe is not probe:
                return  # it was told to end
        if has_ended:
            self._crashes(lane, now)

    def _take(self, lane: ProbeSlot, answer: dict[str, Any], now: float, now_ns: int) -> None:
        if "unusable" in answer:
            self._is_refused(lane, MissingReason(answer["unusable"][0]), str(answer["unusable"][1]), now)
        elif "count" in answer:
            self.refusal = None
            skipped = self._skipped() if lane.is_shared else []
            wanted = range(answer["count"]) if lane.is_shared else [int(lane.keys[0].removeprefix(NAMELESS))]
            lane.pending = [f"{NAMELESS}{index}" for index in wanted if index not in skipped]
        elif "index" in answer:
            self._finds(lane, answer)
        elif "key" in answer:
            self._reads(lane, answer, now, now_ns)
        elif answer.get("end") and lane.is_waiting:
            self._completes(lane, now)

    def _finds(self, lane: ProbeSlot, answer: dict[str, Any]) -> None:
        """A GPU told its place, or why not."""
        nameless = f"{NAMELESS}{answer['index']}"
        if lane.pending and nameless in lane.pending:
            lane.pending.remove(nameless)
        if "missing" in answer:
            reason, detail = answer["missing"]
            key = self._known_at(answer["index"])
            self.targets[key].fails(MissingReason(reason), detail)
            self._shared.found.add(key)
            return
        key, labels = str(answer["target"]["key"]), labels_from(answer["target"]["labels"])
        lane.found.add(key)
        if key != nameless and nameless in self.targets:  # it is known by its name now
            del self.targets[nameless]
            named = self._apart.pop(nameless, None)
            if named is not None and key not in self._apart:
                named.keys = [key]
                self._apart[key] = named
        target = self._know(key, labels)
        target.labels = labels
        if key not in self._apart and key not in self._shared.keys:
            self._shared.keys.append(key)

    def _skipped(self) -> list[int]:
        """Indices of GPUs that others shall not wait for."""
        return [self.targets[key].index for key in self._apart]

    def _know(self, key: str, labels: tuple[tuple[str, str], ...]) -> Target:
        if key not in self.targets:
            self.targets[key] = Target(labels)
        return self.targets[key]

    def _known_at(self, index: int) -> str:
        """Key of the GPU of this index; it is nameless from now on where none is known."""
        key = next((key for key, target in self.targets.items() if target.index == index), f"{NAMELESS}{index}")
        self._know(key, labels_of(gpu=index))
        return key

    def _reads(self, lane: ProbeSlot, answer: dict[str, Any], now: float, now_ns: int) -> None:
        """A GPU was read."""
        key = answer["key"]
        parts = {str(part): lane.read(key, part, message) for part, message in answer["parts"].items()}
        if lane.pending and key in lane.pending:
            lane.pending.remove(key)
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
        target.labels = _labels_in(parts.values()) or target.labels
        target.reason, target.detail = None, ""
        target.answered_ns, target.seconds = now_ns, float(answer["seconds"])
        target.slow_rounds = target.slow_rounds + 1 if target.seconds > self._timing.slow else 0
        if lane.is_shared and target.slow_rounds >= 2 and len(lane.keys) > 1:
            self._set_apart(key, now, wait=False)

    def _completes(self, lane: ProbeSlot, now: float) -> None:
        """It answered a whole request."""
        was_looking = lane.is_looking
        lane.is_looking, lane.is_sweeping, lane.pending = False, False, None
        lane.due = max(now, lane.asked_at + self._timing.interval)
        if was_looking:
            lane.due, lane.look_due = now, now + self._timing.look
            if lane.is_shared:
                # an index that was skipped may be another's by now: they change with a GPU that goes and a new driver
                may_be_skipped = bool(self._skipped())
                for key in [key for key in lane.keys if key not in lane.found]:
                    if not may_be_skipped:
                        self.targets[key].fails(MissingReason.GONE, "the driver counts it no more")
                    self._set_apart(key, now, wait=not may_be_skipped)
            elif lane.keys[0].startswith(NAMELESS):
                self._fails(lane, now)  # it is still nameless
            return
        if lane.is_shared or self.targets[lane.keys[0]].reason is None:
            lane.failures = 0
            lane.healthy_since = now if lane.healthy_since is None else lane.healthy_since
        else:
            self._fails(lane, now)
        if not lane.is_shared and lane.healthy_since is not None:
            self._rejoin_if_healthy(lane, now)

    # failures

    def _check_deadline(self, lane: ProbeSlot, now: float) -> None:
        if now >= lane.progress_at + self._patience(lane):
            self.counts.timed_out += 1
            self._lose(lane, MissingReason.TIMED_OUT, _SILENT, now)
        elif lane.is_shared and self.targets and now >= lane.progress_at + self._timing.deadline:
            self._is_silent(lane, _ALL_SILENT)  # a new process has longer, but what was told before is no more so

    def _is_silent(self, lane: ProbeSlot, detail: str) -> None:
        """The driver answers for no GPU of those that are read together, and none of them is to be blamed."""
        self.refusal = (MissingReason.TIMED_OUT, detail)
        for key in lane.keys:
            self.targets[key].fails(MissingReason.TIMED_OUT, detail)

    def _crashes(self, lane: ProbeSlot, now: float) -> None:
        self.counts.crashed += 1
        self._lose(lane, MissingReason.FAILED, _CRASHED, now)

    def _lose(self, lane: ProbeSlot, reason: MissingReason, detail: str, now: float) -> None:
        """A process hangs or has ended: blame what it was at."""
        suspect, was_waiting = lane.suspect, lane.is_waiting
        if suspect is not None and suspect.startswith(NAMELESS):
            suspect = self._known_at(int(suspect.removeprefix(NAMELESS)))
        self._kill(lane, suspect if was_waiting else "", now)
        if suspect is not None:
            self.targets[suspect].fails(reason, detail)
        if not lane.is_shared:
            self._fails(lane, now)
        elif suspect is not None:
            self._set_apart(suspect, now)
            lane.retry_at = now  # the others wait no longer
        else:
            if was_waiting and reason is MissingReason.TIMED_OUT:
                self._is_silent(lane, _ALL_SILENT)
            elif was_waiting:
                self.refusal = (reason, detail)
            self._fails(lane, now)

    def _cannot_start(self, lane: ProbeSlot, error: OSError, now: float) -> None:
        """There is no process to ask: try again later."""
        detail = f"no process can be started to ask it ({error.strerror or error})"
        self._fails_all(lane, MissingReason.FAILED, detail, detail.replace("ask it", "ask the driver"), now)

    def _is_refused(self, lane: ProbeSlot, reason: MissingReason, detail: str, now: float) -> None:
        """No GPU can be asked: the process ends by itself, and a new one may find the driver mended."""
        self.counts.refused += 1
        self._fails_all(lane, reason, detail, detail, now)

    def _fails_all(self, lane: ProbeSlot, reason: MissingReason, detail: str, of_driver: str, now: float) -> None:
        for key in lane.keys:
            self.targets[key].fails(reason, detail)
        if lane.is_shared:
            self.refusal = (reason, of_driver)
        self._fails(lane, now)

    def _fails(self, lane: ProbeSlot, now: float) -> None:
        """Try again later, in a new process."""
        lane.failures += 1
        self._retire(lane, now)
        lane.retry_at = now + self._timing.retry_after(lane.failures)

    def _set_apart(self, key: str, now: float, *, wait: bool = True) -> None:
        """Give a GPU a process of its own, at once or after a while."""
        if key in self._apart:
            return
        if key in self._shared.keys:
            self._shared.keys.remove(key)
        lane = self._apart[key] = ProbeSlot([key], is_shared=False)
        self.targets[key].times_apart += 1
        if wait:
            lane.failures = 1
            lane.retry_at = now + self._timing.retry_after(1)

    def _rejoin_if_healthy(self, lane: ProbeSlot, now: float) -> None:
        """Read a GPU with the others again: sooner the first time than one that keeps failing."""
        (key,) = lane.keys
        target = self.targets[key]
        needed = self._timing.healthy * 2.0 ** min(target.times_apart - 1, 10)
        if lane.healthy_since is None or now - lane.healthy_since < needed or target.slow_rounds:
            return
        self._retire(lane, now)
        del self._apart[key]
        self._shared.keys.append(key)

    # ends

    def _kill(self, lane: ProbeSlot, suspect: str | None, now: float) -> None:
        probe = lane.stop()
        if probe is not None:
            self._graveyard.kill(probe, suspect, now)

    def _retire(self, lane: ProbeSlot, now: float) -> None:
        probe = lane.stop()
        if probe is not None:
            self._graveyard.finish(probe, now)
