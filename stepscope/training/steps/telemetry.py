"""Step telemetry of this rank: the record of a step, the file of all steps (steps/rank{r}.jsonl), and step times.

Step times are the GPU's where there is one: a host that runs ahead passes the first steps in a fraction of their time,
so host times do not describe them.
"""

from __future__ import annotations

import functools
import json
import logging
import math
import statistics
import sys
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from stepscope.core.documents.run_directory import RESERVED_FIELDS, RankFile
from stepscope.core.loader_waits import MOST_INTERVALS, Interval, keep_interval
from stepscope.training.anomalies.detectors import Anomaly
from stepscope.training.run.identity import Identity
from stepscope.training.run.run_files import ResumePoint, RunFileInUseError, WholeLinesFile, resume_point, run_within
from stepscope.training.steps.device_times import DeviceStep
from stepscope.training.steps.scalars import DeferredScalars

logger = logging.getLogger(__name__)

NEVER = sys.maxsize
"""Number of a step that never comes."""

MOST_PENDING_STEPS = 200_000
"""Kept until the disk takes them: as many as come in two seconds at most, some hundred MB."""

_CLOSES_WITHIN_SECONDS = 10.0
_MAX_REMEMBERED_STEPS = 10_000
_MAX_ON_DEVICE = 64  # the steps just before a capture are those to compare it with
_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode  # json.dumps makes a new one at each call
_quoted = functools.lru_cache(maxsize=1000)(_encode)

_WRITTEN_UNLESS_ZERO = ("export_ns", "prepare_ns", "num_compilations", "compile_ns")
_WRITTEN_IF_KNOWN = ("device_ns", "exposed_data_wait_ns", "run_delay_ns")


@dataclass(slots=True)
class StepRecord:
    """The open step of this rank, which becomes a line that is read back as a `core.documents.run_directory.Step`.

    Attributes:
        figures: what the caller gave to `prof.step` (tokens, loss, ...). NaN and infinities, which JSON does not have,
            are written as null and named in "non_finite".
        deferred: scalars on their way from the GPU; once read, those that `figures` does not have join it.
        data_waits, phase_intervals: what the times are of; empty once the GPU has passed them.
        device: the step on its way through the GPU; None without one, and once it has passed.
        anomalies: what the anomaly detectors found in this step's figures; only written where there is one.
        attempt: only written from 2 on.
    """

    index: int
    start_ns: int
    end_ns: int = 0
    data_wait_ns: int = 0
    phases: dict[str, int] = field(default_factory=dict)
    captured: bool = False
    state: str = "wait"
    export_ns: int = 0
    prepare_ns: int = 0
    figures: dict[str, int | float] = field(default_factory=dict)
    deferred: list[DeferredScalars] = field(default_factory=list)
    anomalies: list[Anomaly] = field(default_factory=list)
    attempt: int = 1
    device_ns: int | None = None
    exposed_data_wait_ns: int | None = None
    exposed_phases: dict[str, int] = field(default_factory=dict)
    run_delay_ns: int | None = None
    num_compilations: int = 0
    compile_ns: int = 0
    data_waits: list[Interval] = field(default_factory=list)
    phase_intervals: dict[str, list[Interval]] = field(default_factory=dict)
    device: DeviceStep | None = None

    @property
    def duration_ns(self) -> int:
        return self.end_ns - self.start_ns

    def add_data_wait(self, interval: Interval) -> None:
        began, ended = interval
        self.data_wait_ns += ended.ns - began.ns
        keep_interval(self.data_waits, interval)

    def add_phase(self, name: str, interval: Interval) -> None:
        began, ended = interval
        self.phases[name] = self.phases.get(name, 0) + ended.ns - began.ns
        if name in self.phase_intervals or len(self.phase_intervals) < MOST_INTERVALS:
            keep_interval(self.phase_intervals.setdefault(name, []), interval)

    @property
    def is_settled(self) -> bool:
        """Whether all that was on its way from the GPU is there."""
        return all(deferred.are_there() for deferred in self.deferred) and (
            self.device is None or self.device.has_passed()
        )

    def settle(self) -> None:
        """Read what has come from the GPU; what has not come is given up."""
        for deferred in self.deferred:
            for name, value in deferred.read().items():
                self.figures.setdefault(name, value)
            deferred.give_up()
        self.deferred.clear()
        device, self.device = self.device, None
        if device is not None and device.has_passed():
            self.device_ns = device.duration_ns()
            self.exposed_data_wait_ns = device.exposed_ns(self.data_waits) if self.data_waits else None
            exposed = {name: device.exposed_ns(intervals) for name, intervals in self.phase_intervals.items()}
            self.exposed_phases = {name: time_ns for name, time_ns in exposed.items() if time_ns is not None}
        self.data_waits.clear()
        self.phase_intervals.clear()

    def as_line(self) -> bytes:
        parts = [
            f'{{"index":{self.index},"start_ns":{self.start_ns},"end_ns":{self.end_ns},"data_wait_ns":{self.data_wait_ns}',
            f'"phases":{_encode(self.phases) if self.phases else "{}"}',
            f'"captured":{"true" if self.captured else "false"},"state":{_quoted(self.state)}',
        ]
        if self.attempt > 1:
            parts.append(f'"attempt":{self.attempt}')
        for name in _WRITTEN_UNLESS_ZERO:
            value = getattr(self, name)
            if value:
                parts.append(f'"{name}":{value}')
        for name in _WRITTEN_IF_KNOWN:
            value = getattr(self, name)
            if value is not None:
                parts.append(f'"{name}":{value}')
        if self.exposed_phases:
            parts.append(f'"exposed_phases":{_encode(self.exposed_phases)}')
        if self.anomalies:
            parts.append(f'"anomalies":{_encode([asdict(anomaly) for anomaly in self.anomalies])}')
        non_finite = []
        for name, value in self.figures.items():
            if name in RESERVED_FIELDS:
                continue
            if isinstance(value, float) and not math.isfinite(value):
                non_finite.append(name)
                parts.append(f"{_quoted(name)}:null")
            elif type(value) is float or type(value) is int:
                parts.append(f"{_quoted(name)}:{value!r}")
            else:  # True, and kinds of float that show themselves otherwise
                parts.append(f"{_quoted(name)}:{_encode(value)}")
        if non_finite:
            parts.append(f'"non_finite":{_encode(non_finite)}')
        return (",".join(parts) + "}\n").encode()


