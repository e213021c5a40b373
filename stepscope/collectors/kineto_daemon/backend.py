"""Capture backend for processes started with KINETO_USE_DAEMON=1, and their metrics.

libkineto asks this daemon for captures; these processes need no stepscope. Three kinds of threads: the server's answers
polls and nothing else; the worker looks at processes and files and decides five times a second; two readers compress
traces, at the lowest priority, because training runs beside. Callers wait for none of them.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from stepscope.collectors.kineto_daemon.capture import Action, KinetoCapture, Offer, Take
from stepscope.collectors.kineto_daemon.processes import (
    KEY_PREFIX,
    KinetoProcess,
    KinetoTarget,
    KinetoTargets,
    PendingRequests,
    kineto_key_of,
    process_uid,
)
from stepscope.collectors.kineto_daemon.server import AddressInUseError, KinetoServer
from stepscope.collectors.kineto_daemon.trace_files import CaptureFiles, error_line, remove_left_behind_staging
from stepscope.core.errors import UsageError
from stepscope.core.metrics.agent import KINETO
from stepscope.core.metrics.readings import Collection, Finding, Missing, MissingReason, Reading, labels_of
from stepscope.core.process import WorkerThread
from stepscope.core.protocol import captures

_log = logging.getLogger(__name__)

_BUSY_SECONDS, _IDLE_SECONDS = 0.2, 1.0
_NUM_READERS = 2
_LOWEST_PRIORITY = 19
_LINGER_SECONDS = 60.0
"""How long a capture's folders stay after its end: a process that was asked may still be writing to its own."""
_GATHERING_SECONDS = 6.0
"""After its start no process is asked: a capture from before a restart is to have all its processes, which poll by
then."""
_MAX_FINISHED = 64
"""Captures whose progress is still known after their end."""
_KNOWN_POLLS = 3
"""Two intervals of 5 s after the first: a rank that has not polled by then does not come."""

NO_STEP_NUMBERS = "libkineto does not tell at which step a process is: leave the first step out"
NO_OVERHEAD = "libkineto does not stop at an overhead: leave it out, or ask for fewer steps"
GONE = "no such process asks any more"
UNKNOWN = "it was not under way"
BEGUN = "the capture has begun without it"
TAKEN = "another capture of this process is under way"


@dataclass(slots=True)
class _ActiveCapture:
    request: captures.CaptureRequest
    capture: KinetoCapture
    files: CaptureFiles
    over_since: float | None = None


