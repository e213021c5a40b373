"""Capture backend for processes started with KINETO_USE_DAEMON=1: libkineto asks the agent for captures.

These processes need no stepscope.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from pathlib import Path

from stepscope.agent.captures.backend import CaptureTarget, TargetAnswer
from stepscope.collectors.kineto_daemon.coordinator import KinetoCoordinator, KinetoRequest, Progress
from stepscope.collectors.kineto_daemon.server import AddressInUseError, KinetoServer
from stepscope.collectors.kineto_daemon.targets import KEY_PREFIX, Target
from stepscope.core.errors import UsageError
from stepscope.core.metrics.readings import Missing, MissingReason
from stepscope.core.protocol.messages import Alignment, Answer, AnswerState, CaptureRequest

_log = logging.getLogger(__name__)

NO_STEP_NUMBERS = "libkineto does not tell at which step a process is: leave the first step out"
NO_OVERHEAD = "libkineto does not stop at an overhead: leave it out, or ask for fewer steps"
_KNOWN_POLLS = 3
"""Two intervals of 5 s after the first: who is not there by then does not come."""


class KinetoBackend:
    """Captures by libkineto's own daemon protocol. A context manager: answers processes while it is open.

    Attributes:
        why_closed: why it does not although it is open; None while it does. `try_again` may change that.
    """

    name = "kineto"

    def __init__(self, folder: Path, *, socket_folder: str | None = None, is_required: bool = True) -> None:
        """
        Args:
            folder: below which runs come to lie.
            socket_folder: the processes' KINETO_IPC_SOCKET_DIR, None without.
            is_required: False goes on without where another daemon has the address.
        """
        self._desk = KinetoCoordinator(folder, socket_folder=socket_folder)
        self._is_required = is_required
        self.why_closed: Missing | None = None
        self._refusals: list[TargetAnswer] = []
        self._open = ExitStack()
        self._opening = threading.Lock()
        self._is_over = False

    def __enter__(self) -> KinetoBackend:
        """
        Raises:
            UsageError: it is required and the address cannot be had.
        """
        try:
            self._open.enter_context(self._desk)
        except UsageError as error:
            if self._is_required:
                raise
            self.why_closed = _closed_by(error)
        return self

    def __exit__(self, *_: object) -> None:
        with self._opening:
            self._is_over = True
        self._open.close()

    def try_again(self) -> None:
        """Answer processes from now on if that can be had by now; from any thread."""
        with self._opening:
            if self.why_closed is None or self._is_over:
                return
            try:
                self._open.enter_context(self._desk)
            except UsageError as error:
                self.why_closed = _closed_by(error)
                return
            self.why_closed = None
        _log.warning("processes started with KINETO_USE_DAEMON=1 are answered from now on")

    @property
    def server(self) -> KinetoServer:
        """What answers them."""
        return self._desk.server

    def targets(self) -> Sequence[CaptureTarget]:
        """The processes that ask, but launchers; ranks that have just begun to, once all of their node do."""
        targets = self._desk.targets()
        num_of_run = Counter(target.run for target in targets)
        return [
            _target_of(target, is_alone=num_of_run[target.run] == 1)
            for target in targets
            if target.process.num_polls >= _KNOWN_POLLS or num_of_run[target.run] >= (target.place.local_size or 0)
        ]

    def pids_of_job(self, name: str) -> frozenset[int]:
        """Processes of a job that is called by the id of a process: its own, its launcher's or its shell's."""
        targets = self._desk.targets()
        if not name.isascii() or not name.isdecimal() or int(name) <= 1 or any(_job(one) == name for one in targets):
            return frozenset()
        pids = {one.process.peer.pid: one.process.ancestors_in_our_namespace for one in targets}
        return frozenset(pid for pid, ancestors in pids.items() if int(name) in (pid, *ancestors))

    def request(self, capture: CaptureRequest, keys: Collection[str]) -> None:
        """Ask these processes together."""
        own = _own(keys)
        refusal = _why_refused(capture)
        if refusal is not None:
            answer = Answer(capture.id, AnswerState.REFUSED, refusal)
            self._refusals += [TargetAnswer(key, answer) for key in own]
        elif own:
            begin, until = _monotonic(capture.start_unix_ns) or 0.0, _monotonic(capture.deadline_unix_ns)
            self._desk.request(KinetoRequest(capture.id, own, capture.steps, begin, until, capture.max_bytes))

    def cancel(self, capture_id: str, keys: Collection[str]) -> None:
        """Leave it, on all its processes."""
        own = _own(keys)
        if own:
            self._desk.cancel(capture_id, own)

    def answers(self) -> Sequence[TargetAnswer]:
        """What was answered since the last call."""
        refusals, self._refusals = self._refusals, []
        return [*refusals, *(TargetAnswer(news.outcome.key, _answer(news)) for news in self._desk.news())]


def _closed_by(error: UsageError) -> Missing:
    reason = MissingReason.TAKEN if isinstance(error, AddressInUseError) else MissingReason.FAILED
    return Missing("", (), reason, str(error))


def _own(keys: Collection[str]) -> tuple[str, ...]:
    """Those of this back end: a capture's processes may be captured by several."""
    return tuple(sorted(key for key in keys if key.startswith(KEY_PREFIX)))


def _target_of(target: Target, *, is_alone: bool) -> CaptureTarget:
    """As others see it; a process without a rank, and without others in its run, is kept as rank 0."""
    place, process = target.place, target.process
    return CaptureTarget(
        target.key,
        KinetoBackend.name,
        process.peer.pid or None,
        process.peer.uid,
        0 if place.rank is None and is_alone else place.rank,
        target.run,
        str(target.run_directory),
        _job(target),
        place.world_size,
    )


def _job(target: Target) -> str | None:
    return None if target.process.job_id is None else str(target.process.job_id)


def _why_refused(capture: CaptureRequest) -> str | None:
    if capture.start_step is not None:
        return NO_STEP_NUMBERS
    return NO_OVERHEAD if capture.max_overhead is not None else None


def _answer(news: Progress) -> Answer:
    aligned_by = None
    if news.num_ranks is not None:
        aligned_by = Alignment.STEP if news.num_ranks == 1 else Alignment.MULTIPLE
    return Answer(
        news.capture_id,
        news.outcome.state,
        news.outcome.reason or None,
        steps=news.num_steps,
        aligned_by=aligned_by,
        path=None if news.path is None else str(news.path),
        bytes=news.num_bytes,
    )


def _monotonic(unix_ns: int | None) -> float | None:
    """The same moment, monotonic seconds."""
    return None if unix_ns is None else time.monotonic() + (unix_ns - time.time_ns()) / 1e9
