"""Live verdict of a running job: its latest steps judged every so many seconds, kept as verdict.json of the run."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from stepscope.core.documents.analysis import Analysis
from stepscope.core.documents.run_directory import LIVE_VERDICT_FILE, STEPS_FOLDER
from stepscope.core.protocol.verdicts import (
    MAX_RANKS,
    MAX_REASONS,
    MAX_SUMMARY,
    LiveVerdict,
    live_verdict_document,
)
from stepscope.store.files import write_whole
from stepscope.workflow.analyze import RecentSteps, analyze
from stepscope.workflow.fan_out.engine import FanOut

_MAX_CPU_SHARE = 0.05
"""Of one core: what a turn took more is made up for by a longer wait."""
_LONGEST_WAIT_SECONDS = 3600.0
_IN_THIS_PROCESS = FanOut(num_workers=1)


def live_verdict(run_directory: Path, seconds: float) -> LiveVerdict:
    """Verdict of a running job on its steps of the last `seconds`, with what its captures show. Saves nothing.

    Raises:
        DataError: the run has neither steps nor traces yet, or they cannot be read.
    """
    result = analyze([str(run_directory)], keep=False, recent=RecentSteps(seconds), fan_out=_IN_THIS_PROCESS)
    return live_verdict_of(result.analysis, run_directory.name, time.time_ns())


def live_verdict_of(analysis: Analysis, run: str, now_ns: int) -> LiveVerdict:
    """The live verdict that an analysis gives."""
    verdict, job_time = analysis.verdict, analysis.job_time
    summary = "".join(letter if letter.isprintable() else " " for letter in verdict.summary)
    return LiveVerdict(
        run=run,
        time_ns=now_ns,
        cause=verdict.cause.value,
        confidence=min(max(verdict.confidence, 0.0), 1.0),
        summary=summary[:MAX_SUMMARY],
        reasons=tuple(reason.value for reason in verdict.reasons[:MAX_REASONS]),
        ranks=tuple(verdict.ranks[:MAX_RANKS]),
        bottleneck=verdict.bottleneck,
        share=None if verdict.share is None else min(max(verdict.share, 0.0), 1.0),
        step_ms=None if job_time is None else job_time.mean_step_ms,
        fixed_step_ms=None if verdict.fix is None else verdict.fix.step_ms,
        num_steps=None if job_time is None else job_time.num_steps,
    )


class LiveVerdictLoop:
    """Writes the live verdict of a run every so many seconds, when there are new steps.

    A turn that takes much processor time, or fails, makes the next one wait longer.
    """

    def __init__(
        self, run_directory: Path, seconds: float, *, cpu_seconds: Callable[[], float] = time.process_time
    ) -> None:
        self._run_directory = run_directory
        self._seconds = seconds
        self._cpu_seconds = cpu_seconds
        self._num_failed = 0
        self._judged_bytes = 0

    def turn(self) -> float:
        """Write a verdict where there are new steps; returns the seconds until the next turn."""
        num_bytes = self._step_bytes()
        if num_bytes == self._judged_bytes:
            return self._seconds
        self._judged_bytes = num_bytes
        began = self._cpu_seconds()
        try:
            document = live_verdict_document(live_verdict(self._run_directory, self._seconds))
            write_whole(self._run_directory / LIVE_VERDICT_FILE, json.dumps(document).encode() + b"\n")
            self._num_failed = 0
        except Exception:  # the process's edge: tried again later
            self._num_failed += 1
        wait = max(self._seconds * 2.0**self._num_failed, (self._cpu_seconds() - began) / _MAX_CPU_SHARE)
        return min(wait, _LONGEST_WAIT_SECONDS)

    def _step_bytes(self) -> int:
        total = 0
        with suppress(OSError):
            for entry in os.scandir(self._run_directory / STEPS_FOLDER):
                total += entry.stat().st_size
        return total