class KinetoBackend:
    """Captures by libkineto's own daemon protocol. A context manager: answers processes while it is open.

    Attributes:
        why_closed: why it answers no process although it is open; None while it does. `try_again` may change that.
    """

    name = "kineto"

    def __init__(self, folder: Path, *, socket_folder: str | None = None, is_required: bool = True) -> None:
        """
        Args:
            folder: traces go into directories of runs below it.
            socket_folder: the processes' KINETO_IPC_SOCKET_DIR, None without.
            is_required: False goes on without where another daemon has the address.
        """
        self.why_closed: Missing | None = None
        self._pending = PendingRequests()
        self.server = KinetoServer(self._pending.take, folder=socket_folder)
        self._is_required = is_required
        self._opening = threading.Lock()
        self._is_over = False
        self._look_up = KinetoTargets(folder)
        self._targets: Mapping[str, KinetoTarget] = {}
        self._updates: deque[captures.CaptureUpdate] = deque()
        self._active: dict[str, _ActiveCapture] = {}
        self._early: dict[str, tuple[captures.CaptureRequest, tuple[str, ...]]] = {}
        self._ready_at = 0.0
        self._progress: dict[str, dict[str, captures.CaptureProgress]] = {}
        self._readers = ThreadPoolExecutor(_NUM_READERS, "stepscope-kineto-reader", initializer=_lower_priority)
        self._worker = WorkerThread(self._look, name="stepscope-kineto-captures", log=_log)

    def __enter__(self) -> KinetoBackend:
        """Raises `UsageError` where it is required and the address cannot be had."""
        try:
            self._open()
        except UsageError as error:
            if self._is_required:
                raise
            self.why_closed = _closed_by(error)
        return self

    def __exit__(self, *_: object) -> None:
        """Leave everything: a process that traces does so to its end, and training goes on."""
        with self._opening:
            self._is_over = True
        if self.why_closed is not None:
            return
        self.server.__exit__()
        self._worker.__exit__()
        self._readers.shutdown(cancel_futures=True)
        for active in self._active.values():
            active.files.finished()
            active.files.close()

    def try_again(self) -> None:
        """Answer processes from now on if the address can be had by now; from any thread."""
        with self._opening:
            if self.why_closed is None or self._is_over:
                return
            try:
                self._open()
            except UsageError as error:
                self.why_closed = _closed_by(error)
                return
            self.why_closed = None
        _log.warning("processes started with KINETO_USE_DAEMON=1 are answered from now on")

    def targets(self) -> Sequence[captures.CaptureTarget]:
        """The processes that poll, without launchers; ranks that have just begun to, once all of their node do."""
        targets = self._targets.values()
        num_of_run = Counter(target.run for target in targets)
        return [
            _capture_target(target, is_alone=num_of_run[target.run] == 1)
            for target in targets
            if target.process.num_polls >= _KNOWN_POLLS or num_of_run[target.run] >= (target.place.local_size or 0)
        ]

    def pids_of_job(self, name: str) -> frozenset[int]:
        """Processes of a job that is named by a process id: that of one of them, its launcher or its shell."""
        processes = [target.process for target in self._targets.values()]
        is_pid = name.isascii() and name.isdecimal() and int(name) > 1
        if not is_pid or any(one.job_id is not None and str(one.job_id) == name for one in processes):
            return frozenset()
        own = [one for one in processes if int(name) in (one.peer.pid, *one.ancestors_in_our_namespace)]
        uid = process_uid(int(name))  # a process names its ancestors itself
        of_user = [one for one in own if one.peer.uid == uid]
        return frozenset(one.peer.pid for one in of_user or own)

    def request(self, request: captures.CaptureRequest, keys: Iterable[str]) -> None:
        """Capture these processes together; keys of other backends are ignored."""
        keys = _own(keys)
        reason = _why_unsupported(request)
        if reason is not None:
            refused = captures.CaptureProgress(captures.CaptureState.REFUSED, reason)
            self._updates += [captures.CaptureUpdate(request.id, key, refused) for key in keys]
        elif keys:
            self._worker.post(lambda: self._begin(request, keys))

    def cancel(self, capture_id: str, keys: Iterable[str]) -> None:
        """Cancel it in all its processes; `updates` has at least one of each of `keys`. No trace of it is kept."""
        if keys := _own(keys):
            self._worker.post(lambda: self._cancel(capture_id, keys))

    def updates(self) -> Sequence[captures.CaptureUpdate]:
        """Progress since the last call, the oldest first."""
        return [self._updates.popleft() for _ in range(len(self._updates))]

    def _open(self) -> None:
        self.server.__enter__()
        self._ready_at = time.monotonic() + _GATHERING_SECONDS
        self._worker.post(lambda: remove_left_behind_staging(time.time_ns()))
        self._worker.__enter__()

    def _look(self) -> float:
        processes = {kineto_key_of(process): process for process in self.server.processes()}
        self._targets = self._look_up.of(processes.values(), time.monotonic())
        if self._early and time.monotonic() >= self._ready_at:
            early, self._early = self._early, {}
            for request, keys in early.values():
                self._worker.post(partial(self._begin, request, keys))
        for active in list(self._active.values()):
            try:
                self._advance(active, processes)
            except Exception as error:  # this capture's own fault
                _log.exception("capture %s is given up; the others go on", active.request.id)
                self._give_up(active, error_line(error))
        return _BUSY_SECONDS if self._active else _IDLE_SECONDS

    def _begin(self, request: captures.CaptureRequest, keys: tuple[str, ...]) -> None:
        if time.monotonic() < self._ready_at:
            _, known_keys = self._early.get(request.id, (request, ()))
            self._early[request.id] = request, tuple(dict.fromkeys((*known_keys, *keys)))
            return
        if request.id in self._progress:
            for key in keys:
                known = self._progress[request.id].get(key)
                self._report(request.id, key, known or captures.CaptureProgress(captures.CaptureState.REFUSED, BEGUN))
            return
        taken = {key for one in self._active.values() if not one.capture.is_over for key in one.files.targets}
        targets = {key: self._targets[key] for key in keys if key in self._targets and key not in taken}
        for key in keys:
            if key not in targets:
                reason = TAKEN if key in taken else GONE
                self._report(request.id, key, captures.CaptureProgress(captures.CaptureState.REFUSED, reason))
        if targets:
            begin = max(_monotonic(request.start_unix_ns) or 0.0, time.monotonic())
            until = _monotonic(request.deadline_unix_ns)
            capture = KinetoCapture(list(targets), num_steps=request.steps, begin=begin, until=until)
            files = CaptureFiles(request, targets, pending=self._pending, readers=self._readers)
            self._active[request.id] = _ActiveCapture(request, capture, files)
            self._report_progress(self._active[request.id])

    def _cancel(self, capture_id: str, keys: Iterable[str]) -> None:
        self._early.pop(capture_id, None)
        if (active := self._active.get(capture_id)) is not None:
            self._act(active, active.capture.cancel())
            self._report_progress(active)
        known = self._progress.get(capture_id, {})
        for key in keys:
            self._report(
                capture_id, key, known.get(key) or captures.CaptureProgress(captures.CaptureState.CANCELLED, UNKNOWN)
            )

    def _advance(self, active: _ActiveCapture, processes: Mapping[str, KinetoProcess]) -> None:
        now, capture, files = time.monotonic(), active.capture, active.files
        for key, result in files.finished():
            if isinstance(result, str):
                capture.not_taken(key, result)
            else:
                capture.taken(key, result.summary)
        if not capture.is_over:
            views = {key: files.view(key, processes.get(key)) for key in files.targets}
            self._act(active, capture.step(views, now))
        self._report_progress(active)
        if capture.is_over and not files.is_reading:
            active.over_since = active.over_since or now
            if now > active.over_since + _LINGER_SECONDS:
                files.close()
                del self._active[active.request.id]

    def _give_up(self, active: _ActiveCapture, why: str) -> None:
        del self._active[active.request.id]
        known = self._progress.get(active.request.id, {})
        for key in active.files.targets:
            self._pending.withdraw(key)
            if key not in known or not known[key].state.is_final:
                self._report(active.request.id, key, captures.CaptureProgress(captures.CaptureState.FAILED, why))
        active.files.close()

    def _act(self, active: _ActiveCapture, actions: Iterable[Action]) -> None:
        for action in actions:
            if isinstance(action, Offer):
                try:
                    active.files.offer(action)
                except (OSError, ValueError) as error:
                    self._pending.withdraw(action.key)
                    active.capture.not_taken(action.key, error_line(error))
            elif isinstance(action, Take):
                active.files.start_reading(action)
            else:
                self._pending.withdraw(action.key)

    def _report_progress(self, active: _ActiveCapture) -> None:
        """Report the changes of a capture; traces that are done get their names first."""
        changes = active.capture.take_changes()
        done = [key for key, progress in changes if progress.state is captures.CaptureState.DONE]
        kept = active.files.keep(done) if done else {}
        aligned_by = captures.Alignment.STEP if len(done) == 1 else captures.Alignment.MULTIPLE
        for key, progress in changes:
            trace = kept.get(key)
            if isinstance(trace, str):
                progress = captures.CaptureProgress(captures.CaptureState.FAILED, trace)
            elif trace is not None:
                path, num_bytes = trace
                progress = replace(
                    progress, steps=active.request.steps, aligned_by=aligned_by, path=str(path), bytes=num_bytes
                )
            self._report(active.request.id, key, progress)

    def _report(self, capture_id: str, key: str, progress: captures.CaptureProgress) -> None:
        self._updates.append(captures.CaptureUpdate(capture_id, key, progress))
        self._progress.setdefault(capture_id, {})[key] = progress
        for old in [known for known in self._progress if known not in self._active][:-_MAX_FINISHED]:
            del self._progress[old]


