"""Coordinator: takes capture requests and drives each until its traces lie in a run.

Three kinds of threads: the server's answers polls and nothing else; the coordinator's looks at processes and files and
decides five times a second; two readers compress traces, at the lowest priority, because training runs beside. Callers
wait for none of them.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from stepscope.collectors.kineto_daemon.capture import Action, Capture, Offer, Outcome, ProcessView, Take
from stepscope.collectors.kineto_daemon.processes import KinetoProcess
from stepscope.collectors.kineto_daemon.protocol import TraceRequest
from stepscope.collectors.kineto_daemon.server import KinetoServer
from stepscope.collectors.kineto_daemon.targets import PendingRequests, Target, Targets, key_of, ranks_to_keep
from stepscope.collectors.kineto_daemon.trace_files import (
    CompressedTrace,
    Staging,
    compress_trace,
    make_capture_folder,
    move_into_run,
    remove_left_behind,
)
from stepscope.core.documents.run_directory import trace_path
from stepscope.core.protocol.messages import AnswerState

_log = logging.getLogger(__name__)

_BUSY_SECONDS, _IDLE_SECONDS = 0.2, 1.0
_NUM_READERS = 2
_LOWEST_PRIORITY = 19
_LINGER_SECONDS = 60.0
"""How long a capture's folders stay after its end: a process that was asked may still be writing to its own."""
_GATHERING_SECONDS = 6.0
"""After its start nobody is asked: a capture of the desk before is to have all its processes, which are yet to ask."""
_MOST_FINISHED = 64
"""Captures of which the desk still tells what became of them."""

GONE = "no such process asks any more"
UNKNOWN = "it was not under way"
BEGUN = "the capture has begun without it"
TAKEN = "another capture of this process is under way"


@dataclass(frozen=True, slots=True)
class KinetoRequest:
    """A capture that somebody asks for.

    Attributes:
        id: names it; one that is known is not taken twice.
        keys: of the targets.
        num_steps: optimizer steps.
        begin: not asked before, monotonic seconds.
        until: given up after, monotonic seconds; None for the desk's own patience.
        max_bytes: of one compressed trace.
    """

    id: str
    keys: tuple[str, ...]
    num_steps: int
    begin: float = 0.0
    until: float | None = None
    max_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """What has become of a capture on one process.

    Attributes:
        capture_id: of the request.
        outcome: how far it is.
        path: of the trace, once it is done.
        num_bytes: of it; num_steps: in it; num_ranks: that have traces of the same steps.
    """

    capture_id: str
    outcome: Outcome
    path: Path | None = None
    num_bytes: int | None = None
    num_steps: int | None = None
    num_ranks: int | None = None


@dataclass(slots=True)
class _ActiveCapture:
    id: str
    capture: Capture
    recording: CaptureFiles
    num_steps: int
    over_since: float | None = None


