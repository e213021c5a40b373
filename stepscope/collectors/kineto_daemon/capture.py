"""Capture by libkineto: decides when to ask the processes of a node, so that all trace the same N steps.

Pure: time is an argument.

An attempt asks all processes at once. Its traces are read; where one does not hold what was requested, or ranks did not
start together, all are asked again, with the duration of a step that the traces showed.

State of one process (`RankAttempt`), known from its polls and its file alone, as libkineto confirms nothing:

    held -> sent -> running -> written -> read
             ^ |        |
             +-+--------+   refused, or given up for the script's own profiler: it is asked again

A poll that would take a request, after one that was given and without a file, means a refusal: the process has taken no
optimizer step yet. It may also wait for its next multiple of steps; then asking again does nothing ("another profile
request is pending").

Alignment of the start: each rank asks every 5 s by its own clock, and starts at the next multiple of M of its own count
of steps. All start at the same step when no multiple falls between the first rank's question and the last one's. So the
request is set in the longest pause between questions, and M is large against the time that the questions then take. The
length of a step is unknown beforehand; the first attempt's traces show it, and whether ranks did start together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import ceil

from stepscope.collectors.kineto_daemon.processes import POLL_SECONDS, KinetoProcess
from stepscope.collectors.kineto_daemon.protocol import KinetoTraceSummary, kineto_trace_fault
from stepscope.core.protocol.captures import CaptureProgress, CaptureState
from stepscope.core.text.numbers import counted

_MAX_ATTEMPTS = 4
_PATIENCE_SECONDS = 120.0
_RUNNING_SECONDS = 600.0
_SLACK_SECONDS = 0.3
_NUM_REFUSALS_OF_IDLERS = 2
_IDLE_SECONDS = 2 * POLL_SECONDS
_MAX_LOST = 2
_AHEAD_SECONDS = 1.0

_FIRST_MULTIPLE = 8
_MAX_MULTIPLE = 1 << 16
_SHARE_OF_A_WINDOW = 0.1
"""Share of the time between two multiples that the polls may take, so the chance that ranks start apart; half of it at
each further attempt."""

IDLE = "it takes no steps of a torch.optim optimizer while others do: a launcher, or a data loader's worker"
PROFILING = "a profiler is at work in it: torch.profiler of its script, or another's capture"
NO_STEP_YET = (
    "it has not begun yet: it takes no steps of a torch.optim optimizer, or few in the 5 s until it asks again"
)
ENDED = "the process ended before its trace was whole"
LOST = "it traced, and no file has come: its disk is full, or its own torch.profiler ends each trace"


@dataclass(frozen=True, slots=True)
class Offer:
    """Set libkineto's request for the next poll; `attempt` counts from 1, `start_multiple` see `TraceRequest`."""

    key: str
    attempt: int
    start_multiple: int


@dataclass(frozen=True, slots=True)
class Withdraw:
    """Remove the libkineto request for this process."""

    key: str


@dataclass(frozen=True, slots=True)
class Take:
    """Read the trace that libkineto wrote in this process, and report it to `KinetoCapture.taken`."""

    key: str
    attempt: int


Action = Offer | Withdraw | Take