def _lower_priority() -> None:
    """Lower the calling thread's priority alone, as Linux has one for each."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOWEST_PRIORITY)


def _closed_by(error: UsageError) -> Missing:
    reason = MissingReason.TAKEN if isinstance(error, AddressInUseError) else MissingReason.FAILED
    return Missing("", (), reason, str(error))


def _own(keys: Iterable[str]) -> tuple[str, ...]:
    """The keys of this backend: other processes of a capture may be captured by another."""
    return tuple(sorted(key for key in keys if key.startswith(KEY_PREFIX)))


def _capture_target(target: KinetoTarget, *, is_alone: bool) -> captures.CaptureTarget:
    """The target; a process without a rank, alone in its run, is kept as rank 0."""
    place, process = target.place, target.process
    return captures.CaptureTarget(
        key=target.key,
        backend=KinetoBackend.name,
        rank=0 if place.rank is None and is_alone else place.rank,
        world_size=place.world_size,
        run=target.run,
        run_directory=str(target.run_directory),
        pid=process.peer.pid or None,
        uid=process.peer.uid,
        job=None if process.job_id is None else str(process.job_id),
        known_since=process.first_seen,
    )


def _why_unsupported(request: captures.CaptureRequest) -> str | None:
    if request.start_step is not None:
        return NO_STEP_NUMBERS
    return NO_OVERHEAD if request.max_overhead is not None else None


def _monotonic(unix_ns: int | None) -> float | None:
    """The same moment, monotonic seconds."""
    return None if unix_ns is None else time.monotonic() + (unix_ns - time.time_ns()) / 1e9


_CHECK_SECONDS = 30.0
"""Between checks of the address: its owner may end, such as an agent that is replaced or a dynolog that is stopped."""
_NUM_FREE_CHECKS = 5
"""Checks in a row before it is taken: a dynolog that is restarted or upgraded is back by then."""


class KinetoSource:
    """Metrics of the processes that poll the kineto daemon.

    Args:
        backend: answers them; tries again once the address that it could not use is free for two minutes.
    """

    def __init__(
        self,
        backend: KinetoBackend,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._backend = backend
        self._clock, self._wall_clock_ns = clock, wall_clock_ns
        self._check_at, self._num_free = clock() + _CHECK_SECONDS, 0

    def collect(self) -> Collection:
        """Number of processes, and those that cannot be answered."""
        if self._backend.why_closed is not None and self._clock() >= self._check_at:
            self._check_at = self._clock() + _CHECK_SECONDS
            self._num_free = self._num_free + 1 if self._backend.server.is_free() else 0
            if self._num_free >= _NUM_FREE_CHECKS:
                self._backend.try_again()
        if self._backend.why_closed is not None:
            return Collection((), (self._backend.why_closed,))
        now_ns, server = self._wall_clock_ns(), self._backend.server
        readings = (
            Reading(KINETO + "processes", float(len(server.processes())), (), now_ns),
            Reading(KINETO + "rejected_total", float(server.num_rejected), (), now_ns),
            Reading(KINETO + "refused_total", float(server.num_refused), (), now_ns),
        )
        findings = tuple(
            Finding("kineto_folder", server.foreign_folder_text(folder), labels_of(folder=folder), now_ns)
            for folder in server.foreign_folders()
        )
        return Collection(readings, (), findings)
