"""Steps that the ranks of a run recorded (steps/rank{r}.jsonl), and steps that never ended (flight/).

`read_run_steps` returns every step, `read_step_telemetry` and `read_pace` the step time outside of captures.
"""

from __future__ import annotations

import math
import os
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np

from stepscope.core.documents import run_directory as layout
from stepscope.core.text.numbers import counted, ranks_words
from stepscope.core.vocabulary import Notice
from stepscope.store.documents import is_figure
from stepscope.store.files import open_regular
from stepscope.trace.file_names import MAX_RANK

_FAR_FEWER = 0.5
"""A rank with less than this share of the usual number of steps is mentioned."""

_STEP_FILE = re.compile(r"rank(\d{1,9})\.jsonl")
_Time = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
_Number = Annotated[int, msgspec.Meta(ge=-(2**62), le=2**62)]


class _Anomaly(msgspec.Struct):
    kind: str


class _StepLine(msgspec.Struct, gc=False):
    """The fields of a `Step` as a line has them, with their limits; figures are fields beside these."""

    index: _Number
    start_ns: _Time
    end_ns: _Time
    data_wait_ns: _Time = 0
    phases: dict[str, _Time] = msgspec.field(default_factory=dict)
    captured: bool = False
    anomalies: list[str | _Anomaly] = msgspec.field(default_factory=list)
    non_finite: list[str] = msgspec.field(default_factory=list)
    attempt: _Number = 1
    state: str = "wait"
    export_ns: _Time = 0
    prepare_ns: _Time = 0
    device_ns: _Time | None = None
    exposed_data_wait_ns: _Time | None = None
    exposed_phases: dict[str, _Time] = msgspec.field(default_factory=dict)
    run_delay_ns: _Time | None = None
    num_compilations: _Time = 0
    compile_ns: _Time = 0


def read_run_steps(run_directory: Path) -> tuple[list[layout.RankSteps], list[Notice]]:
    """Read all ranks' steps of a run, and notices of lines that could not be read. Empty where it has no steps.

    Steps that a later attempt of the job repeats replace those of all ranks, also of ranks that the job no longer has.

    Raises:
        OSError: a file cannot be read.
    """
    steps_of, notices = _all_steps(_files_by_rank(run_directory))
    return _latest(steps_of), notices


MAX_RANKS_OF_JOB = 256
"""Ranks whose every step counts to the training time of the job."""