class KinetoCapture:
    """One capture of some processes by libkineto."""

    def __init__(self, keys: Sequence[str], *, num_steps: int, begin: float, until: float | None = None) -> None:
        """Not asked before `begin`, given up after `until` (monotonic seconds; None: two minutes)."""
        self._num_steps = num_steps
        self._begin = begin
        self._until = begin + _PATIENCE_SECONDS if until is None else until
        self._has_deadline = until is not None
        self._attempt = 1
        self._multiple: int | None = None
        self._step_seconds: float | None = None
        self._ranks = {key: RankAttempt() for key in keys}
        self._first_read: float | None = None
        self._progress: dict[str, CaptureProgress] = {}
        self._changes: list[tuple[str, CaptureProgress]] = []
        for key in keys:
            self._set_progress(key, CaptureProgress(CaptureState.ACCEPTED))

    @property
    def attempt(self) -> int:
        return self._attempt

    @property
    def is_over(self) -> bool:
        return not self._ranks

    def summaries(self) -> Mapping[str, KinetoTraceSummary]:
        """Summaries of this attempt's traces that were read, by key."""
        return {key: rank.summary for key, rank in self._ranks.items() if rank.summary is not None}

    def take_changes(self) -> list[tuple[str, CaptureProgress]]:
        """New progress by key since the last call, the oldest first.

        Accepted, again whenever the reason changes; then started; then a final state.
        """
        changes, self._changes = self._changes, []
        return changes

    def step(self, views: Mapping[str, ProcessView], now: float) -> list[Action]:
        """The actions that are due at `now`, given the present views of the processes."""
        before = {key: rank.stage for key, rank in self._ranks.items()}
        for key, rank in self._ranks.items():
            rank.look(views[key], now)
        actions: list[Action] = [
            Take(key, self._attempt)
            for key, rank in self._ranks.items()
            if rank.stage is KinetoStage.WRITTEN and before[key] is not KinetoStage.WRITTEN
        ]
        actions += [Withdraw(take.key) for take in actions if isinstance(take, Take)]
        self._report_stages()
        actions += self._drop_ended()
        actions += self._drop_idlers(now)
        actions += self._judge()
        actions += self._give_up(now)
        actions += self._offers(views, now)
        return actions

    def taken(self, key: str, summary: KinetoTraceSummary) -> None:
        """Store the summary of a trace that was read."""
        if key in self._ranks:
            self._ranks[key].read(summary)

    def not_taken(self, key: str, reason: str) -> None:
        """Fail a process whose trace cannot be read or kept."""
        self._end(key, CaptureProgress(CaptureState.FAILED, reason))

    def cancel(self) -> list[Action]:
        """Cancel it. A process that traces already does so to the end; its trace is dropped."""
        return list(self._end_all(CaptureState.CANCELLED, "as asked"))

    def _offers(self, views: Mapping[str, ProcessView], now: float) -> Iterator[Action]:
        wanting = [key for key, rank in self._ranks.items() if rank.wants_request]
        if not wanting or now < self._begin:
            return
        if self._multiple is None:
            if len(wanting) < len(self._ranks):
                return
            processes = [process for key in wanting if (process := views[key].process) is not None]
            polls, interval = [one.next_poll for one in processes], max(one.interval for one in processes)
            if not is_time_to_offer(polls, interval, _SLACK_SECONDS):
                return
            num_failed = max(0, self._attempt - 2)
            self._multiple = start_multiple(len(wanting), poll_spread(polls, interval), self._step_seconds, num_failed)
        yield from (Offer(key, self._attempt, self._multiple) for key in wanting)

    def _drop_ended(self) -> Iterator[Action]:
        for key, rank in list(self._ranks.items()):
            if rank.stage is KinetoStage.ENDED:
                self._end(key, CaptureProgress(CaptureState.FAILED, rank.reason))
                yield Withdraw(key)

    def _drop_idlers(self, now: float) -> Iterator[Action]:
        """Drop processes that keep refusing although others' traces are read: they are not trainers.

        A trainer that waits for its next multiple of steps looks alike; so that much time passes first.
        """
        others = [key for key, rank in self._ranks.items() if rank.stage is not KinetoStage.READ]
        if len(others) == len(self._ranks):
            self._first_read = None
            return
        self._first_read = now if self._first_read is None else self._first_read
        lengths = [one.step_seconds or 0.0 for one in self.summaries().values()]
        one_more = ((self._multiple or 1) + self._num_steps) * max(lengths)
        if now - self._first_read < one_more + _IDLE_SECONDS:
            return
        if all(self._ranks[key].num_refusals >= _NUM_REFUSALS_OF_IDLERS for key in others):
            for key in others:
                self._end(key, CaptureProgress(CaptureState.REFUSED, IDLE))
                yield Withdraw(key)

    def _judge(self) -> Iterator[Action]:
        """Once all traces of the attempt are read: finish, or begin the next attempt if one is wrong."""
        summaries = self.summaries()
        if not summaries or len(summaries) < len(self._ranks):
            return
        wrong = {key: fault for key, one in summaries.items() if (fault := kineto_trace_fault(one, self._num_steps))}
        if not wrong:
            lengths = [one.step_seconds for one in summaries.values() if one.step_seconds]
            self._step_seconds = min(lengths) if lengths else self._step_seconds
            starts_ns = {key: one.step_ends_ns[0] for key, one in summaries.items()}
            apart = steps_apart(starts_ns, self._step_seconds) if self._step_seconds else 0
            if not apart:
                yield from self._end_all(CaptureState.DONE)
                return
            wrong = dict.fromkeys(summaries, f"the ranks' traces begin {counted(apart, 'step')} apart")
        if self._attempt == _MAX_ATTEMPTS:
            for key in list(self._ranks):
                fault = wrong.get(key, "another rank's trace is not what was requested")
                self._end(key, CaptureProgress(CaptureState.FAILED, f"{fault}, {self._attempt} times"))
            return
        self._attempt += 1
        self._multiple = None
        self._ranks = {key: RankAttempt() for key in self._ranks}

    def _give_up(self, now: float) -> Iterator[Action]:
        running = any(rank.stage in (KinetoStage.RUNNING, KinetoStage.WRITTEN) for rank in self._ranks.values())
        limit = self._until + (_RUNNING_SECONDS if running and not self._has_deadline else 0.0)
        if now <= limit:
            return
        for key, rank in list(self._ranks.items()):
            waits = "it has not been asked yet" if rank.stage is KinetoStage.HELD else "no trace has appeared"
            self._end(key, CaptureProgress(CaptureState.FAILED, f"given up: {rank.reason or waits}"))
            yield Withdraw(key)

    def _end_all(self, state: CaptureState, reason: str | None = None) -> Iterator[Action]:
        for key in list(self._ranks):
            self._end(key, CaptureProgress(state, reason))
            yield Withdraw(key)

    def _end(self, key: str, progress: CaptureProgress) -> None:
        if self._ranks.pop(key, None) is not None:
            self._set_progress(key, progress)

    def _report_stages(self) -> None:
        for key, rank in self._ranks.items():
            if rank.stage in (KinetoStage.RUNNING, KinetoStage.WRITTEN):
                self._set_progress(key, CaptureProgress(CaptureState.STARTED))
            elif rank.stage in (KinetoStage.HELD, KinetoStage.SENT) and rank.reason:
                self._set_progress(key, CaptureProgress(CaptureState.ACCEPTED, rank.reason))

    def _set_progress(self, key: str, progress: CaptureProgress) -> None:
        if self._progress.get(key) != progress:
            self._progress[key] = progress
            self._changes.append((key, progress))