class KinetoCoordinator:
    """Captures processes that were started with KINETO_USE_DAEMON=1. A context manager: works while it is open.

    Attributes:
        server: what answers the processes; listens while the desk is open.
    """

    def __init__(self, folder: Path, *, socket_folder: str | None = None) -> None:
        """
        Args:
            folder: below which runs come to lie.
            socket_folder: the processes' KINETO_IPC_SOCKET_DIR, None without.
        """
        self._orders = PendingRequests()
        self.server = KinetoServer(self._orders.take, folder=socket_folder)
        self._look_up = Targets(folder)
        self._targets: Mapping[str, Target] = {}
        self._inbox: deque[Callable[[], None]] = deque()
        self._news: deque[Progress] = deque()
        self._jobs: dict[str, _ActiveCapture] = {}
        self._early: dict[str, KinetoRequest] = {}
        self._ready_at = 0.0
        self._told: dict[str, dict[str, Progress]] = {}
        self._ended, self._wake = threading.Event(), threading.Event()
        self._readers = ThreadPoolExecutor(_NUM_READERS, "stepscope-kineto-reader", initializer=_lower_priority)
        self._thread = threading.Thread(target=self._run, name="stepscope-kineto-desk", daemon=True)

    def __enter__(self) -> KinetoCoordinator:
        """
        Raises:
            UsageError: the daemon's address cannot be had.
        """
        self.server.__enter__()
        self._ready_at = time.monotonic() + _GATHERING_SECONDS
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Leave everything: a process that traces does so to its end, and training goes on."""
        self.server.close()
        self._ended.set()
        self._wake.set()
        self._thread.join()
        self._readers.shutdown(cancel_futures=True)
        for job in self._jobs.values():
            job.recording.finished()
            job.recording.close()

    def targets(self) -> Sequence[Target]:
        """The processes that could be captured, as of a moment ago."""
        return list(self._targets.values())

    def request(self, wish: KinetoRequest) -> None:
        """Capture processes together; `news` tells of each, at least once."""
        self._inbox.append(lambda: self._begin(wish))
        self._wake.set()

    def cancel(self, capture_id: str, keys: Collection[str]) -> None:
        """Leave a capture, on all its processes; `news` tells of these at least. No trace of it is kept."""
        self._inbox.append(lambda: self._cancel(capture_id, keys))
        self._wake.set()

    def news(self) -> list[Progress]:
        """What was not told yet, the oldest first."""
        return [self._news.popleft() for _ in range(len(self._news))]

    def _run(self) -> None:
        remove_left_behind(time.time_ns())
        while not self._ended.is_set():
            self._wake.wait(_BUSY_SECONDS if self._jobs else _IDLE_SECONDS)
            self._wake.clear()
            processes = {key_of(process): process for process in self.server.processes()}
            try:
                self._look(processes)
            except Exception:  # the thread's edge: the next look goes on
                _log.exception("captures of processes with KINETO_USE_DAEMON=1 failed; they go on")
                self._ended.wait(_IDLE_SECONDS)

    def _see_to_all(self, processes: Mapping[str, KinetoProcess]) -> None:
        """Each; one that cannot be seen to is given up, and holds no other up."""
        for job in list(self._jobs.values()):
            try:
                self._see_to(job, processes)
            except Exception as error:  # this capture's own fault
                _log.exception("capture %s is given up; the others go on", job.id)
                self._give_up(job, error_line(error))

    def _give_up(self, job: _ActiveCapture, why: str) -> None:
        del self._jobs[job.id]
        told = self._told.get(job.id, {})
        for key in job.recording.targets:
            self._orders.withdraw(key)
            if key not in told or not told[key].outcome.state.is_final:
                self._say(Progress(job.id, Outcome(key, AnswerState.FAILED, why)))
        job.recording.close()

    def _look(self, processes: Mapping[str, KinetoProcess]) -> None:
        self._targets = self._look_up.of(processes.values(), time.monotonic())
        if self._early and time.monotonic() >= self._ready_at:
            early, self._early = self._early, {}
            self._inbox.extend(partial(self._begin, wish) for wish in early.values())
        while self._inbox:
            self._inbox.popleft()()
        self._see_to_all(processes)

    def _begin(self, wish: KinetoRequest) -> None:
        if time.monotonic() < self._ready_at:
            known = self._early.get(wish.id, wish)
            self._early[wish.id] = replace(wish, keys=tuple(dict.fromkeys((*known.keys, *wish.keys))))
            return
        if wish.id in self._told:
            for key in wish.keys:
                self._say(self._told[wish.id].get(key) or Progress(wish.id, Outcome(key, AnswerState.REFUSED, BEGUN)))
            return
        taken = {key for job in self._jobs.values() if not job.capture.is_over for key in job.recording.targets}
        targets = {key: self._targets[key] for key in wish.keys if key in self._targets and key not in taken}
        for key in wish.keys:
            if key not in targets:
                refused = Outcome(key, AnswerState.REFUSED, TAKEN if key in taken else GONE)
                self._say(Progress(wish.id, refused))
        if targets:
            begin = max(wish.begin, time.monotonic())
            capture = Capture(list(targets), num_steps=wish.num_steps, begin=begin, until=wish.until)
            recording = CaptureFiles(
                targets,
                num_steps=wish.num_steps,
                max_bytes=wish.max_bytes,
                orders=self._orders,
                readers=self._readers,
            )
            self._jobs[wish.id] = _ActiveCapture(wish.id, capture, recording, wish.num_steps)
            self._tell(self._jobs[wish.id])

    def _cancel(self, capture_id: str, keys: Collection[str]) -> None:
        job = self._jobs.get(capture_id)
        self._early.pop(capture_id, None)
        if job is not None:
            self._act(job, job.capture.cancel())
            self._tell(job)
        told = self._told.get(capture_id, {})
        for key in keys:
            self._say(told.get(key) or Progress(capture_id, Outcome(key, AnswerState.CANCELLED, UNKNOWN)))

    def _see_to(self, job: _ActiveCapture, processes: Mapping[str, KinetoProcess]) -> None:
        now = time.monotonic()
        for key, read in job.recording.finished():
            if isinstance(read, str):
                job.capture.not_taken(key, read)
            else:
                job.capture.taken(key, read.summary)
        if not job.capture.is_over:
            sights = {key: job.recording.sight(key, processes.get(key)) for key in job.recording.targets}
            self._act(job, job.capture.step(sights, now))
        self._tell(job)
        if job.capture.is_over and not job.recording.is_reading:
            job.over_since = job.over_since or now
            if now > job.over_since + _LINGER_SECONDS:
                job.recording.close()
                del self._jobs[job.id]

    def _act(self, job: _ActiveCapture, actions: Collection[Action]) -> None:
        for action in actions:
            if isinstance(action, Offer):
                try:
                    job.recording.offer(action)
                except (OSError, ValueError) as error:
                    self._orders.withdraw(action.key)
                    job.capture.not_taken(action.key, error_line(error))
            elif isinstance(action, Take):
                job.recording.start_reading(action)
            else:
                self._orders.withdraw(action.key)

    def _tell(self, job: _ActiveCapture) -> None:
        outcomes = job.capture.news()
        done = [outcome.key for outcome in outcomes if outcome.state is AnswerState.DONE]
        kept = job.recording.keep(done) if done else {}
        for outcome in outcomes:
            trace = kept.get(outcome.key)
            if isinstance(trace, str):
                outcome = Outcome(outcome.key, AnswerState.FAILED, trace)
            if isinstance(trace, tuple):
                self._say(Progress(job.id, outcome, *trace, job.num_steps, len(done)))
            else:
                self._say(Progress(job.id, outcome))

    def _say(self, news: Progress) -> None:
        self._news.append(news)
        self._told.setdefault(news.capture_id, {})[news.outcome.key] = news
        for old in [known for known in self._told if known not in self._jobs][:-_MOST_FINISHED]:
            del self._told[old]


def _lower_priority() -> None:
    """Lower the calling thread's priority alone, as Linux has one for each."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOWEST_PRIORITY)