def read_attempts_steps(
    run_directory: Path, most_ranks: int = MAX_RANKS_OF_JOB, *, most_bytes: int | None = None
) -> tuple[list[layout.RankSteps], list[Notice]]:
    """Read the steps of all attempts of a run, also those that a later one repeated, of at most so many ranks.

    In a run from before step lines had attempts, one begins where the index falls back.

    Args:
        most_bytes: of all files together, the newest lines of each; None for all.

    Returns:
        The ranks with steps; and notices of lines and files that could not be read, and of ranks with far fewer steps.
    """
    files = _spread(_files_by_rank(run_directory), most_ranks)
    try:
        steps_of, notices = _all_steps(files, None if most_bytes is None else most_bytes // max(len(files), 1))
    except OSError as error:
        text = f"{run_directory / layout.STEPS_FOLDER}: cannot be read ({error}); left out"
        return [], [Notice("unusable_file", text)]
    ranks = [layout.RankSteps(rank, _with_attempts(steps)) for rank, steps in steps_of.items() if steps]
    silent = ranks_without_steps(run_directory)
    num_steps = {rank: len(steps) for rank, steps in steps_of.items() if rank not in silent}
    return ranks, [*notices, *_short_ranks(num_steps)]


def _short_ranks(num_steps: Mapping[int, int]) -> list[Notice]:
    """A notice of the ranks with far fewer steps than the others."""
    usual = float(np.median(list(num_steps.values()))) if num_steps else 0.0
    short = [rank for rank, number in num_steps.items() if number < _FAR_FEWER * usual]
    if not short:
        return []
    most = max(num_steps[rank] for rank in short)
    text = f"{ranks_words(short)} recorded at most {counted(most, 'step')}, the others mostly {usual:,.0f}"
    return [Notice("short_ranks", text)]


def _with_attempts(steps: list[layout.Step]) -> list[layout.Step]:
    """The steps with the number of their attempt; of lines that came twice, one."""
    attempt, last_index = 1, -1
    numbered = []
    for step in {(step.attempt, step.index, step.start_ns): step for step in steps}.values():
        attempt = max(attempt + (step.index <= last_index), step.attempt)
        last_index = step.index
        numbered.append(step if step.attempt == attempt else replace(step, attempt=attempt))
    return numbered


def _all_steps(
    files: list[tuple[int, Path]], most_bytes: int | None = None
) -> tuple[dict[int, list[layout.Step]], list[Notice]]:
    """Steps by rank, and notices of lines that could not be read; `most_bytes` of each file are read, the last."""
    steps_of: dict[int, list[layout.Step]] = {}
    notices = []
    for rank, path in files:
        steps = steps_of.setdefault(rank, [])
        num_unreadable = 0
        for line, text in _read_lines(path, most_bytes):
            if line is None:
                num_unreadable += 1
            else:
                steps.append(_step(line, text))
        if num_unreadable:
            lines = counted(num_unreadable, "line is not a step and is", "lines are not steps and are")
            notices.append(Notice("unreadable_lines", f"{path}: {lines} left out"))
    return steps_of, notices


def _latest(steps_of: dict[int, list[layout.Step]]) -> list[layout.RankSteps]:
    """Each rank's steps that no later attempt of any rank repeated."""
    first: dict[int, int] = {}
    for step in (step for steps in steps_of.values() for step in steps):
        first[step.attempt] = min(step.index, first.get(step.attempt, step.index))
    ends, end = {}, math.inf
    for attempt in sorted(first, reverse=True):
        ends[attempt], end = end, min(end, first[attempt])
    ranks = []
    for number, steps in steps_of.items():
        rank = layout.RankSteps(number)
        for step in steps:
            if step.index < ends[step.attempt]:
                rank.add(step)
        if rank.steps or not steps:
            ranks.append(rank)
    return ranks


def _files_by_rank(run_directory: Path) -> list[tuple[int, Path]]:
    try:
        files = (run_directory / layout.STEPS_FOLDER).iterdir()
        return sorted((int(match[1]), path) for path in files if (match := _STEP_FILE.fullmatch(path.name)))
    except OSError:
        return []


_decode_line = msgspec.json.Decoder(_StepLine).decode
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def _read_lines(path: Path, most_bytes: int | None = None) -> Iterator[tuple[_StepLine | None, bytes]]:
    """The lines of one rank's file, parsed (None: it is not a step) and as text. Leaves out a last line that was cut.

    Raises:
        OSError: the file cannot be read.
    """
    with open_regular(path) as file:
        skipped = 0 if most_bytes is None else max(os.fstat(file.fileno()).st_size - most_bytes, 0)
        file.seek(skipped)
        lines = file.read().split(b"\n")[:-1]
    for text in lines[1:] if skipped else lines:
        line = None
        with suppress(*_UNREADABLE):
            line = _decode_line(text)
        yield line, text


def _figures(text: bytes) -> dict[str, float]:
    """Figures of a step's line; none where a value that is not the step's own cannot be read."""
    try:
        document = msgspec.json.decode(text)
    except _UNREADABLE:
        return {}
    return {
        name: float(value)
        for name, value in document.items()
        if name not in layout.RESERVED_FIELDS and is_figure(value)
    }


def _step(line: _StepLine, text: bytes) -> layout.Step:
    values = msgspec.structs.asdict(line)
    values["end_ns"] = max(line.start_ns, line.end_ns)
    values["anomalies"] = [anomaly if isinstance(anomaly, str) else anomaly.kind for anomaly in line.anomalies]
    return layout.Step(**values, figures=_figures(text))


MAX_RANKS_READ = 16
"""Ranks wait for each other at every step, so a few of them show the job's pace; a thousand files take minutes."""

WARM_UP_SHARE = 0.1
MAX_WARM_UP_STEPS = 10
"""Steps left out at the beginning: compilation, autotuning, caches that fill."""

_MOSTLY = 0.5
"""Share of a rank's settled steps above which those with a time by CUDA events stand for all."""

_NEAREST_BEFORE = 10
_MAX_AFTER = 100
"""Settled steps that show what a captured one takes without the profiler. Those before the capture are not affected by
it; where they are too few, so many after it count that the few which writing the trace slows do not matter."""
_LONG_FACTOR = 2.0
_MAX_LONG_SHARE = 0.1
"""Where more than this share of steps takes over twice the lower quartile, steps are not alike: a fault hits some of
them, or hosts run ahead until something makes them wait. Their median is then not the duration of a step on the device.
"""


class _TimedStep(NamedTuple):
    """A step, and its duration where that is the training's alone.

    Attributes:
        attempt: begins anew also where the index falls back.
        settled_ms: None where a capture or its neighbour affects it.
        text: the whole line, which has the figures.
    """

    attempt: int
    line: _StepLine
    settled_ms: float | None
    text: bytes


@dataclass(frozen=True, slots=True)
class StepTelemetry:
    """Settled, unprofiled steps read from a run directory.

    Attributes:
        step_ms: duration of each in order, the median over ranks: the GPU's, by CUDA events, where most steps have it,
            as hosts run ahead until the launch queue is full; else the host's.
        parts_ms: by name, the longest of any rank in each of these steps: phases, and losses of every step.
        tokens: median of the figure "tokens"; None where the training loop did not record it.
        memory_bytes: largest value over ranks and steps of each figure whose name contains "memory".
    """

    step_ms: list[float] = field(default_factory=list)
    parts_ms: dict[str, list[float]] = field(default_factory=dict)
    tokens: float | None = None
    memory_bytes: dict[str, float] = field(default_factory=dict)


class UnprofiledPace(NamedTuple):
    """A stored run's steps outside of a capture, to compare the captured ones with.

    Attributes:
        data_waits_ns: by rank, how long each settled step of the last attempt waited for its data; ranks that never
            waited are left out.
        unprofiled_step_ms: duration of a captured step without the profiler: median of settled steps next to the
            capture. None where they are too few: the manifest's own figure has to do then.
        is_even: whether these steps are alike; else no other step can stand for the captured ones.
    """

    data_waits_ns: dict[int, list[int]]
    unprofiled_step_ms: float | None
    is_even: bool = True


def read_step_telemetry(run_directory: Path) -> StepTelemetry:
    """Read a run's steps that neither a capture nor its neighbour affects. Lines that cannot be read are ignored."""
    by_step: dict[tuple[int, int], list[float]] = defaultdict(list)
    parts: dict[str, dict[tuple[int, int], float]] = defaultdict(dict)
    tokens: list[float] = []
    memory: dict[str, float] = {}
    for _, path in _some_files(run_directory):
        settled = [(step, step.settled_ms) for step in _timed_steps(path) if step.settled_ms is not None]
        on_device = [(step, step.line.device_ns / 1e6) for step, _ in settled if step.line.device_ns]
        for step, length_ms in on_device if len(on_device) > _MOSTLY * len(settled) else settled:
            key = step.attempt, step.line.index
            by_step[key].append(length_ms)
            figures = _figures(step.text)
            for name, part_ms in _parts_ms(step.line, figures).items():
                parts[name][key] = max(parts[name].get(key, 0.0), part_ms)
            for name, value in figures.items():
                if name == "tokens":
                    tokens.append(value)
                elif "memory" in name:
                    memory[name] = max(memory.get(name, 0.0), value)
    keys = sorted(by_step)
    keys = keys[min(int(len(keys) * WARM_UP_SHARE), MAX_WARM_UP_STEPS) :]
    return StepTelemetry(
        step_ms=[float(np.median(by_step[key])) for key in keys],
        parts_ms={name: [of_steps.get(key, 0.0) for key in keys] for name, of_steps in sorted(parts.items())},
        tokens=float(np.median(tokens)) if tokens else None,
        memory_bytes=memory,
    )


def _parts_ms(line: _StepLine, figures: dict[str, float]) -> dict[str, float]:
    """What a step lost by its record, ms; a phase by its own name."""
    wait_ns = line.data_wait_ns if line.exposed_data_wait_ns is None else line.exposed_data_wait_ns
    lost_ns = {
        "data_loading": wait_ns,
        "garbage_collection": figures.get("gc_pause_ns", 0.0),
        "compilation": line.compile_ns,
        "run_delay": line.run_delay_ns or 0,
    }
    lost_ns |= {name: line.exposed_phases.get(name, length_ns) for name, length_ns in line.phases.items()}
    return {name: value_ns / 1e6 for name, value_ns in lost_ns.items() if value_ns > 0}


def read_pace(run_directory: Path, capture: tuple[int, int] | None = None) -> UnprofiledPace:
    """Read a run's step times next to a capture. Lines that cannot be read are ignored.

    Args:
        capture: attempt and first step of the captured steps.
    """
    waits: dict[int, list[int]] = {}
    beside: list[float] = []
    num_wanted, is_even = 0, True
    for rank, path in _some_files(run_directory):
        steps = _timed_steps(path)
        waits |= {rank: data_waits} if any(data_waits := _data_waits(steps)) else {}
        near = [] if capture is None else _beside(steps, *capture)
        beside += near
        num_wanted += _NEAREST_BEFORE if near else 0
        is_even = is_even and (len(near) < _NEAREST_BEFORE or _are_alike(near))
    return UnprofiledPace(waits, float(np.median(beside)) if beside and len(beside) >= num_wanted else None, is_even)


def _are_alike(durations: Sequence[float]) -> bool:
    long = _LONG_FACTOR * float(np.quantile(durations, 0.25))
    return sum(duration > long for duration in durations) <= _MAX_LONG_SHARE * len(durations)


def _data_waits(steps: Sequence[_TimedStep]) -> list[int]:
    settled = [step for step in steps if step.settled_ms is not None]
    return [step.line.data_wait_ns for step in settled if step.attempt == settled[-1].attempt]


def _beside(steps: Sequence[_TimedStep], attempt: int, first_step: int) -> list[float]:
    """The settled steps, in ms, next to the capture that begins with this step; empty where the file lacks it."""
    own = [step for step in steps if step.attempt == attempt]
    first = next((place for place, step in enumerate(own) if step.line.index == first_step), None)
    if first is None or not own[first].line.captured:
        return []
    before = [step.settled_ms for step in own[:first] if step.settled_ms is not None][-_NEAREST_BEFORE:]
    if len(before) == _NEAREST_BEFORE:
        return before
    return before + [step.settled_ms for step in own[first:] if step.settled_ms is not None][:_MAX_AFTER]


def ranks_without_steps(run_directory: Path, world_size: int = 0) -> list[int]:
    """Store, step records: ranks with an empty file of steps, or none, where others have steps."""
    sizes = {}
    for rank, path in _files_by_rank(run_directory):
        with suppress(OSError):
            sizes[rank] = path.stat().st_size
    ranks = sorted({*sizes, *range(world_size if world_size <= MAX_RANK else 0)})
    return [rank for rank in ranks if not sizes.get(rank)] if any(sizes.values()) else []


def _some_files(run_directory: Path) -> list[tuple[int, Path]]:
    """The files of at most MAX_RANKS_READ ranks, spread evenly."""
    return _spread(_files_by_rank(run_directory), MAX_RANKS_READ)


def _spread(files: list[tuple[int, Path]], most: int) -> list[tuple[int, Path]]:
    """At most so many of the files, spread evenly."""
    return files if len(files) <= most else [files[place * len(files) // most] for place in range(most)]


def _timed_steps(path: Path) -> list[_TimedStep]:
    """One rank's steps; empty where the file cannot be read."""
    steps: list[_TimedStep] = []
    attempt, last_index, previous_state = 1, -1, ""
    with suppress(OSError):
        for line, text in _read_lines(path):
            if line is None:
                continue
            before, attempt = attempt, max(attempt + (line.index <= last_index), line.attempt)
            is_first = attempt > before
            is_quiet = line.state == "wait" and not line.captured
            is_settled = is_quiet and previous_state == "wait" and not is_first and line.end_ns > line.start_ns
            settled_ms = (line.end_ns - line.start_ns) / 1e6 if is_settled else None
            steps.append(_TimedStep(attempt, line, settled_ms, text))
            last_index, previous_state = line.index, line.state
    return steps


_STUCK_FILES = "rank*.stuck.json"
_MAX_STUCK_RANKS = 1000
_MAX_STUCK_BYTES = 1 << 24
_MAX_PLACE_LENGTH = 80
_FINISHED = "finished"


class StuckHead(msgspec.Struct):
    """The part of a `StuckReport` that a list of stuck steps needs; decoding skips the rest."""

    rank: Annotated[int, msgspec.Meta(ge=0)]
    step: Annotated[int, msgspec.Meta(ge=0)]
    began_ns: int
    where: str
    is_still: bool = True
    ended_ns: int | None = None
    collective: dict[str, Any] | None = None

    @property
    def place(self) -> str:
        """Where the rank is, for people."""
        return _printable(self.where)


def read_stuck_steps(run_directory: Path, manifest: layout.RunManifest | None) -> list[StuckHead]:
    """Store, step records: steps of a run's last attempt that did not end; none of a finished job."""
    attempt = manifest.attempts[-1] if manifest is not None and manifest.attempts else None
    if attempt is not None and attempt.ended == _FINISHED:
        return []
    since_ns = 0 if attempt is None else attempt.start_ns
    stuck = []
    for path in sorted((run_directory / layout.FLIGHT_FOLDER).glob(_STUCK_FILES))[:_MAX_STUCK_RANKS]:
        with suppress(OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            with open_regular(path) as file:
                state = msgspec.json.decode(file.read(_MAX_STUCK_BYTES), type=StuckHead)
            if state.ended_ns is None and state.began_ns >= since_ns:
                stuck.append(state)
    return stuck


def stuck_steps(run_directory: Path, manifest: layout.RunManifest | None) -> list[Notice]:
    """Store, step records: notices of a stored run, one for each place where ranks are stuck.

    For example 'rank 3 stuck in step 412, in all_reduce'.
    """
    ranks: dict[tuple[bool, int, str], list[int]] = defaultdict(list)
    for state in read_stuck_steps(run_directory, manifest):
        ranks[state.is_still, state.step, state.place].append(state.rank)
    how = {True: "stuck", False: "at work while others were stuck"}
    return [
        Notice(
            "stuck_step", f"{ranks_words(of)} {how[is_still]} in step {step}, in {where}; see {layout.FLIGHT_FOLDER}/"
        )
        for (is_still, step, where), of in ranks.items()
    ]


def _printable(place: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in place[:_MAX_PLACE_LENGTH])
