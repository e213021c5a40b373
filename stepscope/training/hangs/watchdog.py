"""Watchdog for steps that do not end: checks the open step once a second and reports it while the process is alive.

Where a thread holds the GIL, no Python code can check anything. A kernel timer, reset as long as Python runs, then
sends a signal to the thread that resets it, and faulthandler's C handler writes all stacks without the GIL.
faulthandler has a timer of its own, but only one per process, which may be in use by the training code.
"""

from __future__ import annotations

import ctypes
import faulthandler
import logging
import math
import os
import re
import signal
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from io import FileIO
from pathlib import Path
from typing import Any

from stepscope.core.documents.hang import StuckReport
from stepscope.core.documents.run_directory import FLIGHT_FOLDER
from stepscope.training.hangs import stall, stuck_report
from stepscope.training.hangs.live_hang import LiveStateWriter
from stepscope.training.run.context import OpenStep, RunContext
from stepscope.training.run.run_files import run_within
from stepscope.training.steps.spans import open_phases
from stepscope.training.steps.telemetry import StepRecord

logger = logging.getLogger(__name__)

_MIN_CHECKED_SECONDS = 5.0
"""Age below which a step is not checked, unless the user's limit is shorter."""

_CLOSES_WITHIN_SECONDS = 2.0
_MAX_STILL_SECONDS = 30.0
_TIMES_LIMIT_WITHOUT_TIMEOUT = 10.0
_REPORT_BUSY_EVERY = 0.1  # of the limit