class CaptureFiles:
    """The files of one capture. For one thread, beside the readers' that it gives work to.

    Attributes:
        targets: the processes by key.
    """

    def __init__(
        self,
        targets: Mapping[str, Target],
        *,
        num_steps: int,
        max_bytes: int | None,
        orders: PendingRequests,
        readers: ThreadPoolExecutor,
    ) -> None:
        self.targets = targets
        self._num_steps = num_steps
        self._max_bytes = max_bytes
        self._orders = orders
        self._readers = readers
        self._staging: dict[str, Staging] = {}
        self._configs: dict[str, TraceRequest] = {}
        self._reading: dict[str, Future[CompressedTrace]] = {}
        self._partials: dict[str, CompressedTrace] = {}
        self._folders: dict[Path, int] = {}
        self._folders_lock = threading.Lock()

    @property
    def is_reading(self) -> bool:
        """Whether a reader is still at work."""
        return bool(self._reading)

    def sight(self, key: str, process: KinetoProcess | None) -> ProcessView:
        """What is seen of a process; `process` was looked up before."""
        config = self._configs.get(key)
        written = config is not None and self._staging[key].has(config.written_path(self.targets[key].process.pid))
        return ProcessView(process, self._orders.delivered(key), written)

    def offer(self, offer: Offer) -> None:
        """Lay out a request.

        Raises:
            OSError: there is no folder that the process could write to.
            ValueError: libkineto could not be told of it.
        """
        target = self.targets[offer.key]
        if offer.key not in self._staging:
            self._staging[offer.key] = Staging(target.process, target.place.trace_folder)
        path = self._staging[offer.key].path / f"attempt{offer.attempt}.json"
        config = TraceRequest(path, self._num_steps, offer.start_multiple)
        self._configs[offer.key] = config
        witness = self._staging[offer.key].witness(config.written_path(target.process.pid))
        self._orders.lay_out(offer.key, config.text(), unless=witness)

    def start_reading(self, take: Take) -> None:
        """Have a trace read and compressed."""
        self._reading[take.key] = self._readers.submit(self._read, take)

    def finished(self) -> list[tuple[str, CompressedTrace | str]]:
        """The keys whose traces were read since the last call, with the compressed trace or why there is none."""
        results: list[tuple[str, CompressedTrace | str]] = []
        for key, reading in list(self._reading.items()):
            if not reading.done():
                continue
            del self._reading[key]
            self._drop(key)  # of an earlier attempt
            try:
                self._partials[key] = reading.result()
            except Exception as error:  # a trace may hold anything: what nobody foresaw is this capture's fault alone
                results.append((key, error_line(error)))
            else:
                results.append((key, self._partials[key]))
        return results

    def keep(self, keys: Collection[str]) -> dict[str, tuple[Path, int] | str]:
        """Give traces their names; path and bytes of each, or why it could not be kept."""
        in_trace = {key: self._partials[key].summary.rank for key in keys}
        ranks = ranks_to_keep([self.targets[key] for key in keys], in_trace)
        kept: dict[str, tuple[Path, int] | str] = {}
        for key, rank in ranks.items():
            run, partial = self.targets[key].run_directory, self._partials[key]
            try:
                kept[key] = (move_into_run(partial, run, self._folders[run], rank), partial.num_bytes)
                del self._partials[key]
            except OSError as error:
                kept[key] = error_line(error)
        return kept

    def close(self) -> None:
        """Remove what is left. A process that is to write there afterwards logs an error and goes on."""
        for key in list(self._partials):
            self._drop(key)
        for staging in self._staging.values():
            staging.remove()
        for run, number in self._folders.items():
            with suppress(OSError):  # it holds traces
                (run / trace_path(number, 0)).parent.rmdir()

    def _read(self, take: Take) -> CompressedTrace:
        target = self.targets[take.key]
        path = self._configs[take.key].written_path(target.process.pid)
        source = self._staging[take.key].open(path)
        try:
            folder = self._capture_folder(target.run_directory)
            partial = folder / f".{take.key}.{take.attempt}.partial"
            return compress_trace(source, partial, target.process.peer, max_bytes=self._max_bytes)
        finally:
            os.close(source)

    def _capture_folder(self, run: Path) -> Path:
        with self._folders_lock:
            if run not in self._folders:
                self._folders[run] = make_capture_folder(run)
            return (run / trace_path(self._folders[run], 0)).parent

    def _drop(self, key: str) -> None:
        partial = self._partials.pop(key, None)
        if partial is not None:
            partial.path.unlink(missing_ok=True)


def error_line(error: Exception) -> str:
    """One line for people."""
    text = getattr(error, "strerror", None) or str(error)
    where = getattr(error, "filename", None)
    return f"{where}: {text}" if where else text