class KinetoStage(StrEnum):
    """Stage of a process's part in an attempt of a libkineto capture; see the module's diagram."""

    HELD = "held"
    SENT = "sent"
    RUNNING = "running"
    WRITTEN = "written"
    READ = "read"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class ProcessView:
    """Present state of a process in a libkineto capture, as polls and files show it.

    Attributes:
        delivered_at_poll: which of its polls got the request of this attempt, the latest; None before.
        is_written: the trace of this attempt has appeared, looked for after the process was.
    """

    process: KinetoProcess | None
    delivered_at_poll: int | None
    is_written: bool


class RankAttempt:
    """One process's part in an attempt of a libkineto capture.

    Attributes:
        reason: why it is no further; empty while it goes on by itself.
        num_refusals: polls after a request that show that it was not taken.
        wants_request: it should get the request at its next poll.
    """

    def __init__(self) -> None:
        self.stage = KinetoStage.HELD
        self.reason = ""
        self.num_refusals = 0
        self.wants_request = False
        self.summary: KinetoTraceSummary | None = None
        self._delivered_at: int | None = None
        self._judged_poll = 0
        self._num_lost = 0

    def look(self, view: ProcessView, now: float) -> None:
        """Update the stage at `now`, monotonic seconds."""
        if self.stage in (KinetoStage.WRITTEN, KinetoStage.READ, KinetoStage.ENDED):
            return
        self.wants_request = False
        process, delivered = view.process, view.delivered_at_poll
        if delivered is not None and view.is_written:
            self._become(KinetoStage.WRITTEN)
        elif process is None:
            self._become(KinetoStage.ENDED, ENDED)
        elif delivered is None:
            self._become(KinetoStage.HELD, "" if process.accepts else PROFILING)
            self.wants_request = process.accepts
        else:
            self._judge(process, delivered)
            # It is set again just before the next poll: by then a trace of few steps would be there.
            is_near = process.num_polls > delivered or now > process.next_poll - _AHEAD_SECONDS
            self.wants_request = self.stage is KinetoStage.SENT and is_near

    def read(self, summary: KinetoTraceSummary) -> None:
        self.summary = summary
        self._become(KinetoStage.READ)

    def _judge(self, process: KinetoProcess, delivered: int) -> None:
        """Update the stage by the polls since the request was first delivered."""
        if self._delivered_at is None:
            self._become(KinetoStage.SENT)
        elif delivered > self._delivered_at:
            self._note_refusal()  # a process takes a second request only where it has none under way
        elif process.num_polls > max(delivered, self._judged_poll):
            self._judged_poll = process.num_polls
            if process.accepts:
                self._note_refusal()
            else:
                self._become(KinetoStage.RUNNING)
        self._delivered_at = delivered

    def _note_refusal(self) -> None:
        if self.stage is KinetoStage.SENT:
            self.num_refusals += 1
            self._become(KinetoStage.SENT, NO_STEP_YET)
            return
        self._num_lost += 1
        if self._num_lost == _MAX_LOST:
            self._become(KinetoStage.ENDED, LOST)
        else:
            self._become(KinetoStage.SENT, PROFILING)

    def _become(self, stage: KinetoStage, reason: str = "") -> None:
        self.stage, self.reason = stage, reason


