"""Reduction of this rank's traces to views by a process beside it: `profile(reduce="view")`.

A whole trace is queued; the background loop starts `stepscope.workflow.reduction_process` for what is queued, one at a
time. Training waits for none: what is not over when training ends goes on by itself for some minutes. Where a process
cannot do its work the traces stay as they are.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from stepscope.core.documents.run_directory import KeepTraces
from stepscope.training.captures.schedule import captures_on_this_rank
from stepscope.training.run.context import RunContext
from stepscope.training.run.side_process import SideProcess

logger = logging.getLogger(__name__)

REDUCE_VARIABLE = "STEPSCOPE_REDUCE"
KEEP_TRACES_VARIABLE = "STEPSCOPE_KEEP_TRACES"
_VIEW, _OFF = "view", "off"
_MOST_SECONDS = 1800.0
"""A process that had no processor to itself for so long will not have one."""


def parse_reduction(reduce: str | None, keep_traces: str | None) -> KeepTraces | None:
    """Which traces stay once views stand for them; None where traces are not reduced.

    Args:
        reduce: "view" or "off"; None is "off".
        keep_traces: as in KeepTraces; None is "outliers".

    Raises:
        ValueError: one is another.
    """
    if reduce not in (None, _VIEW, _OFF):
        raise ValueError(f'reduce is "{_VIEW}" or "{_OFF}", not {reduce!r}')
    if keep_traces is not None and keep_traces not in tuple(KeepTraces):
        raise ValueError(f"keep_traces is {', '.join(map(repr, map(str, KeepTraces)))}, not {keep_traces!r}")
    if reduce != _VIEW:
        if keep_traces in (None, KeepTraces.ALL):
            return None
        raise ValueError(f'keep_traces={str(keep_traces)!r} removes traces, for which reduce="view" must be given')
    return KeepTraces(keep_traces or KeepTraces.OUTLIERS)


class TraceReduction:
    """Background task of a rank whose traces are reduced to views.

    Args:
        rank: of this process.
        ranks: those that take scheduled captures.
    """

    def __init__(self, rank: int, ranks: Iterable[int], keep: KeepTraces) -> None:
        self._rank = rank
        self._ranks = json.dumps(_runs_of(ranks))
        self._keep = keep
        self._queue: deque[tuple[Path, KeepTraces]] = deque()
        self._process: SideProcess | None = None
        self._kill_at = 0.0
        self._reported: set[str] = set()

    def trace_written(self, trace: Path, *, is_requested: bool) -> None:
        """Queue a trace that is whole; one that was requested gets its view and stays. On any thread."""
        self._queue.append((trace, KeepTraces.ALL if is_requested else self._keep))

    def run_task(self) -> None:
        """About once a second, in the background."""
        if self._process is not None:
            self._look_after(self._process)
        if self._process is None and self._queue:
            self._start()

    def close(self) -> None:
        """Start what is left, and let it go on by itself; after the background loop has stopped."""
        while self._queue:
            self._leave()
            self._start()
        self._leave()

    def _start(self) -> None:
        """A process for the first traces in the queue of which the same stay."""
        keep, traces = self._queue[0][1], []
        while self._queue and self._queue[0][1] is keep:
            traces.append(str(self._queue.popleft()[0]))
        arguments = (str(os.getpid()), str(self._rank), self._ranks, str(keep), *traces)
        try:
            self._process = SideProcess("stepscope.workflow.reduction_process", *arguments, answers=True)
            self._kill_at = time.monotonic() + _MOST_SECONDS
        except (OSError, RuntimeError) as error:
            self._report(f"no process can be started ({error})")

    def _look_after(self, process: SideProcess) -> None:
        exit_code = process.exit_code
        if exit_code is None:
            if time.monotonic() > self._kill_at:
                self._process = None
                process.kill()
                self._report(f"its process had not ended after {_MOST_SECONDS / 60:.0f} minutes")
            return
        self._process, answer = None, process.answer()
        if exit_code:
            words = f"was killed by {_signal_name(-exit_code)}" if exit_code < 0 else f"ended with status {exit_code}"
            self._report(answer.partition("\n")[0] or f"its process {words}")

    def _leave(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.leave()

    def _report(self, reason: str) -> None:
        """Log once why a trace stays."""
        if reason not in self._reported:
            self._reported.add(reason)
            logger.warning("a trace is not reduced to its view and stays: %s", reason)


def trace_reduction(context: RunContext) -> TraceReduction | None:
    """The task of this rank, by the arguments of `profile()`, else by the environment; None where it has none."""
    settings, identity = context.settings, context.identity
    try:
        keep = parse_reduction(
            settings.reduce or os.environ.get(REDUCE_VARIABLE) or None,
            settings.keep_traces or os.environ.get(KEEP_TRACES_VARIABLE) or None,
        )
    except ValueError as error:
        logger.warning("stepscope measures and keeps all traces: %s", error)
        return None
    if keep is None:
        return None
    others = (replace(identity, rank=rank) for rank in range(identity.world_size))
    ranks = [other.rank for other in others if captures_on_this_rank(settings.ranks, other)]
    return TraceReduction(identity.rank, ranks, keep)


def _runs_of(ranks: Iterable[int]) -> Sequence[list[int]]:
    """First and last of each run of ranks, which are ascending."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return runs


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
