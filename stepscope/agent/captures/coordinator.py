"""Coordinator of captures: takes requests, asks the backends, and keeps the captures across restarts."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path

from stepscope.agent.captures.backends import CaptureBackend
from stepscope.agent.captures.capture import Capture, RefusedError, select_targets, within_limits
from stepscope.agent.config.settings import CaptureLimits, node_name
from stepscope.core.errors import printable
from stepscope.core.process import WorkerThread
from stepscope.core.protocol.captures import (
    CaptureOrder,
    CaptureReport,
    CaptureTarget,
    RankCapture,
    report_document,
)
from stepscope.core.protocol.fields import FieldError, read_object
from stepscope.core.text.numbers import counted, form

_log = logging.getLogger(__name__)
_audit = logging.getLogger("stepscope.agent.audit")
"""Who requested what, and what became of it: at level INFO, one line each."""

_BUSY_SECONDS, _IDLE_SECONDS = 0.25, 5.0
_ANSWER_SECONDS = 5.0
_MAX_KEPT = 100


class CaptureCoordinator:
    """Takes requests while it is open; a context manager.

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
        self._store = CaptureStore(directory)
        self._wall_clock_ns = wall_clock_ns
        self._captures: dict[str, Capture] = {}
        self._reports: dict[str, CaptureReport] = {}
        self._worker = WorkerThread(self._look, name="stepscope-captures", log=_log)

    def __enter__(self) -> CaptureCoordinator:
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

    def reports(self) -> tuple[CaptureReport, ...]:
        """All captures, the newest last; waits for nothing."""
        return tuple(self._reports.values())

    def report(self, capture_id: str) -> CaptureReport:
        """One of them.

        Raises:
            RefusedError: there is none of this id.
        """
        try:
            return self._reports[capture_id]
        except KeyError:
            raise RefusedError(HTTPStatus.NOT_FOUND, "no capture of this id is known here") from None

    def request(self, order: CaptureOrder, *, client: str) -> CaptureReport:
        """Start a capture; a known order is answered with the present state of its capture.

        Args:
            client: who requests it, for the log.

        Raises:
            RefusedError: it is refused.
        """
        return self._call(lambda: self._start(order, client))

    def cancel(self, capture_id: str, *, client: str) -> CaptureReport:
        """Cancel a capture.

        Raises:
            RefusedError: there is none of this id.
        """
        return self._call(lambda: self._cancel(capture_id, client))

    def _call(self, work: Callable[[], CaptureReport]) -> CaptureReport:
        """Run `work` on the worker thread and wait for its result."""
        future: Future[CaptureReport] = Future()

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
            raise RefusedError(HTTPStatus.SERVICE_UNAVAILABLE, "the agent is overloaded; ask again") from None

    def _start(self, order: CaptureOrder, client: str) -> CaptureReport:
        request, selector = order.request, order.selector
        known = self._captures.get(request.id)
        try:
            if known is not None:
                if _without_limits(known.report.order) != _without_limits(order):
                    raise RefusedError(HTTPStatus.CONFLICT, "another capture has this id")
                return known.report
            pids = self._pids_of_job(selector.job) if selector.job else ()
            closed = [why.detail for backend in self._backends if (why := backend.why_closed) is not None]
            targets = select_targets(self._targets(), selector, request.ranks, job_pids=pids, closed=closed)
            now_ns = self._wall_clock_ns()
            request = within_limits(request, targets, self.reports(), self._limits, now_ns)
        except RefusedError as refused:
            _log_audit(f"capture {request.id} asked by {client}: refused, {refused}")
            raise
        ranks = ",".join(str(target.rank) for target in targets)
        _log_audit(
            f"capture {request.id} asked by {client}: {counted(request.steps, 'step')} of "
            f"{selector}, {form(len(targets), 'rank')} {ranks}"
        )
        order = CaptureOrder(request, selector)
        capture = Capture.new(order, targets, host=self._host, now_ns=now_ns, now=time.monotonic())
        self._captures[request.id] = capture
        self._ask(capture, {target.key for target in targets})
        self._publish()
        return capture.report

    def _cancel(self, capture_id: str, client: str) -> CaptureReport:
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

    def _targets(self) -> list[CaptureTarget]:
        return [target for backend in self._backends for target in backend.targets()]

    def _publish(self) -> None:
        reports = {name: capture.report for name, capture in self._captures.items()}
        final = [name for name, report in reports.items() if report.state.is_final]
        for name in final[: max(len(reports) - _MAX_KEPT, 0)]:
            del self._captures[name], reports[name]
        if reports != self._reports:
            self._reports = reports
            self._store.write(self.reports())


def _without_limits(order: CaptureOrder) -> CaptureOrder:
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


def _log_changes(capture: Capture, changed: Iterable[RankCapture]) -> None:
    for one in changed:
        target, progress = one.target, one.progress
        trace = f" {progress.path} ({progress.bytes} bytes)" if progress.path else ""
        reason = f", {progress.reason}" if progress.reason else ""
        _log_audit(f"capture {capture.request.id}: rank {target.rank} of {target.run}: {progress.state}{trace}{reason}")


_FILE = "captures.json"
_MAX_BYTES = 16 << 20


class CaptureStore:
    """The file that keeps the captures; written whole or not at all.

    Args:
        directory: None keeps nothing.
    """

    def __init__(self, directory: Path | None) -> None:
        self._file = None if directory is None else directory / _FILE
        self._has_warned = False

    def read(self) -> list[CaptureReport]:
        """The kept captures; none where the file cannot be used, which is logged."""
        if self._file is None:
            return []
        try:
            if self._file.stat().st_size > _MAX_BYTES:
                raise FieldError("it is too large")
            return [read_object(CaptureReport, one) for one in json.loads(self._file.read_bytes())]
        except FileNotFoundError:
            return []
        except (OSError, ValueError, TypeError, RecursionError) as error:
            _log.warning("earlier captures are lost: %s cannot be used: %s", self._file, error)
            return []

    def write(self, reports: Sequence[CaptureReport]) -> None:
        """Keep these alone."""
        if self._file is None:
            return
        beside = self._file.with_suffix(".new")
        try:
            descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with open(descriptor, "w") as file:
                json.dump([report_document(one) for one in reports], file, separators=(",", ":"))
            os.replace(beside, self._file)
        except OSError as error:
            if not self._has_warned:
                self._has_warned = True
                _log.warning("a restart would lose the captures: %s cannot be written: %s", self._file, error)