class StepWatchdog:
    """Watchdog of training steps that do not end: reports each stuck step once.

    A step is stuck when it is older than its limit and its thread makes no progress. A rank that waits for another one
    which is visibly at work, as all do while rank 0 evaluates, is not stuck: ranks with a suspect step leave marker
    files in flight/ for each other, and wait for a busy rank until shortly before torch's own timeout.
    """

    def __init__(self, context: RunContext, seconds: float | None) -> None:
        self._context = context
        self._thresholds = stall.StallThresholds(seconds)
        self._min_checked_seconds = min(_MIN_CHECKED_SECONDS, (seconds or math.inf) / 2)
        self._thread_id = threading.get_ident()
        self._progress = stall.ThreadProgress(self._thread_id)
        self._episode_step: OpenStep | None = None
        self._has_reported = False
        self._report: StuckReport | None = None
        self._stacks: FileIO | None = None
        self._gil_timer: GilTimer | None = None
        self._gil_timer_seconds = 0.0
        self._last_run = 0.0
        self._is_closed = self._made_folder = False
        self._suspect_since: float | None = None
        self._busy_reported = 0.0
        self._others = _OtherRanks(context)
        self._live = LiveStateWriter(context, self._thread_id)

    def steps_ended(self, records: Sequence[StepRecord]) -> None:
        for record in records:
            self._thresholds.add(record.duration_ns / 1e9)

    def run_task(self) -> None:
        """Look at the open step; about once a second, on the thread of the background loop."""
        if self._is_closed:  # a signal that should have ended the process did not
            return
        now, timeout = time.monotonic(), stuck_report.shortest_collective_timeout()
        suspect_limit = self._thresholds.limit_seconds(stall.StepSituation(timeout_seconds=timeout))
        self._check_gil_timer(now, suspect_limit)
        step = self._context.open_step()
        look_after = self._thresholds.look_seconds(timeout)
        self._live.look(now, step, look_after, self._thresholds.first_look_seconds(look_after))
        if step != self._episode_step:
            self._end_episode()
            self._episode_step = step
        if step is None or self._has_reported or now - step.began_seconds < self._min_checked_seconds:
            return
        age = now - step.began_seconds
        if age < suspect_limit / 2:
            return
        situation = stall.StepSituation(self._is_long_by_nature(), timeout)
        limit = self._thresholds.limit_seconds(situation)
        if self._suspect_since is None:
            self._suspect_since = now
            self._others.remember()
        still_seconds, looked_seconds = self._progress.look(), now - self._suspect_since
        is_still = still_seconds >= min(_MAX_STILL_SECONDS, limit / 4)
        has_moved = still_seconds < 0.9 * looked_seconds
        self._report_to_other_ranks(
            now,
            suspect_limit,
            is_busy=(has_moved and not is_still) or (situation.is_long_by_nature and age < limit),
        )
        if age >= limit and self._is_stuck(is_still, age, limit, timeout):
            self._write_report(step, is_still, age, limit)

    def close(self) -> None:
        """Stop watching; a step that is still open never ended."""
        self._is_closed = True
        run_within(_CLOSES_WITHIN_SECONDS, self._leave, str(stuck_report.stacks_file_path(self._context)))

    def _leave(self) -> None:
        step = self._context.open_step()
        self._live.close(is_open=step is not None)
        if step == self._episode_step:
            self._report = None
        self._end_episode()
        if self._gil_timer is not None:
            self._gil_timer.close()
        if self._stacks is not None:
            self._stacks.close()
            path = stuck_report.stacks_file_path(self._context)
            with suppress(OSError):
                if not path.stat().st_size:
                    path.unlink()
                    if self._made_folder:  # else another rank may need it
                        path.parent.rmdir()  # only when empty

    def _is_long_by_nature(self) -> bool:
        return bool(open_phases(self._context.open_spans())) or stall.is_thread_compiling(self._thread_id)

    def _report_to_other_ranks(self, now: float, limit: float, *, is_busy: bool) -> None:
        """Tell other ranks whether this one is busy; not at every check."""
        if is_busy and now - self._busy_reported > _REPORT_BUSY_EVERY * limit:
            self._busy_reported = now
            self._others.report_busy()
        elif not is_busy and self._busy_reported:
            self._busy_reported = 0.0
            self._others.withdraw_busy()

    def _is_stuck(self, is_still: bool, age: float, limit: float, timeout: float | None) -> bool:
        if not is_still:
            return self._others.one_is_stuck()
        at_last = stall.SHARE_OF_TIMEOUT * timeout if timeout is not None else _TIMES_LIMIT_WITHOUT_TIMEOUT * limit
        return age >= at_last or not self._others.one_is_busy(limit)

    def _write_report(self, step: OpenStep, is_still: bool, age: float, limit: float) -> None:
        identity, median = self._context.identity, self._thresholds.median_seconds
        report = StuckReport(
            rank=identity.rank,
            host=identity.host,
            step=step.number,
            began_ns=step.began_ns,
            age_seconds=round(age, 3),
            limit_seconds=round(limit, 3),
            median_seconds=None if median is None else round(median, 6),
            is_still=is_still,
        )
        self._has_reported = True  # once an episode, whatever comes of it
        assert self._stacks is not None
        for rescue in self._context.when_stuck if is_still else ():
            try:
                rescue()
            except Exception:  # the report below matters more
                logger.debug("writing the pending steps failed", exc_info=True)
        try:
            self._report = stuck_report.write_stuck_report(self._context, report, self._thread_id, self._stacks)
            folder = stuck_report.stacks_file_path(self._context).parent
            written = f"{self._report.where}; stacks and flight recorder: {folder}"
        except OSError as error:
            written = f"a place that cannot be reported: {error}"
        usual = "" if median is None else f" (usually {median:.2g} s)"
        what = "stuck" if is_still else "at work while another rank is stuck,"
        logger.warning(
            "step %d of rank %d has not ended for %.0f s%s: %s in %s",
            step.number,
            identity.rank,
            age,
            usual,
            what,
            written,
        )

    def _end_episode(self) -> None:
        self._progress.reset()
        self._suspect_since = None
        if self._busy_reported:
            self._busy_reported = 0.0
            self._others.withdraw_busy()
        report, self._report, self._has_reported = self._report, None, False
        if report is not None:
            seconds = (time.time_ns() - report.began_ns) / 1e9
            logger.warning("step %d is over after %.0f s", report.step, seconds)
            with suppress(OSError):
                stuck_report.save_stuck_report(self._context, replace(report, ended_ns=time.time_ns()))

    def _check_gil_timer(self, now: float, seconds: float) -> None:
        if self._stacks is None:
            path = stuck_report.stacks_file_path(self._context)
            self._made_folder = not path.parent.is_dir()
            self._stacks = _opened(path)
            self._others.withdraw_busy()  # left by an earlier attempt
            with suppress(OSError, AttributeError):  # an old kernel has no such timer
                self._gil_timer = GilTimer(self._stacks)
        elif self._gil_timer is not None and now - self._last_run > self._gil_timer_seconds:
            logger.warning(
                "no other thread could run for %.0f s: a call held the GIL, the process was stopped or its"
                " disk did not respond; stacks: %s",
                now - self._last_run,
                stuck_report.stacks_file_path(self._context),
            )
        self._last_run, self._gil_timer_seconds = now, seconds
        if self._gil_timer is not None:
            self._gil_timer.reset(seconds)


def _opened(path: Path) -> FileIO:
    """Open the file for appending; tried twice, as another rank that ends may remove the empty folder in between."""
    with suppress(FileNotFoundError):
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("ab", buffering=0)
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.open("ab", buffering=0)


