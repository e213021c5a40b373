"""The agent as a process: a log that never blocks, and an end that waits for nothing for ever."""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from stepscope.core.text.numbers import counted

_STDERR = 2
_MAX_WAITING_BYTES = 256 << 10
_MAX_LINE_BYTES = 16 << 10
_READ_BYTES = 1 << 16
_FLUSH_SECONDS = 1.0
"""For what still waits when the agent ends."""
_RETRY_SECONDS = 1.0


class LogQueue:
    """Queue in front of standard error. A context manager: while it is open, nothing that writes there ever waits.

    A pipe that nobody reads, or a log on a disk that hangs, would otherwise stop every thread that logs, and each child
    process that inherits it. Lines wait for a thread of their own; those that find the queue full are dropped and
    counted, and the count is written once there is room again.
    """

    def __init__(self) -> None:
        self._lines: deque[bytes] = deque()
        self._num_bytes = 0
        self._num_dropped = 0
        self._num_reported = 0
        self._changed = threading.Condition()
        self._is_ending = False
        self._threads: list[threading.Thread] = []

    @property
    def num_dropped(self) -> int:
        """Lines that were not written."""
        return self._num_dropped

    def __enter__(self) -> LogQueue:
        _flush_stderr()
        try:
            self._target = os.dup(_STDERR)
        except OSError:  # it is closed
            self._target = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        self._source, writer = os.pipe()
        os.dup2(writer, _STDERR)
        os.close(writer)
        self._wake = os.eventfd(0, os.EFD_CLOEXEC)
        for work in (self._take, self._write):
            thread = threading.Thread(target=work, name=f"stepscope-log{work.__name__}", daemon=True)
            thread.start()
            self._threads.append(thread)
        return self

    def __exit__(self, *_: object) -> None:
        """Write what waits, for a second at most, and put standard error back."""
        _flush_stderr()
        os.dup2(self._target, _STDERR)
        os.eventfd_write(self._wake, 1)
        taking, writing = self._threads
        taking.join()
        os.close(self._source)
        os.close(self._wake)
        with self._changed:
            self._is_ending = True
            self._changed.notify()
        writing.join(_FLUSH_SECONDS)
        if not writing.is_alive():  # else it still uses it: both end with the process
            os.close(self._target)

    def _take(self) -> None:
        """Move lines from the pipe into the queue. A child that is left behind may keep the pipe open."""
        partial = b""
        waited_for = select.poll()
        waited_for.register(self._source, select.POLLIN)
        waited_for.register(self._wake, select.POLLIN)
        while self._source in (ready := dict(waited_for.poll())):
            block = os.read(self._source, _READ_BYTES)
            *lines, partial = (partial + block).split(b"\n")
            if len(partial) > _MAX_LINE_BYTES:
                lines, partial = [*lines, partial], b""
            self._put(lines)
            if not block or (self._wake in ready and len(block) < _READ_BYTES):
                break
        self._put([partial] if partial else [])

    def _put(self, lines: list[bytes]) -> None:
        with self._changed:
            for line in lines:
                if self._num_bytes + len(line) >= _MAX_WAITING_BYTES:
                    self._num_dropped += 1
                    continue
                self._lines.append(line)
                self._num_bytes += len(line) + 1
            self._changed.notify()

    def _write(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._lines or self._num_dropped > self._num_reported or self._is_ending)
                if self._lines:
                    line = self._lines.popleft()
                    self._num_bytes -= len(line) + 1
                elif self._num_dropped > self._num_reported:
                    line = self._note_of_dropped()
                else:
                    return
            if not _written(self._target, line + b"\n"):
                with self._changed:
                    self._num_dropped += 1
                    self._num_reported += 1  # a log that takes nothing takes no count either

    def _note_of_dropped(self) -> bytes:
        number, self._num_reported = self._num_dropped - self._num_reported, self._num_dropped
        return f"stepscope agent: {counted(number, 'line')} dropped here: the log took no more".encode()


def _written(descriptor: int, data: bytes) -> bool:
    """Whether all of it was written; False where the log takes nothing: a full disk, a pipe whose reader has ended."""
    while data:
        try:
            data = data[os.write(descriptor, data) :]
        except BlockingIOError:  # whoever shares it has made it non-blocking
            waited_for = select.poll()
            waited_for.register(descriptor, select.POLLOUT)
            waited_for.poll(1e3 * _RETRY_SECONDS)
        except OSError:
            return False
    return True


def _flush_stderr() -> None:
    with suppress(OSError, ValueError):
        if sys.stderr is not None:
            sys.stderr.flush()


END_SECONDS = 10.0
"""Between SIGTERM and the end of the agent, whatever hangs: less than systemd and the kubelet wait."""
_EXIT_CODES = {signal.SIGTERM: 0, signal.SIGINT: 130}


@contextmanager
def ends_in_time(
    seconds: float = END_SECONDS, *, line: str = "stepscope agent: something still hangs; ends without it"
) -> Iterator[None]:
    """End the process so long after SIGTERM or SIGINT at the latest, also while its main thread hangs in a call.

    A disk or a driver that hangs would keep the agent until it is killed. Its children follow by themselves: they end
    between two calls of the driver.

    Args:
        line: says so on stderr then.
    """
    wake, wakeup = os.pipe()
    os.set_blocking(wakeup, False)
    is_over = threading.Event()

    def watch() -> None:
        while (numbers := os.read(wake, 16)) and not is_over.is_set():
            code = next((_EXIT_CODES[number] for number in map(_signal, numbers) if number in _EXIT_CODES), None)
            if code is not None and not is_over.wait(seconds):
                os.write(_STDERR, f"{line}\n".encode())
                time.sleep(_FLUSH_SECONDS / 10)
                os._exit(code)
            if code is not None:
                return

    before = signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
    thread = threading.Thread(target=watch, name="stepscope-end", daemon=True)
    thread.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        is_over.set()
        os.close(wakeup)
        thread.join()
        os.close(wake)


def _signal(number: int) -> signal.Signals | None:
    with suppress(ValueError):
        return signal.Signals(number)
    return None
