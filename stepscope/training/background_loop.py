"""Background loop: runs periodic tasks once a second and reports signals, also while the training thread is blocked."""

from __future__ import annotations

import logging
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Protocol, runtime_checkable

logger = logging.getLogger(__name__)

_EVERY_SECONDS = 1.0
_STOPS_WITHIN_SECONDS = 2.0


@runtime_checkable
class PeriodicTask(Protocol):
    """A task of the training process's background loop: runs about once a second, not on the training thread."""

    def run_task(self) -> None:
        """Look after what there is; over in milliseconds."""


class BackgroundLoop:
    """Background threads of a training process: run tasks once a second, and learn of signals at once.

    Python runs signal handlers on the main thread only, and not while that waits in C, as for a collective. But C's own
    part of the handler writes the signal's number to a file descriptor at once; that is what is read here, on a thread
    of its own: a task may wait for a disk that does not respond.

    Args:
        tasks: one that fails is left out from then on, with a warning.
    """

    def __init__(self, tasks: Iterable[PeriodicTask]) -> None:
        self._tasks = list(tasks)
        self._is_stopping = threading.Event()
        self._last: Callable[[], None] | None = None
        self._on_signal: Callable[[int], None] | None = None
        self._wake_up = self._read_end = self._write_end = -1
        self._threads = [threading.Thread(target=self._run_tasks, name="stepscope-background", daemon=True)]

    def start(self) -> None:
        """Begin.

        Raises:
            RuntimeError: no thread can be started.
        """
        self._threads[0].start()

    def listen(self, on_signal: Callable[[int], None]) -> bool:
        """Have `on_signal` called on another thread with the number of each signal that Python handles.

        To be called on the main thread; False where someone else listens already, as an event loop does.

        Raises:
            RuntimeError: no thread can be started.
        """
        other = signal.set_wakeup_fd(-1)
        if other != -1:
            signal.set_wakeup_fd(other)
            return False
        self._read_end, self._write_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._on_signal, self._wake_up = on_signal, self._write_end
        self._threads.append(threading.Thread(target=self._listen, name="stepscope-signals", daemon=True))
        self._threads[1].start()
        signal.set_wakeup_fd(self._write_end, warn_on_full_buffer=False)
        return True

    def stop(self, last: Callable[[], None] | None = None) -> None:
        """End the threads, after the signals that have come; they are waited for a while, unless this is one.

        Args:
            last: called after the last task; must not raise.
        """
        was_stopping = self._is_stopping.is_set()
        self._last = last if last is not None else self._last
        self._is_stopping.set()
        if self._write_end != -1:
            with suppress(OSError):
                os.write(self._write_end, b"\0")
        deadline = time.monotonic() + (0.0 if was_stopping else _STOPS_WITHIN_SECONDS)
        for thread in self._threads:
            if thread.ident not in {None, threading.get_ident()}:
                thread.join(max(deadline - time.monotonic(), 0.0))
        if not self._threads[0].is_alive():
            self._do_last()
        if self._stop_listening() and self._read_end != -1 and not self._threads[-1].is_alive():
            os.close(self._read_end)
            os.close(self._write_end)
            self._read_end = self._write_end = -1

    def _stop_listening(self) -> bool:
        """Whether no thread can still write to the descriptor; it stays open while one may."""
        if self._wake_up == -1:
            return True
        try:
            current = signal.set_wakeup_fd(-1)
        except ValueError:  # not the main thread
            return False
        if current != self._wake_up:
            signal.set_wakeup_fd(current)
            return False
        self._wake_up = -1
        return True

    def _listen(self) -> None:
        poll = select.poll()
        poll.register(self._read_end, select.POLLIN)
        while not self._is_stopping.is_set():
            poll.poll()
            self._pass_on_signals()

    def _run_tasks(self) -> None:
        is_over = False
        while not is_over:
            is_over = self._is_stopping.wait(_EVERY_SECONDS)
            self._tend()
        self._do_last()

    def _do_last(self) -> None:
        last, self._last = self._last, None
        if last is not None:
            last()

    def _tend(self) -> None:
        for each in tuple(self._tasks):
            try:
                each.run_task()
            except Exception as error:  # training must never be hurt
                self._tasks.remove(each)
                name = type(each).__name__
                logger.warning("stepscope no longer tends its %s: %s: %s", name, type(error).__name__, error)

    def _pass_on_signals(self) -> None:
        try:
            numbers = os.read(self._read_end, 4096)
        except OSError:
            return
        for number in numbers:
            if number and self._on_signal is not None:
                self._on_signal(number)