class StepWriter:
    """Appends step records to the rank's file, whole lines only, about once a second, never on the training thread.

    What a disk that does not answer keeps waiting is bounded: the oldest steps are dropped, and counted.

    Attributes:
        lines_before: the last lines that the file had.

    Raises:
        OSError: from every method but `run_task`, when the file cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = WholeLinesFile(path)
        self.lines_before = self._file.last_before
        self._pending: deque[StepRecord] = deque(maxlen=MOST_PENDING_STEPS)
        self._num_dropped = 0
        self._adding, self._writing = threading.Lock(), threading.Lock()
        self._is_closed = False
        self._error: Exception | None = None

    def add(self, record: StepRecord) -> None:
        """Keep a finished step, which no longer changes, until it is written."""
        with self._adding:
            self._num_dropped += len(self._pending) == MOST_PENDING_STEPS
            self._pending.append(record)
        error, self._error = self._error, None
        if error is not None:
            raise error

    def run_task(self) -> None:
        """Once a second, on another thread: write what is kept. `add` raises what that fails with."""
        try:
            self.flush()
        except Exception as error:
            self._error = error

    def flush(self) -> None:
        """Write what is kept, however long the disk takes."""
        with self._writing:
            with self._adding:
                pending, self._pending = self._pending, deque(maxlen=MOST_PENDING_STEPS)
                num_dropped, self._num_dropped = self._num_dropped, 0
            if num_dropped:
                logger.warning("the disk did not answer: the lines of %d steps are lost in %s", num_dropped, self._path)
            lines = b"".join(record.as_line() for record in pending)
            if lines and not self._is_closed:
                self._file.write(lines)

    def close(self) -> None:
        """Write what is kept and close the file, within seconds.

        Raises:
            TimeoutError: the disk does not answer.
        """
        run_within(_CLOSES_WITHIN_SECONDS, self._close, f"the last steps, {self._path}")

    def _close(self) -> None:
        try:
            self.flush()
        finally:
            self._is_closed = True
            self._file.close()


class UnprofiledStepTime:
    """Step time without the profiler, by the durations of recent steps.

    Times are the GPU's where there is one, else the host's.
    """

    def __init__(self) -> None:
        self._before: dict[int, int] = {}
        self._after: dict[int, int] = {}
        self._on_device: deque[tuple[int, int]] = deque(maxlen=_MAX_ON_DEVICE)
        self._seen_first = self._seen_capture = False
        self._previous_state = "wait"

    def steps_ended(self, records: Sequence[StepRecord]) -> None:
        """Count finished steps."""
        for record in records:
            self._add(record)

    def _add(self, record: StepRecord) -> None:
        is_settled = self._seen_first and record.state == "wait" and self._previous_state == "wait"
        self._previous_state, self._seen_first = record.state, True
        self._seen_capture |= record.state == "active"
        kept = self._after if self._seen_capture else self._before
        if self._seen_capture and self._before:
            return
        if is_settled and len(kept) < _MAX_REMEMBERED_STEPS:
            kept[record.index] = record.duration_ns

    def steps_settled(self, records: Sequence[StepRecord]) -> None:
        """The GPU has passed the steps."""
        kept = self._before or self._after
        for record in records:
            if record.device_ns is not None and record.index in kept:
                self._on_device.append((record.index, record.device_ns))

    def close(self) -> None:
        """What is known stays."""

    def unprofiled_step_ms(self) -> float | None:
        """Median of the steps before the first capture without the very first one, in ms.

        When there are none: of the steps after it, without the one that still waits for other ranks' export.
        """
        kept = self._before or self._after
        durations = [duration for step, duration in self._on_device if step in kept] or list(kept.values())
        return statistics.median(durations) / 1e6 if durations else None


_turns = count()  # every rank begins equally often, so equal numbers belong together


@dataclass(frozen=True, slots=True)
class OpenedStepFile:
    """Where this rank's steps go, and which attempt and step number they begin with."""

    run_directory: Path
    writer: StepWriter
    continuation: ResumePoint


