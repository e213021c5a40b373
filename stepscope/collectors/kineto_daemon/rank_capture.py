"""How far is one process with a trace that it was asked for? Told by its polls and by the file alone.

    held -> sent -> running -> written -> read
             ^ |        |
             +-+--------+   refused, or left for the script's own profiler: it is asked again

libkineto confirms nothing. A poll that would take a request, after one that was given, and without a file, says that it
was refused: the process has taken no optimizer step yet. It may also wait for its next multiple of steps; then asking
again does nothing ("another profile request is pending").
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from stepscope.collectors.kineto_daemon.registry import KinetoProcess
from stepscope.collectors.kineto_daemon.verification import TraceSummary

PROFILING = "a profiler is at work in it: torch.profiler of its script, or another's capture"
NO_STEP_YET = (
    "it has not begun yet: it takes no steps of a torch.optim optimizer, or few in the 5 s until it asks again"
)
ENDED = "the process ended before its trace was whole"
LOST = "it traced, and no file has come: its disk is full, or its own torch.profiler ends each trace"
_MOST_LOST = 2
_AHEAD_SECONDS = 1.0


class Stage(StrEnum):
    """How far it is."""

    HELD = "held"
    SENT = "sent"
    RUNNING = "running"
    WRITTEN = "written"
    READ = "read"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class Sight:
    """What is known of a process now.

    Attributes:
        process: None when it is gone.
        delivered_at_poll: which of its polls got the request of this attempt, the latest; None before.
        is_written: the trace of this attempt has appeared, looked for after the process was.
    """

    process: KinetoProcess | None
    delivered_at_poll: int | None
    is_written: bool


class RankCapture:
    """One process's part in an attempt.

    Attributes:
        stage: how far it is.
        reason: why it is no further; empty while it goes on by itself.
        num_refusals: polls after a request that say that it was not taken.
        wants_request: it should get the request at its next poll.
        summary: of the trace, once read.
    """

    def __init__(self) -> None:
        self.stage = Stage.HELD
        self.reason = ""
        self.num_refusals = 0
        self.wants_request = False
        self.summary: TraceSummary | None = None
        self._delivered_at: int | None = None
        self._judged_poll = 0
        self._num_lost = 0

    def look(self, sight: Sight, now: float) -> None:
        """Judge what is seen at `now`, monotonic seconds."""
        if self.stage in (Stage.WRITTEN, Stage.READ, Stage.ENDED):
            return
        self.wants_request = False
        process, delivered = sight.process, sight.delivered_at_poll
        if delivered is not None and sight.is_written:
            self._become(Stage.WRITTEN)
        elif process is None:
            self._become(Stage.ENDED, ENDED)
        elif delivered is None:
            self._become(Stage.HELD, "" if process.accepts else PROFILING)
            self.wants_request = process.accepts
        else:
            self._judge(process, delivered)
            # It is laid out again just before the next poll: by then a trace of few steps would be there.
            is_near = process.num_polls > delivered or now > process.next_poll - _AHEAD_SECONDS
            self.wants_request = self.stage is Stage.SENT and is_near

    def read(self, summary: TraceSummary) -> None:
        """Its trace has been read."""
        self.summary = summary
        self._become(Stage.READ)

    def _judge(self, process: KinetoProcess, delivered: int) -> None:
        """What the polls say since the request was handed over first."""
        if self._delivered_at is None:
            self._become(Stage.SENT)
        elif delivered > self._delivered_at:
            self._note_refusal()  # a process takes a second request only where it has none under way
        elif process.num_polls > max(delivered, self._judged_poll):
            self._judged_poll = process.num_polls
            if process.accepts:
                self._note_refusal()
            else:
                self._become(Stage.RUNNING)
        self._delivered_at = delivered

    def _note_refusal(self) -> None:
        if self.stage is Stage.SENT:
            self.num_refusals += 1
            self._become(Stage.SENT, NO_STEP_YET)
            return
        self._num_lost += 1
        if self._num_lost == _MOST_LOST:
            self._become(Stage.ENDED, LOST)
        else:
            self._become(Stage.SENT, PROFILING)

    def _become(self, stage: Stage, reason: str = "") -> None:
        self.stage, self.reason = stage, reason
