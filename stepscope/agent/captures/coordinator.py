"""Coordinator of captures: takes requests, asks the backends, and keeps the captures across restarts.

Also the interface of a backend, and the backend for processes under `profile()`.
"""

from __future__ import annotations

import json
import logging
import os
import os.path
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path
from typing import Protocol

from stepscope.agent.captures.capture import Capture, CaptureRefusedError, capture_within_limits, select_capture_targets
from stepscope.agent.config.settings import CaptureLimits, node_name
from stepscope.agent.training_link.server import TrainingServer
from stepscope.core.documents.node import TrainingRank
from stepscope.core.errors import printable
from stepscope.core.metrics.readings import Missing
from stepscope.core.process import WorkerThread
from stepscope.core.protocol import captures
from stepscope.core.protocol.fields import FieldError, read_object
from stepscope.core.protocol.messages import Cancel
from stepscope.core.text.numbers import counted, form

_log = logging.getLogger(__name__)
_audit = logging.getLogger("stepscope.agent.audit")
"""Who requested what, and what became of it: at level INFO, one line each."""

_BUSY_SECONDS, _IDLE_SECONDS = 0.25, 5.0
_ANSWER_SECONDS = 5.0
_MAX_KEPT = 100


class AgentCaptureCoordinator:
    """Coordinator of the agent's captures: takes requests while it is open; a context manager.

    Args:
        backends: of a process that two of them can capture, the first does.
        pids_of_job: processes (in the agent's namespace) of the jobs of a name.
        directory: keeps captures for an agent that is started again; None keeps nothing.
        host: name of this machine by a setting; empty: see `node_name`.
    """

    def __init__(
        self,
        backends: Sequence[CaptureBackend],
        *,
        limits: CaptureLimits | None = None,
        pids_of_job: Callable[[str], Collection[int]] = lambda _: (),
        directory: Path | None = None,
        host: str = "",
        wall_clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._host = node_name(host)
        self._backends = tuple(backends)
        self._limits = limits or CaptureLimits()
        self._pids_of_job = pids_of_job
        self._store = AgentCaptureFile(directory)
        self._wall_clock_ns = wall_clock_ns
        self._captures: dict[str, Capture] = {}
        self._reports: dict[str, captures.CaptureReport] = {}
        self._worker = WorkerThread(self._look, name="stepscope-captures", log=_log)

    def __enter__(self) -> AgentCaptureCoordinator:
        _audit.setLevel(logging.INFO)
        now = time.monotonic()
        for report in self._store.read()[-_MAX_KEPT:]:
            self._captures[report.id] = Capture(report, now)
        self._publish()
        self._worker.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._worker.__exit__()

    def wake(self) -> None:
        """Look for updates at once; from any thread."""
        self._worker.wake()

    def reports(self) -> tuple[captures.CaptureReport, ...]:
        """All captures, the newest last; waits for nothing."""
        return tuple(self._reports.values())

    def report(self, capture_id: str) -> captures.CaptureReport:
        """One of them.

        Raises:
            RefusedError: there is none of this id.
        """
        try:
            return self._reports[capture_id]
        except KeyError:
            raise CaptureRefusedError(HTTPStatus.NOT_FOUND, "no capture of this id is known here") from None

    def request(self, order: captures.CaptureOrder, *, client: str) -> captures.CaptureReport:
        """Start a capture; a known order is answered with the present state of its capture.

        Args:
            client: who requests it, for the log.

        Raises:
            RefusedError: it is refused.
        """
        return self._call(lambda: self._start(order, client))

    def cancel(self, capture_id: str, *, client: str) -> captures.CaptureReport:
        """Cancel a capture.

        Raises:
            RefusedError: there is none of this id.
        """
        return self._call(lambda: self._cancel(capture_id, client))

    def _call(self, work: Callable[[], captures.CaptureReport]) -> captures.CaptureReport:
        """Run `work` on the worker thread and wait for its result."""
        future: Future[captures.CaptureReport] = Future()

        def call() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(work())
                except Exception as error:  # raised again in the thread that waits
                    future.set_exception(error)

        self._worker.post(call)
        try:
            return future.result(_ANSWER_SECONDS)
        except TimeoutError:
            future.cancel()
            raise CaptureRefusedError(HTTPStatus.SERVICE_UNAVAILABLE, "the agent is overloaded; ask again") from None

    def _start(self, order: captures.CaptureOrder, client: str) -> captures.CaptureReport:
        request, selector = order.request, order.selector
        known = self._captures.get(request.id)
        try:
            if known is not None:
                if _without_limits(known.report.order) != _without_limits(order):
                    raise CaptureRefusedError(HTTPStatus.CONFLICT, "another capture has this id")
                return known.report
            pids = self._pids_of_job(selector.job) if selector.job else ()
            closed = [why.detail for backend in self._backends if (why := backend.why_closed) is not None]
            targets = select_capture_targets(self._targets(), selector, request.ranks, job_pids=pids, closed=closed)
            now_ns = self._wall_clock_ns()
            request = capture_within_limits(request, targets, self.reports(), self._limits, now_ns)
        except CaptureRefusedError as refused:
            _log_audit(f"capture {request.id} asked by {client}: refused, {refused}")
            raise
        ranks = ",".join(str(target.rank) for target in targets)
        _log_audit(
            f"capture {request.id} asked by {client}: {counted(request.steps, 'step')} of "
            f"{selector}, {form(len(targets), 'rank')} {ranks}"
        )
        order = captures.CaptureOrder(request, selector)
        capture = Capture.new(order, targets, host=self._host, now_ns=now_ns, now=time.monotonic())
        self._captures[request.id] = capture
        self._ask(capture, {target.key for target in targets})
        self._publish()
        return capture.report

    def _cancel(self, capture_id: str, client: str) -> captures.CaptureReport:
        report = self.report(capture_id)
        if not report.state.is_final:
            _log_audit(f"capture {capture_id} cancelled by {client}")
            self._captures[capture_id].cancel()
        return self._captures[capture_id].report

    def _look(self) -> float:
        """Take in updates, ask the processes that are due, and give up those that will not answer."""
        for update in (update for backend in self._backends for update in backend.updates()):
            if (capture := self._captures.get(update.capture_id)) is not None:
                changed = capture.update(update)
                _log_changes(capture, [] if changed is None else [changed])
        waiting = [capture for capture in self._captures.values() if not capture.report.state.is_final]
        if waiting:
            here = {target.key for target in self._targets()}
            for capture in waiting:
                self._ask(capture, here)
                alive = {key: _is_alive(pid) for key, pid in capture.away(here).items() if pid is not None}
                _log_changes(capture, capture.give_up(alive, time.monotonic(), self._wall_clock_ns()))
        self._publish()
        return _IDLE_SECONDS if all(report.state.is_final for report in self.reports()) else _BUSY_SECONDS

    def _ask(self, capture: Capture, here: set[str]) -> None:
        keys = capture.to_ask(here, time.monotonic())
        if not keys:
            return
        for backend in self._backends:
            if capture.report.is_cancelled:
                backend.cancel(capture.request.id, keys)
            else:
                backend.request(capture.request, keys)

    def _targets(self) -> list[captures.CaptureTarget]:
        return [target for backend in self._backends for target in backend.targets()]

    def _publish(self) -> None:
        reports = {name: capture.report for name, capture in self._captures.items()}
        final = [name for name, report in reports.items() if report.state.is_final]
        for name in final[: max(len(reports) - _MAX_KEPT, 0)]:
            del self._captures[name], reports[name]
        if reports != self._reports:
            self._reports = reports
            self._store.write(self.reports())


def _without_limits(order: captures.CaptureOrder) -> captures.CaptureOrder:
    """The order without limits that the agent may have set."""
    return replace(order, request=replace(order.request, max_bytes=None, deadline_unix_ns=None))


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)  # works for processes of other users, too, and where /proc hides them
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _log_audit(line: str) -> None:
    _audit.info("%s", printable(line))  # names and reasons may hold anything


