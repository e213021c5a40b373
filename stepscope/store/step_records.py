"""Steps as ranks wrote them during training: steps/rank{r}.jsonl, and steps that never ended in flight/.

`read_run_steps` gives every step, `read_step_telemetry` and `read_pace` the step time outside of captures.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np

from stepscope.core.documents.evidence import Notice
from stepscope.core.documents.run_directory import FLIGHT_FOLDER, STEPS_FOLDER, RunManifest
from stepscope.core.documents.steps import RankSteps, Step
from stepscope.core.text.numbers import counted, ranks_words
from stepscope.store.documents import is_figure

_STEP_FILE = re.compile(r"rank(\d{1,9})\.jsonl")
_Time = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
_NOT_FIGURES = {
    "index",
    "start_ns",
    "end_ns",
    "data_wait_ns",
    "phases",
    "captured",
    "state",
    "non_finite",
    "anomalies",
    "attempt",
}


class _Anomaly(msgspec.Struct):
    kind: str


class _StepLine(msgspec.Struct):
    index: int
    start_ns: _Time
    end_ns: _Time
    data_wait_ns: _Time = 0
    phases: dict[str, _Time] = msgspec.field(default_factory=dict)
    captured: bool = False
    attempt: int = 1
    anomalies: list[str | _Anomaly] = msgspec.field(default_factory=list)
    non_finite: list[str] = msgspec.field(default_factory=list)


def read_run_steps(run_directory: Path) -> tuple[list[RankSteps], list[Notice]]:
    """All ranks' steps, and what could not be read. Nothing where the run has no steps.

    What a later start of the job does again replaces what any rank did before, also one that the job has no more.

    Raises:
        OSError: a file cannot be read.
    """
    told: dict[int, list[tuple[int, Step]]] = {}
    notices = []
    for path in sorted((run_directory / STEPS_FOLDER).glob("rank*.jsonl"), key=lambda path: (len(path.name), path)):
        match = _STEP_FILE.fullmatch(path.name)
        if match is None:
            continue
        steps = told.setdefault(int(match[1]), [])
        unreadable = 0
        for text in path.read_bytes().split(b"\n")[:-1]:  # behind the last line's end stands what a kill cut short
            step = _step(text)
            if step is None:
                unreadable += 1
            else:
                steps.append(step)
        if unreadable:
            notices.append(
                Notice(
                    "unreadable_lines",
                    f"{path}: {counted(unreadable, 'line is no step and is', 'lines are no step and are')} left out",
                )
            )
    return _latest(told), notices


def _latest(told: dict[int, list[tuple[int, Step]]]) -> list[RankSteps]:
    """Of each rank's steps with their attempts, those that no later attempt of any rank has done again."""
    first: dict[int, int] = {}
    for attempt, step in (entry for steps in told.values() for entry in steps):
        first[attempt] = min(step.index, first.get(attempt, step.index))
    ends, end = {}, math.inf
    for attempt in sorted(first, reverse=True):
        ends[attempt], end = end, min(end, first[attempt])
    ranks = []
    for number, steps in told.items():
        rank = RankSteps(number)
        for attempt, step in steps:
            if step.index < ends[attempt]:
                rank.add(step)
        if rank.steps or not steps:
            ranks.append(rank)
    return ranks


def _step(text: bytes) -> tuple[int, Step] | None:
    """The attempt and the step that a line tells of."""
    try:
        line = msgspec.json.decode(text, type=_StepLine)
        document = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    figures = {name: float(value) for name, value in document.items() if name not in _NOT_FIGURES and is_figure(value)}
    step = Step(
        index=line.index,
        start_ns=line.start_ns,
        end_ns=max(line.start_ns, line.end_ns),
        data_wait_ns=line.data_wait_ns,
        phases=line.phases,
        figures=figures,
        captured=line.captured,
        anomalies=[anomaly if isinstance(anomaly, str) else anomaly.kind for anomaly in line.anomalies],
        non_finite=line.non_finite,
    )
    return line.attempt, step


_TELEMETRY_FILE = re.compile(r"^rank(\d+)\.jsonl$")
MOST_RANKS = 16
"""Ranks wait for each other at every step, so that some of them tell the job's; a thousand files cost minutes."""

WARM_UP_SHARE = 0.1
MOST_WARM_UP_STEPS = 10
"""Steps left out at the beginning: compilation, autotuning, caches that fill."""

