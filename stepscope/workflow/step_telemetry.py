"""How long were a run's steps outside of captures? From steps/rank{r}.jsonl, written at every step of training."""

from __future__ import annotations

import re
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np

from stepscope.core.run_layout import STEPS_FOLDER
from stepscope.store.documents import is_figure

_NAME = re.compile(r"^rank(\d+)\.jsonl$")
MOST_RANKS = 16
"""Ranks wait for each other at every step, so that some of them tell the job's; a thousand files cost minutes."""

WARM_UP_SHARE = 0.1
MOST_WARM_UP_STEPS = 10
"""Steps left out at the beginning: compilation, autotuning, caches that fill."""


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


_Time = Annotated[int, msgspec.Meta(ge=0, le=2**62)]


class _Line(msgspec.Struct):
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
    for path in _files(run_directory):
        for key, milliseconds, figures in _settled(path):
            by_step[key].append(milliseconds)
            tokens += [figures["tokens"]] if is_figure(figures.get("tokens")) else []
            for name, value in figures.items():
                if "memory" in name and is_figure(value):
                    memory[name] = max(memory.get(name, 0.0), float(value))
    steps = [float(np.median(by_step[key])) for key in sorted(by_step)]
    skipped = min(int(len(steps) * WARM_UP_SHARE), MOST_WARM_UP_STEPS)
    return StepTelemetry(steps[skipped:], float(np.median(tokens)) if tokens else None, memory)


def read_data_waits(run_directory: Path) -> dict[int, list[int]]:
    """By rank, how long each settled step of the last attempt waited for its data, ns; empty where nothing tells."""
    waits = {}
    for path in _files(run_directory):
        settled = _settled(path)
        last_attempt = settled[-1][0][0] if settled else 0
        told = [figures.get("data_wait_ns") for (attempt, _), _, figures in settled if attempt == last_attempt]
        if any(isinstance(wait, int) and wait for wait in told):
            waits[int(path.stem.removeprefix("rank"))] = [wait if isinstance(wait, int) else 0 for wait in told]
    return waits


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
        return sorted((int(match[1]), path) for path in files if (match := _NAME.search(path.name)))
    except OSError:
        return []


def _files(run_directory: Path) -> list[Path]:
    """Some ranks' files, spread evenly."""
    paths = [path for _, path in _files_by_rank(run_directory)]
    return paths if len(paths) <= MOST_RANKS else [paths[i * len(paths) // MOST_RANKS] for i in range(MOST_RANKS)]


def _settled(path: Path) -> list[tuple[tuple[int, int], float, dict[str, Any]]]:
    """((attempt, step), ms, figures) of each settled step. Where the index falls back, another attempt begins too."""
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError:
        return []
    settled = []
    attempt, last_index, previous = 1, -1, "none"
    for text in lines:
        try:
            line = msgspec.json.decode(text, type=_Line)
            figures = msgspec.json.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue  # the last line of a killed job
        before, attempt = attempt, max(attempt + (line.index <= last_index), line.attempt)
        if attempt > before:
            previous = "none"
        is_quiet = line.state == "wait" and not line.captured
        if is_quiet and previous == "wait" and line.end_ns > line.start_ns:
            settled.append(((attempt, line.index), (line.end_ns - line.start_ns) / 1e6, figures))
        last_index, previous = line.index, line.state
    return settled
