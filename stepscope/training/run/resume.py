"""Resuming a run: number of this attempt and of its first step, the same on all ranks.

Rank 0's step file decides, as a kill leaves the ranks' files some steps apart. Ranks that share a store get the answer
from rank 0. Others read rank 0's file and ignore what is newer than their own process: rank 0 may have begun already.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepscope.core.documents.run_directory import steps_path
from stepscope.training.run.identity import Identity, agree_with_rank_zero, job_store, process_start
from stepscope.training.run.run_files import read_attempts

logger = logging.getLogger(__name__)

_TAIL_BYTES = 1 << 16
_END_OF_TIME_NS = 1 << 63


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """Attempts are counted from 1, steps from 0."""

    attempt: int = 1
    first_step: int = 0


def resume_point(
    run_directory: Path, identity: Identity, first_step: int | None, *, own_lines: Iterable[bytes], turn: int
) -> ResumePoint:
    """What this attempt of the run goes on with.

    Args:
        own_lines: the last of this rank's file; opened once more, the file would be locked no longer.
        first_step: given by the caller, as by one that has loaded a checkpoint; None numbers on.
        turn: how often this process has asked before; ranks ask equally often.
    """
    if identity.rank == 0:
        found = _resume_point_after(run_directory, own_lines, _END_OF_TIME_NS)
    else:
        found = _resume_point_after(run_directory, _last_lines(run_directory / steps_path(0)), _process_start_ns())
        if found == ResumePoint():  # nothing, or what this very process has written in a profile before
            found = _resume_point_after(run_directory, own_lines, _END_OF_TIME_NS)
    found = found if first_step is None else ResumePoint(found.attempt, first_step)
    store = job_store() if identity.world_size > 1 else None
    if store is None or (found == ResumePoint() and identity.rank != 0):
        return found
    return _agreed(store, f"stepscope/continuation/{run_directory.name}/{turn}", identity, found)


def _agreed(store: Any, key: str, identity: Identity, own: ResumePoint) -> ResumePoint:
    try:
        agreed = agree_with_rank_zero(store, key, f"{own.attempt} {own.first_step}", identity)
        attempt, first_step = agreed.split()
        return ResumePoint(int(attempt), int(first_step))
    except (RuntimeError, ValueError) as error:  # torch's store errors are RuntimeErrors
        logger.warning("rank 0 has not sent the number of the first step; call profile() on all ranks: %s", error)
        return own


def _resume_point_after(run_directory: Path, lines: Iterable[bytes], before_ns: int) -> ResumePoint:
    """After what was there before a time, ns since the epoch."""
    attempt = 1 + sum(attempt.start_ns < before_ns for attempt in read_attempts(run_directory))
    for line in reversed(list(lines)):
        try:
            step = json.loads(line)
            if step["end_ns"] < before_ns:
                return ResumePoint(max(attempt, int(step.get("attempt", 1)) + 1), max(int(step["index"]) + 1, 0))
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
            continue  # no step
    return ResumePoint(attempt, 0)


def _last_lines(path: Path) -> list[bytes]:
    try:
        with path.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(file.tell() - _TAIL_BYTES, 0))
            return file.read().split(b"\n")
    except OSError:
        return []


def _process_start_ns() -> int:
    """When this process began, ns since the epoch."""
    ticks = process_start(os.getpid())
    if ticks is None:
        return 0
    age_seconds = time.clock_gettime(time.CLOCK_BOOTTIME) - int(ticks) / os.sysconf("SC_CLK_TCK")
    return time.time_ns() - int(age_seconds * 1e9)
