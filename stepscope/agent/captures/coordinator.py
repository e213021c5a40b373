"""Coordinator of captures: one thread takes orders, asks the backends, and keeps the captures across restarts."""

from __future__ import annotations

import json
import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path

from stepscope.agent.captures.backend import CaptureBackend, CaptureTarget
from stepscope.agent.captures.capture import Capture, CaptureLimits, RefusedError, chosen_targets, within_limits
from stepscope.agent.node_name import node_name
from stepscope.core.errors import printable
from stepscope.core.protocol.captures import CaptureOrder, CaptureReport, RankCapture, report_document, report_of
from stepscope.core.protocol.fields import FieldError
from stepscope.core.text.numbers import counted, form

_log = logging.getLogger(__name__)
audit = logging.getLogger("stepscope.agent.audit")
"""Who asked for what, and what became of it: at level INFO, one line each."""

_BUSY_SECONDS, _IDLE_SECONDS = 0.25, 5.0
_ANSWER_SECONDS = 5.0
_MOST_KEPT = 100


class CaptureCoordinator:
    """Takes orders while it is open; a context manager.

    Args:
        backends: of a process that two of them can capture, the first does.
        pids_of_job: processes (in the agent's namespace) of the jobs that are called so.
        directory: where captures are kept for an agent that is started again; None: nowhere.
        host: how this machine is called by a setting; empty: see `node_name`.
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
        self._kept = CaptureStore(directory)
        self._wall_clock_ns = wall_clock_ns
        self._captures: dict[str, Capture] = {}
        self._reports: dict[str, CaptureReport] = {}
        self._work: queue.SimpleQueue[tuple[Callable[[], CaptureReport], Future[CaptureReport]] | None]
        self._work = queue.SimpleQueue()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="stepscope-captures", daemon=True)

    def __enter__(self) -> CaptureCoordinator:
        now = time.monotonic()
        for report in self._kept.read()[-_MOST_KEPT:]:
            self._captures[report.order.id] = Capture(report, now)
        self._publish()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing = True
        self.wake()
        self._thread.join()

    def wake(self) -> None:
        """Look at once; from any thread."""
        self._work.put(None)

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

    def order(self, order: CaptureOrder, *, by: str) -> CaptureReport:
        """Have it captured; the same order again is answered with what has become of it.

        Args:
            by: who asks, for the log.

        Raises:
            RefusedError: it is not.
        """
        return self._done(lambda: self._take(order, by))

    def cancel(self, capture_id: str, *, by: str) -> CaptureReport:
        """Leave a capture.

        Raises:
            RefusedError: there is none of this id.
        """
        return self._done(lambda: self._leave(capture_id, by))

    def _done(self, work: Callable[[], CaptureReport]) -> CaptureReport:
        future: Future[CaptureReport] = Future()
        self._work.put((work, future))
        try:
            return future.result(_ANSWER_SECONDS)
        except TimeoutError:
            future.cancel()
            raise RefusedError(HTTPStatus.SERVICE_UNAVAILABLE, "the agent has much to do; ask again") from None

    def _run(self) -> None:
        while not self._closing:
            is_idle = all(report.state.is_final for report in self._reports.values())
            try:
                item = self._work.get(timeout=_IDLE_SECONDS if is_idle else _BUSY_SECONDS)
            except queue.Empty:
                item = None
            try:
                if item is not None:
                    self._answer(*item)
                self._look()
            except Exception:  # the thread's edge: orders are taken on
                _log.exception("captures failed; they go on")
                time.sleep(_BUSY_SECONDS)

    def _answer(self, work: Callable[[], CaptureReport], future: Future[CaptureReport]) -> None:
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(work())
            except Exception as error:  # is raised where it was asked
                future.set_exception(error)

    def _take(self, order: CaptureOrder, by: str) -> CaptureReport:
        known = self._captures.get(order.id)
        try:
            if known is not None:
                if _asked_for(known.order) != _asked_for(order):
                    raise RefusedError(HTTPStatus.CONFLICT, "another capture has this id")
                return known.report
            pids = self._pids_of_job(order.job) if order.job else ()
            closed = [why.detail for backend in self._backends if (why := backend.why_closed) is not None]
            targets = chosen_targets(self._targets(), order, job_pids=pids, closed=closed)
            now_ns = self._wall_clock_ns()
            order = within_limits(order, targets, self.reports(), self._limits, now_ns)
        except RefusedError as refused:
            _audit(f"capture {order.id} asked by {by}: refused, {refused}")
            raise
        what = f"run {order.run}" if order.job is None else f"job {order.job}"
        ranks = ",".join(str(target.rank) for target in targets)
        _audit(
            f"capture {order.id} asked by {by}: {counted(order.steps, 'step')} of "
            f"{what}, {form(len(targets), 'rank')} {ranks}"
        )
        capture = Capture.new(order, targets, host=self._host, now_ns=now_ns, now=time.monotonic())
        self._captures[order.id] = capture
        self._ask(capture, {target.key for target in targets})
        self._publish()
        return capture.report

    def _leave(self, capture_id: str, by: str) -> CaptureReport:
        report = self.report(capture_id)
        if not report.state.is_final:
            _audit(f"capture {capture_id} cancelled by {by}")
            self._captures[capture_id].cancel()
        return self._captures[capture_id].report

    def _look(self) -> None:
        """Hear what was answered, ask who is to be asked, give up who is to be given up."""
        news: list[tuple[str, RankCapture]] = []
        for backend in self._backends:
            for said in backend.answers():
                capture = self._captures.get(said.answer.id)
                told = None if capture is None else capture.answered(said.key, said.answer)
                if told is not None:
                    news.append((said.answer.id, told))
        waiting = [capture for capture in self._captures.values() if not capture.report.state.is_final]
        if waiting:
            here = {target.key for target in self._targets()}
            for capture in waiting:
                self._ask(capture, here)
                alive = {key: _runs(pid) for key, pid in capture.away(here).items() if pid is not None}
                given_up = capture.given_up(alive, time.monotonic(), self._wall_clock_ns())
                news += [(capture.order.id, one) for one in given_up]
        for capture_id, one in news:
            _audit(f"capture {capture_id}: rank {one.rank} of {one.run}: {_line_of(one)}")
        self._publish()

    def _ask(self, capture: Capture, here: set[str]) -> None:
        keys = capture.to_ask(here, time.monotonic())
        if not keys:
            return
        for backend in self._backends:
            if capture.report.is_cancelled:
                backend.cancel(capture.order.id, keys)
            else:
                backend.request(capture.request, keys)

    def _targets(self) -> list[CaptureTarget]:
        return [target for backend in self._backends for target in backend.targets()]

    def _publish(self) -> None:
        """Show what has changed, and keep it."""
        reports = {name: capture.report for name, capture in self._captures.items()}
        final = [name for name, report in reports.items() if report.state.is_final]
        for name in final[: max(len(reports) - _MOST_KEPT, 0)]:
            del self._captures[name], reports[name]
        if reports != self._reports:
            self._reports = reports
            self._kept.write(self.reports())


def _asked_for(order: CaptureOrder) -> CaptureOrder:
    """The order without limits, which the agent may have set."""
    return replace(order, max_bytes=None, deadline_unix_ns=None)


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)  # also tells of processes of others, and where /proc hides them
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _audit(line: str) -> None:
    """One line in the log: what others have named may hold anything."""
    audit.info("%s", printable(line))


def _line_of(one: RankCapture) -> str:
    where = f" {one.path} ({one.bytes} bytes)" if one.path else ""
    return f"{one.state}{where}" + (f", {one.reason}" if one.reason else "")


_FILE = "captures.json"
_MOST_BYTES = 16 << 20


class CaptureStore:
    """The file; whole or not at all.

    Args:
        directory: None keeps nothing.
    """

    def __init__(self, directory: Path | None) -> None:
        self._file = None if directory is None else directory / _FILE
        self._has_warned = False

    def read(self) -> list[CaptureReport]:
        """What was kept; nothing where there is nothing that can be used, which is logged."""
        if self._file is None:
            return []
        try:
            if self._file.stat().st_size > _MOST_BYTES:
                raise FieldError("it is too large")
            return [report_of(one) for one in json.loads(self._file.read_bytes())]
        except FileNotFoundError:
            return []
        except (OSError, ValueError, TypeError, RecursionError) as error:
            _log.warning("captures of before are forgotten: %s: %s", self._file, error)
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
                _log.warning("captures would be forgotten by a restart: %s: %s", self._file, error)