def open_step_file(wanted: Path, identity: Identity, first_step: Any) -> OpenedStepFile:
    """Open this rank's file of steps, which goes on where an earlier attempt of the run has left it.

    A job of one process, while another has the directory wanted, takes the first free one of <name>-2, <name>-3, ...

    Args:
        wanted: the run directory.
        first_step: the number of the first step, where the caller knows it; else None.

    Raises:
        RunFileInUseError: another process has this rank's file, and ranks cannot agree on another directory.
        OSError: the file cannot be written.
        TypeError: first_step is not a step number.
    """
    if first_step is not None and (isinstance(first_step, bool) or not isinstance(first_step, int) or first_step < 0):
        raise TypeError(f"first_step is the number of a step, at least 0, not {first_step!r:.80}")
    turn = next(_turns)
    for number in count(1):
        run_directory = wanted if number == 1 else wanted.with_name(f"{wanted.name}-{number}")
        try:
            writer = StepWriter(run_directory / RankFile.STEPS.path(identity.rank))
        except RunFileInUseError:
            if identity.world_size > 1:
                raise
            continue
        if number > 1:
            logger.warning(
                "another process writes the run %s now, so this one is %s; give each its own profile(run=...) or"
                " STEPSCOPE_RUN",
                wanted.name,
                run_directory.name,
            )
        begins = resume_point(run_directory, identity, first_step, own_lines=writer.lines_before, turn=turn)
        return OpenedStepFile(run_directory, writer, begins)
    raise AssertionError("count has no end")


_KEPT_STEPS = 64
_MIN_STEPS = 2


class RecentStepTime:
    """Median time of the latest uncaptured steps; the first after a start, which is like no other, is left out."""

    def __init__(self) -> None:
        self._seen_first = False
        self._durations: deque[int] = deque(maxlen=_KEPT_STEPS)

    def add(self, record: StepRecord) -> None:
        """Count a finished step; on the training thread."""
        if record.state == "wait" and self._seen_first:
            self._durations.append(record.end_ns - record.start_ns)
        self._seen_first = True

    @property
    def median_ns(self) -> float | None:
        """Median time of a step, at least 1; None until two are known. From any thread."""
        durations = tuple(self._durations)
        return max(statistics.median(durations), 1.0) if len(durations) >= _MIN_STEPS else None