_NEAREST_BEFORE = 10
_MOST_AFTER = 100
"""Settled steps that tell what a captured one takes without the profiler. Those before are nothing's but training's;
those after, where the former are too few, are so many that the ones which a trace's writing slows are few."""
_LONG_FROM = 2.0
_FEW_LONG = 0.1
"""Where more than this share of steps takes over twice the lower quartile, steps are not alike: a fault strikes some of
them, or hosts run ahead until something makes them wait. Their median then tells of no step on the device."""


class ParsedStep(NamedTuple):
    """A step, as its rank told of it.

    Attributes:
        attempt, step: which.
        settled_ms: how long it took; None where a capture or its neighbour touches it.
        figures: all that is told.
    """

    attempt: int
    step: int
    settled_ms: float | None
    figures: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class StepTelemetry:
    """What the telemetry of a run tells.

    Attributes:
        step_ms: settled unprofiled steps in order: the median over ranks.
        tokens: median of "tokens" over those steps; None where the loop did not tell it.
        memory_bytes: largest value over ranks and steps of each figure whose name speaks of memory.
    """

    step_ms: list[float] = field(default_factory=list)
    tokens: float | None = None
    memory_bytes: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Pace:
    """What a run's steps tell of those that were captured.

    Attributes:
        data_waits_ns: by rank, how long each settled step of the last attempt waited for its data; empty where nothing
            tells.
        unprofiled_step_ms: what a captured step takes without the profiler: median of settled steps next to the
            capture. None where they are few: what the run says of those before its first capture has to do then.
        is_even: whether these steps are alike; else no other step tells of the captured ones.
    """

    data_waits_ns: dict[int, list[int]]
    unprofiled_step_ms: float | None
    is_even: bool = True


class _TelemetryLine(msgspec.Struct):
    index: int
    start_ns: _Time
    end_ns: _Time
    captured: bool = False
    state: str = "wait"
    attempt: int = 1


def read_step_telemetry(run_directory: Path) -> StepTelemetry:
    """Steps that neither a capture nor its neighbour touches; lines that cannot be read are passed over."""
    by_step: dict[tuple[int, int], list[float]] = defaultdict(list)
    tokens: list[float] = []
    memory: dict[str, float] = {}
    for told in (told for _, path in _some_files(run_directory) for told in _parse_file(path)):
        if told.settled_ms is None:
            continue
        by_step[told.attempt, told.step].append(told.settled_ms)
        tokens += [told.figures["tokens"]] if is_figure(told.figures.get("tokens")) else []
        for name, value in told.figures.items():
            if "memory" in name and is_figure(value):
                memory[name] = max(memory.get(name, 0.0), float(value))
    in_order = [float(np.median(by_step[key])) for key in sorted(by_step)]
    skipped = min(int(len(in_order) * WARM_UP_SHARE), MOST_WARM_UP_STEPS)
    return StepTelemetry(in_order[skipped:], float(np.median(tokens)) if tokens else None, memory)


def read_pace(run_directory: Path, capture: tuple[int, int] | None = None) -> Pace:
    """Lines that cannot be read are passed over.

    Args:
        run_directory: of the run.
        capture: attempt and first step of the captured steps that are asked about.
    """
    waits: dict[int, list[int]] = {}
    beside: list[float] = []
    enough, is_even = 0, True
    for rank, path in _some_files(run_directory):
        steps = _parse_file(path)
        waits |= {rank: waited} if any(waited := _data_waits(steps)) else {}
        near = [] if capture is None else _beside(steps, *capture)
        beside += near
        enough += _NEAREST_BEFORE if near else 0
        is_even = is_even and (len(near) < _NEAREST_BEFORE or _are_alike(near))
    return Pace(waits, float(np.median(beside)) if beside and len(beside) >= enough else None, is_even)


def _are_alike(lengths: Sequence[float]) -> bool:
    long = _LONG_FROM * float(np.quantile(lengths, 0.25))
    return sum(length > long for length in lengths) <= _FEW_LONG * len(lengths)


def _data_waits(steps: Sequence[ParsedStep]) -> list[int]:
    settled = [step for step in steps if step.settled_ms is not None]
    told = [step.figures.get("data_wait_ns") for step in settled if step.attempt == settled[-1].attempt]
    return [wait if isinstance(wait, int) else 0 for wait in told]


