"""Orderly end of a run on SIGTERM, SIGHUP, interpreter exit, or when the with block is never left.

A process that SIGTERM would kill writes what it has and is then killed by SIGTERM, so that its exit status is
unchanged. Where another handler exists, installed before or after ours, that handler decides what the signal means. One
that calls our handler may have expected to die in it, so training that goes on all the same is ended later.
"""

from __future__ import annotations

import atexit
import ctypes
import logging
import os
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any, Generic, TypeVar

from stepscope.training.background_loop import BackgroundLoop
from stepscope.training.run.context import attempt_ending

logger = logging.getLogger(__name__)

_SIGNALS = (signal.SIGTERM, signal.SIGHUP)

_MAIN_THREAD_COMES_WITHIN_SECONDS = 2.0
"""Python runs a handler within milliseconds; a main thread that has not come by then waits in C, maybe forever."""

_ENDS_WITHIN_SECONDS = 8.0
"""Launchers kill what is left 30 s after SIGTERM (torchrun, Slurm, Kubernetes); the user's own clean-up comes first."""

_NOTED_WITHIN_SECONDS = 1.0

_PASSED_ON_SECONDS = 30.0
_PASSED_ON_STEPS = 10
"""After a signal that another handler has passed on to ours: who heeds it leaves the loop, or writes a checkpoint, in
which no step ends. A loop that goes on for so many steps and so long has heeded nothing."""

OFF = frozenset({"0", "off", "false", "no"})
"""Values of STEPSCOPE_SIGNALS with which no handler is installed."""


OwnerT = TypeVar("OwnerT")


class ShutdownHandler(Generic[OwnerT]):
    """Ends a run in order when this process ends or a signal comes, from `start` to `stop`.

    Args:
        owner: what measures; referred to weakly, so that one that is never left can go.
        note: called on another thread when a signal has come: write what is kept, and if the signal is deadly
            also that the run ended by it.
        end: called on the main thread with the attempt's ending: keep what can be kept within seconds.
        is_busy: whether a signal has interrupted one of the owner's own methods.
        step: the number of the step that runs.
    """

    def __init__(
        self,
        owner: OwnerT,
        background_loop: BackgroundLoop,
        *,
        note: Callable[[OwnerT, bool], None],
        end: Callable[[OwnerT, str], None],
        is_busy: Callable[[OwnerT], bool],
        step: Callable[[OwnerT], int],
    ) -> None:
        self._owner = weakref.ref(owner, self._abandoned)
        self._background_loop = background_loop
        self._note, self._end, self._is_busy, self._step = note, end, is_busy, step
        self._handler: Callable[[int, FrameType | None], None] = self._handle
        self._previous: dict[int, Any] = {}
        self._is_over = False
        self._has_main_come = False
        self._num_noted = 0
        self._waiting_signal = 0
        self._heeded_until: tuple[float, int] | None = None

    def start(self) -> None:
        """Watch. Signals are left alone where handling them would change what they do."""
        atexit.register(self._at_exit)
        is_main = threading.current_thread() is threading.main_thread()
        if not is_main or os.environ.get("STEPSCOPE_SIGNALS", "").lower() in OFF:
            return
        before = {int(number): signal.getsignal(number) for number in _SIGNALS}
        ours = {number: by for number, by in before.items() if by == signal.SIG_DFL or callable(by)}
        if ours and self._background_loop.listen(self._noticed):
            self._previous = ours
            _handle_forks(self)
            for number in ours:
                signal.signal(number, self._handler)

    def stop(self) -> None:
        """Leave everything as it was, but what others have put in its place since."""
        if self._is_over:
            return
        self._is_over = True
        if self._heeded_until is not None:
            self._waiting_signal = 0
        atexit.unregister(self._at_exit)
        self._restore()

    def proceed(self) -> None:
        """End, if a signal came while that could not be; called when one of our own methods is left."""
        if not self._waiting_signal:
            return
        owner = self._owner()
        if owner is not None and (self._is_busy(owner) or self._may_be_heeded(owner)):
            return
        number, self._waiting_signal = self._waiting_signal, 0
        try:
            if owner is not None:
                self._end(owner, "signal")
        finally:
            _die_by(number)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        """Runs on the main thread, between any two instructions of Python."""
        previous = self._previous.get(number)
        is_ours = signal.getsignal(number) is self._handler  # else another handler calls this one, and decides
        is_absent = self._is_over or self._owner() is None
        if callable(previous) or not is_ours:
            if not is_absent:
                _wait(lambda: self._num_noted > 0, _NOTED_WITHIN_SECONDS)
            if callable(previous):
                previous(number, frame)
            elif is_absent:
                _die_by(number)
            else:
                self._passed_on(number)
        elif is_absent:
            _die_by(number)
        elif not self._has_main_come:
            self._has_main_come = True
            _wait(lambda: self._num_noted > 0, _NOTED_WITHIN_SECONDS)
            self._waiting_signal = number
            self.proceed()

    def _passed_on(self, number: int) -> None:
        """By another handler, where without us the signal would have ended the process or gone unheeded."""
        owner = self._owner()
        if owner is not None and self._heeded_until is None:
            self._heeded_until = time.monotonic() + _PASSED_ON_SECONDS, self._step(owner) + _PASSED_ON_STEPS
            self._waiting_signal = number

    def _may_be_heeded(self, owner: OwnerT) -> bool:
        if self._heeded_until is None:
            return False
        seconds, step = self._heeded_until
        return time.monotonic() < seconds or self._step(owner) < step

    def _noticed(self, number: int) -> None:
        """Called on the listening thread of the background loop as soon as the signal arrives."""
        owner = self._owner()
        if number not in self._previous or owner is None or self._is_over:
            return
        is_deadly = signal.getsignal(number) is self._handler and not callable(self._previous[number])
        num_noted = self._num_noted
        noting = threading.Thread(
            target=self._keep_what_there_is, args=(owner, number, is_deadly), name="stepscope-last-writes", daemon=True
        )
        try:
            noting.start()
        except RuntimeError:  # no thread can be started: what is written matters less than that the process ends
            self._num_noted += 1
        if is_deadly:
            _wait(lambda: self._has_main_come, _MAIN_THREAD_COMES_WITHIN_SECONDS)
            if self._has_main_come:
                _wait(lambda: False, _ENDS_WITHIN_SECONDS)
            _wait(lambda: self._num_noted > num_noted, _MAIN_THREAD_COMES_WITHIN_SECONDS)
            _die_by(number)

    def _keep_what_there_is(self, owner: OwnerT, number: int, is_deadly: bool) -> None:
        """Runs on a thread that a disk may block forever; another one ends the process."""
        try:
            self._note(owner, is_deadly)
        except Exception:  # the signal counts, what could not be written does not
            logger.debug("writing at signal %d failed", number, exc_info=True)
        finally:
            self._num_noted += 1

    def _at_exit(self) -> None:
        owner = self._owner()
        self._background_loop.stop()
        self.stop()
        if owner is not None:
            self._end(owner, attempt_ending(getattr(sys, "last_type", None)))

    def _abandoned(self, _: object) -> None:
        """The owner is gone without having been left."""
        self.stop()
        self._background_loop.stop()

    def _restore(self) -> None:
        for number, previous in self._previous.items():
            if signal.getsignal(number) is not self._handler:
                continue
            try:
                signal.signal(number, previous)
            except ValueError:  # not the main thread
                if not callable(previous):
                    _act_by_default(number)