def _log_changes(capture: Capture, changed: Iterable[captures.RankCapture]) -> None:
    for one in changed:
        target, progress = one.target, one.progress
        trace = f" {progress.path} ({progress.bytes} bytes)" if progress.path else ""
        reason = f", {progress.reason}" if progress.reason else ""
        _log_audit(f"capture {capture.request.id}: rank {target.rank} of {target.run}: {progress.state}{trace}{reason}")


_FILE = "captures.json"
_MAX_BYTES = 16 << 20


class AgentCaptureFile:
    """File in the agent's state directory that keeps its captures; written whole or not at all.

    Args:
        directory: None keeps nothing.
    """

    def __init__(self, directory: Path | None) -> None:
        self._file = None if directory is None else directory / _FILE
        self._has_warned = False

    def read(self) -> list[captures.CaptureReport]:
        """The kept captures; none where the file cannot be used, which is logged."""
        if self._file is None:
            return []
        try:
            if self._file.exists() and not self._file.is_file():
                raise FieldError("it is not a file")  # reading a pipe would wait for ever
            if self._file.stat().st_size > _MAX_BYTES:
                raise FieldError("it is too large")
            return [read_object(captures.CaptureReport, one) for one in json.loads(self._file.read_bytes())]
        except FileNotFoundError:
            return []
        except (OSError, ValueError, TypeError, RecursionError) as error:
            _log.warning("earlier captures are lost: %s cannot be used: %s", self._file, error)
            return []

    def write(self, reports: Sequence[captures.CaptureReport]) -> None:
        if self._file is None:
            return
        beside = self._file.with_suffix(".new")
        try:
            descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with open(descriptor, "w") as file:
                json.dump([captures.report_document(one) for one in reports], file, separators=(",", ":"))
            os.replace(beside, self._file)
        except OSError as error:
            if not self._has_warned:
                self._has_warned = True
                _log.warning("a restart would lose the captures: %s cannot be written: %s", self._file, error)