def _beside(steps: Sequence[ParsedStep], attempt: int, first_step: int) -> list[float]:
    """The settled steps, in ms, next to the capture that begins with this step; empty where it is not told of."""
    own = [step for step in steps if step.attempt == attempt]
    first = next((place for place, step in enumerate(own) if step.step == first_step), None)
    if first is None or not own[first].figures.get("captured"):
        return []
    before = [step.settled_ms for step in own[:first] if step.settled_ms is not None][-_NEAREST_BEFORE:]
    if len(before) == _NEAREST_BEFORE:
        return before
    return before + [step.settled_ms for step in own[first:] if step.settled_ms is not None][:_MOST_AFTER]


def ranks_without_steps(run_directory: Path) -> list[int]:
    """Ranks that began a file and left no line in it, where others left some: they were killed before their first."""
    sizes = {}
    for rank, path in _files_by_rank(run_directory):
        with suppress(OSError):
            sizes[rank] = path.stat().st_size
    return [rank for rank, size in sizes.items() if not size] if any(sizes.values()) else []


def _files_by_rank(run_directory: Path) -> list[tuple[int, Path]]:
    try:
        files = (run_directory / STEPS_FOLDER).iterdir()
        return sorted((int(match[1]), path) for path in files if (match := _TELEMETRY_FILE.search(path.name)))
    except OSError:
        return []


def _some_files(run_directory: Path) -> list[tuple[int, Path]]:
    """Some ranks' files, spread evenly."""
    found = _files_by_rank(run_directory)
    return found if len(found) <= MOST_RANKS else [found[at * len(found) // MOST_RANKS] for at in range(MOST_RANKS)]


def _parse_file(path: Path) -> list[ParsedStep]:
    """Where the index falls back, another attempt begins too."""
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError:
        return []
    told = []
    attempt, last_index, previous = 1, -1, "none"
    for text in lines:
        try:
            line = msgspec.json.decode(text, type=_TelemetryLine)
            figures = msgspec.json.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue  # the last line of a killed job
        before, attempt = attempt, max(attempt + (line.index <= last_index), line.attempt)
        if attempt > before:
            previous = "none"
        is_quiet = line.state == "wait" and not line.captured
        is_settled = is_quiet and previous == "wait" and line.end_ns > line.start_ns
        milliseconds = (line.end_ns - line.start_ns) / 1e6 if is_settled else None
        told.append(ParsedStep(attempt, line.index, milliseconds, figures))
        last_index, previous = line.index, line.state
    return told


_STUCK_FILES = "rank*.stuck.json"
_MOST_STUCK_RANKS = 1000
_LARGEST_BYTES = 1 << 24
_LONGEST_WORDS = 80
_FINISHED = "finished"


class _StuckState(msgspec.Struct):
    rank: Annotated[int, msgspec.Meta(ge=0)]
    step: Annotated[int, msgspec.Meta(ge=0)]
    began_ns: int
    where: str
    is_still: bool = True
    ended_ns: int | None = None


def stuck_steps(run_directory: Path, manifest: RunManifest | None) -> list[Notice]:
    """One notice a place: 'rank 3 stuck in step 412, in all_reduce'; none of attempts before the last."""
    attempt = manifest.attempts[-1] if manifest is not None and manifest.attempts else None
    if attempt is not None and attempt.ended == _FINISHED:
        return []
    since_ns = 0 if attempt is None else attempt.start_ns
    ranks: dict[tuple[bool, int, str], list[int]] = defaultdict(list)
    for path in sorted((run_directory / FLIGHT_FOLDER).glob(_STUCK_FILES))[:_MOST_STUCK_RANKS]:
        with suppress(OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            with path.open("rb") as file:
                state = msgspec.json.decode(file.read(_LARGEST_BYTES), type=_StuckState)
            if state.ended_ns is None and state.began_ns >= since_ns:
                ranks[state.is_still, state.step, _printable(state.where)].append(state.rank)
    return [
        Notice("stuck_step", f"{ranks_words(of)} {_how(is_still)} in step {step}, in {where}; see {FLIGHT_FOLDER}/")
        for (is_still, step, where), of in ranks.items()
    ]


def _how(is_still: bool) -> str:
    return "stuck" if is_still else "at work while others were stuck"


def _printable(words: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in words[:_LONGEST_WORDS])