def _wait(is_enough: Callable[[], bool], seconds: float) -> None:
    """Without any lock: a second signal may interrupt the handler that waits here."""
    deadline = time.monotonic() + seconds
    while not is_enough() and time.monotonic() < deadline:
        time.sleep(0.005)


def _die_by(number: int) -> None:
    """End the process as the unhandled signal does; the first process of a container is not ended by it."""
    _act_by_default(number)
    os.kill(os.getpid(), number)


def _act_by_default(number: int) -> None:
    """What signal.signal(number, SIG_DFL) does, from any thread."""
    change = ctypes.CDLL(None).signal
    change.argtypes, change.restype = [ctypes.c_int, ctypes.c_void_p], ctypes.c_void_p
    change(number, None)


_active_handler: Callable[[], ShutdownHandler[Any] | None] | None = None
_masked = threading.local()


def _handle_forks(endings: ShutdownHandler[Any]) -> None:
    """A forked child, such as a worker of a loader, is killed by SIGTERM as it was, and its signals are not ours."""
    global _active_handler
    if _active_handler is None:
        os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_in_child)
    _active_handler = weakref.ref(endings)


def _before_fork() -> None:
    """No signal comes between fork and `_in_child`: C's handler would write to the parent's background loop."""
    if _active_handler is not None and _active_handler() is not None:
        _masked.before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)


def _after_fork() -> None:
    before = _masked.__dict__.pop("before", None)
    if before is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _in_child() -> None:
    endings = None if _active_handler is None else _active_handler()
    if endings is not None and not endings._is_over:
        endings._is_over = True
        atexit.unregister(endings._at_exit)
        endings._restore()
        signal.set_wakeup_fd(-1)
    _after_fork()