def poll_spread(polls: Sequence[float], interval: float) -> float:
    """Seconds from the first to the last poll of libkineto, when asking begins in the longest pause between them.

    Args:
        polls: time of any poll of each process.
        interval: seconds from one poll of a process to its next.
    """
    phases = sorted(poll % interval for poll in polls)
    pauses = [b - a for a, b in zip(phases, [*phases[1:], phases[0] + interval], strict=True)]
    return interval - max(pauses)


def is_time_to_offer(next_polls: Sequence[float], interval: float, slack: float) -> bool:
    """Whether the next polls of libkineto follow each other as closely as possible, give or take `slack` seconds."""
    return max(next_polls) - min(next_polls) <= poll_spread(next_polls, interval) + slack


def start_multiple(num_ranks: int, spread_seconds: float, step_seconds: float | None, num_failed: int = 0) -> int:
    """Multiple of steps at which libkineto should start ranks: 1 for a rank alone, otherwise a power of two.

    Args:
        spread_seconds: from the first to the last of their polls.
        step_seconds: duration of a step; None while unknown.
        num_failed: attempts in which ranks started apart although it was known.
    """
    if num_ranks == 1:
        return 1
    if not step_seconds:
        return _FIRST_MULTIPLE
    steps = ceil(spread_seconds * 2**num_failed / _SHARE_OF_A_WINDOW / step_seconds)
    return min(max(2, 1 << (steps - 1).bit_length() if steps > 1 else 2), _MAX_MULTIPLE)


def steps_apart(starts_ns: Mapping[str, int], step_seconds: float) -> int:
    """Kineto daemon: steps between the earliest and the latest rank of a libkineto capture.

    0 when all traces are of the same steps.

    Args:
        starts_ns: the same event of each rank's trace, its first step's end, ns by the machine's clock.
    """
    return round((max(starts_ns.values()) - min(starts_ns.values())) / 1e9 / step_seconds)