class _OtherRanks:
    """Marker files in flight/ by which ranks with a suspect step tell each other that they are busy or stuck."""

    def __init__(self, context: RunContext) -> None:
        self._folder = context.run_directory / FLIGHT_FOLDER
        self._rank = context.identity.rank
        self._is_alone = context.identity.world_size == 1
        self._stuck_before: dict[str, int] = {}
        self._busy_seen: dict[str, tuple[int, float]] = {}

    def remember(self) -> None:
        """Remember the reports of earlier steps, which do not count for this one."""
        self._stuck_before = self._times("rank*.stuck.json")

    def report_busy(self) -> None:
        """Mark this rank as slow but making progress."""
        if not self._is_alone:
            with suppress(OSError):
                self._own.write_bytes(b"%d" % time.time_ns())

    def withdraw_busy(self) -> None:
        """Remove the mark: the step has ended."""
        with suppress(OSError):
            self._own.unlink()

    def one_is_stuck(self) -> bool:
        """Whether a rank has reported a stuck step since this rank's step became suspect."""
        return not self._is_alone and self._times("rank*.stuck.json") != self._stuck_before

    def one_is_busy(self, within_seconds: float) -> bool:
        """Whether another rank has renewed its busy mark within so many seconds, by this host's clock alone."""
        if self._is_alone:
            return False
        now = time.monotonic()
        busy = {}
        for name, changed_ns in self._times(".rank*.busy").items():
            before_ns, since = self._busy_seen.get(name, (0, now))
            busy[name] = (before_ns, since) if before_ns == changed_ns else (changed_ns, now)
        self._busy_seen = busy
        return any(now - since < within_seconds for name, (_, since) in busy.items() if name != self._own.name)

    @property
    def _own(self) -> Path:
        return self._folder / f".rank{self._rank}.busy"

    def _times(self, pattern: str) -> dict[str, int]:
        found = {}
        for path in self._folder.glob(pattern):
            with suppress(OSError):
                found[path.name] = path.stat().st_mtime_ns
        return found


_CLOCK_MONOTONIC = 1
_SIGEV_THREAD_ID = 4
_NUM_RESERVED = 4  # debuggers and runtimes use the very last signals


class _SignalEvent(ctypes.Structure):
    """struct sigevent of Linux, 64 bytes."""

    _fields_ = [
        ("value", ctypes.c_void_p),
        ("number", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("thread_id", ctypes.c_int),
        ("unused", ctypes.c_byte * 44),
    ]


class _TimerSpecification(ctypes.Structure):
    """struct itimerspec, for one expiry."""

    _fields_ = [
        ("interval_seconds", ctypes.c_long),
        ("interval_ns", ctypes.c_long),
        ("seconds", ctypes.c_long),
        ("ns", ctypes.c_long),
    ]


class GilTimer:
    """Kernel timer against a held GIL: writes all stacks to a file unless the thread that made it resets it in time.

    Raises:
        OSError: the kernel has no free timer, or every signal is in use.
    """

    def __init__(self, file: FileIO) -> None:
        self._owner = threading.current_thread()
        self._signal = _free_signal()
        self._library: Any = ctypes.CDLL(None, use_errno=True)
        if not hasattr(self._library, "timer_create"):
            raise OSError("this C library has no timers")
        self._timer = ctypes.c_void_p()
        event = _SignalEvent(
            number=self._signal, notify=_SIGEV_THREAD_ID, thread_id=threading.get_native_id()
        )  # fmt: skip
        faulthandler.register(self._signal, file=file, all_threads=True, chain=False)
        if self._library.timer_create(_CLOCK_MONOTONIC, ctypes.byref(event), ctypes.byref(self._timer)):
            faulthandler.unregister(self._signal)
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    def reset(self, seconds: float) -> None:
        """Set the timer to expire so many seconds from now."""
        whole = int(seconds)
        when = _TimerSpecification(0, 0, whole, int((seconds - whole) * 1e9))
        self._library.timer_settime(self._timer, 0, ctypes.byref(when), None)

    def close(self) -> None:
        """Delete the timer if the thread that made it has ended; a late signal could else end the process."""
        self.reset(0)  # disarms it
        if not self._owner.is_alive() or self._owner is threading.current_thread():
            self._library.timer_delete(self._timer)
            faulthandler.unregister(self._signal)


def _free_signal() -> int:
    """A real-time signal that this process neither handles, ignores nor blocks."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    taken = 0
    for mask in re.findall(r"^Sig(?:Cgt|Ign|Blk):\s*([0-9a-f]+)$", status, re.MULTILINE):
        taken |= int(mask, 16)
    for number in range(signal.SIGRTMAX - _NUM_RESERVED, signal.SIGRTMIN, -1):
        if not taken >> (number - 1) & 1:
            return number
    raise OSError("every real-time signal is in use")