class CaptureBackend(Protocol):
    """Interface of a capture backend: one way of the agent to profile processes on request.

    Attributes:
        why_closed: why it can capture no process; None while it can.
    """

    name: str

    @property
    def why_closed(self) -> Missing | None: ...

    def targets(self) -> Sequence[captures.CaptureTarget]:
        """The processes that can be captured now."""

    def request(self, request: captures.CaptureRequest, keys: Collection[str]) -> None:
        """Ask these processes for a capture; `updates` has at least one answer of each.

        A process that was asked with this id before answers its progress: it is never captured twice. Keys that are no
        targets any more are ignored.
        """

    def cancel(self, capture_id: str, keys: Collection[str]) -> None:
        """Cancel this capture in these processes; each answers its progress."""

    def updates(self) -> Sequence[captures.CaptureUpdate]:
        """The answers since the last call, the oldest first."""


class ProfileCaptureBackend:
    """Captures of processes under `profile()`: asked over their connection, they write into their run's directory."""

    name = "profile"

    def __init__(self, server: TrainingServer) -> None:
        self._server = server

    @property
    def why_closed(self) -> Missing | None:
        return self._server.why_closed

    def targets(self) -> Sequence[captures.CaptureTarget]:
        return [_target_of(rank) for rank in self._server.ranks()]

    def request(self, request: captures.CaptureRequest, keys: Collection[str]) -> None:
        self._server.send(request, keys)

    def cancel(self, capture_id: str, keys: Collection[str]) -> None:
        """Tell these processes; one that does not know the capture refuses."""
        self._server.send(Cancel(capture_id), keys)

    def updates(self) -> Sequence[captures.CaptureUpdate]:
        directories = {rank.key: rank.hello.run_directory for rank in self._server.ranks()}
        return [
            replace(update, progress=_checked(update.progress, directories.get(update.key)))
            for update in self._server.take_updates()
        ]


def _target_of(rank: TrainingRank) -> captures.CaptureTarget:
    hello, heartbeat = rank.hello, rank.heartbeat
    return captures.CaptureTarget(
        key=rank.key,
        backend=ProfileCaptureBackend.name,
        rank=hello.rank,
        world_size=hello.world_size,
        run=hello.run,
        run_directory=hello.run_directory,
        pid=rank.pid,
        uid=rank.uid,
        newest_step=heartbeat.index if heartbeat else None,
        step_ms=heartbeat.ms if heartbeat else None,
        known_since=rank.known_since,
    )


def _checked(progress: captures.CaptureProgress, run_directory: str | None) -> captures.CaptureProgress:
    """Failed, and without its path, where that leads out of the run's directory: people will type it."""
    if progress.path is None or run_directory is None:
        return progress
    if os.path.normpath(progress.path).startswith(os.path.normpath(run_directory) + os.sep):
        return progress
    reason = "its trace is outside its run's directory"
    return replace(progress, state=captures.CaptureState.FAILED, path=None, reason=reason)
