"""How do the processes of a node come to traces of the same N steps? Decided from what is seen, time is an argument.

An attempt asks all processes at once. Its traces are read; where one does not hold what was asked for, or ranks did not
start together, all are asked again, with what the traces told of the length of a step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from stepscope.collectors.kineto_daemon.alignment import is_time_to_offer, spread, start_multiple, steps_apart
from stepscope.collectors.kineto_daemon.rank_capture import RankCapture, Sight, Stage
from stepscope.collectors.kineto_daemon.registry import POLL_SECONDS
from stepscope.collectors.kineto_daemon.verification import TraceSummary, what_is_wrong
from stepscope.core.agent_messages import AnswerState
from stepscope.core.counting import counted

_MOST_ATTEMPTS = 4
_PATIENCE_SECONDS = 120.0
_RUNNING_SECONDS = 600.0
_SLACK_SECONDS = 0.3
_NUM_REFUSALS_OF_IDLERS = 2
_IDLE_SECONDS = 2 * POLL_SECONDS

IDLE = "it takes no steps of a torch.optim optimizer while others do: a launcher, or a data loader's worker"


@dataclass(frozen=True, slots=True)
class Offer:
    """Lay out the request for this process's next poll.

    Attributes:
        key: of the process.
        attempt: from 1.
        start_multiple: as in StepsConfig.
    """

    key: str
    attempt: int
    start_multiple: int


@dataclass(frozen=True, slots=True)
class Withdraw:
    """Do not hand the request to this process any more."""

    key: str


@dataclass(frozen=True, slots=True)
class Take:
    """Read this process's trace, and say so to `Capture.taken`."""

    key: str
    attempt: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """What has become of one process's part.

    Attributes:
        key: of the process.
        state: accepted, again whenever the reason changes; then started; then a last one.
        reason: why it is no further, or did not succeed.
    """

    key: str
    state: AnswerState
    reason: str = ""


Action = Offer | Withdraw | Take


class Capture:
    """One request of some processes."""

    def __init__(self, keys: Sequence[str], *, num_steps: int, begin: float, until: float | None = None) -> None:
        """
        Args:
            keys: the processes.
            num_steps: to trace.
            begin: when they may be asked first, monotonic seconds.
            until: when to give up, monotonic seconds; None for a patience of two minutes.
        """
        self._num_steps = num_steps
        self._begin = begin
        self._until = begin + _PATIENCE_SECONDS if until is None else until
        self._has_deadline = until is not None
        self._attempt = 1
        self._multiple: int | None = None
        self._step_seconds: float | None = None
        self._ranks = {key: RankCapture() for key in keys}
        self._first_read: float | None = None
        self._told: dict[str, Outcome] = {}
        self._news: list[Outcome] = []
        for key in keys:
            self._tell(Outcome(key, AnswerState.ACCEPTED))

    @property
    def attempt(self) -> int:
        """Which it is, from 1."""
        return self._attempt

    @property
    def is_over(self) -> bool:
        """Whether nothing will follow."""
        return not self._ranks

    def summaries(self) -> Mapping[str, TraceSummary]:
        """Of this attempt's traces that were read."""
        return {key: rank.summary for key, rank in self._ranks.items() if rank.summary is not None}

    def news(self) -> list[Outcome]:
        """What was not told yet, the oldest first."""
        news, self._news = self._news, []
        return news

    def step(self, sights: Mapping[str, Sight], now: float) -> list[Action]:
        """What to do now, given what is seen of the processes."""
        before = {key: rank.stage for key, rank in self._ranks.items()}
        for key, rank in self._ranks.items():
            rank.look(sights[key], now)
        actions: list[Action] = [
            Take(key, self._attempt)
            for key, rank in self._ranks.items()
            if rank.stage is Stage.WRITTEN and before[key] is not Stage.WRITTEN
        ]
        actions += [Withdraw(take.key) for take in actions if isinstance(take, Take)]
        self._tell_stages()
        actions += self._leave_ended()
        actions += self._leave_idlers(now)
        actions += self._judge()
        actions += self._give_up(now)
        actions += self._offers(sights, now)
        return actions

    def taken(self, key: str, summary: TraceSummary) -> None:
        """A trace was read."""
        if key in self._ranks:
            self._ranks[key].read(summary)

    def not_taken(self, key: str, reason: str) -> None:
        """A trace is there and cannot be read or kept."""
        self._end(key, Outcome(key, AnswerState.FAILED, reason))

    def cancel(self) -> list[Action]:
        """Leave it all. A process that traces already does so to the end; its trace is dropped."""
        return list(self._end_all(AnswerState.CANCELLED, "asked to be left"))

    def _offers(self, sights: Mapping[str, Sight], now: float) -> Iterator[Action]:
        wanting = [key for key, rank in self._ranks.items() if rank.wants_request]
        if not wanting or now < self._begin:
            return
        if self._multiple is None:
            if len(wanting) < len(self._ranks):
                return
            processes = [process for key in wanting if (process := sights[key].process) is not None]
            polls, interval = [one.next_poll for one in processes], max(one.interval for one in processes)
            if not is_time_to_offer(polls, interval, _SLACK_SECONDS):
                return
            num_failed = max(0, self._attempt - 2)
            self._multiple = start_multiple(len(wanting), spread(polls, interval), self._step_seconds, num_failed)
        yield from (Offer(key, self._attempt, self._multiple) for key in wanting)

    def _leave_ended(self) -> Iterator[Action]:
        for key, rank in list(self._ranks.items()):
            if rank.stage is Stage.ENDED:
                self._end(key, Outcome(key, AnswerState.FAILED, rank.reason))
                yield Withdraw(key)

    def _leave_idlers(self, now: float) -> Iterator[Action]:
        """Those that refuse again and again while others' traces are read are not trainers.

        A trainer looks alike while it waits for its next multiple of steps; so that much time passes first.
        """
        others = [key for key, rank in self._ranks.items() if rank.stage is not Stage.READ]
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
                self._end(key, Outcome(key, AnswerState.REFUSED, IDLE))
                yield Withdraw(key)

    def _judge(self) -> Iterator[Action]:
        """Once all traces of the attempt are read: are they what was asked for?"""
        summaries = self.summaries()
        if not summaries or len(summaries) < len(self._ranks):
            return
        wrong = {key: fault for key, one in summaries.items() if (fault := what_is_wrong(one, self._num_steps))}
        if not wrong:
            lengths = [one.step_seconds for one in summaries.values() if one.step_seconds]
            self._step_seconds = min(lengths) if lengths else self._step_seconds
            apart = self._steps_apart(summaries)
            if not apart:
                yield from self._end_all(AnswerState.DONE, "")
                return
            wrong = dict.fromkeys(summaries, f"the ranks' traces begin {counted(apart, 'step')} apart")
        if self._attempt == _MOST_ATTEMPTS:
            for key in list(self._ranks):
                fault = wrong.get(key, "another rank's trace is not what was asked for")
                self._end(key, Outcome(key, AnswerState.FAILED, f"{fault}, {self._attempt} times"))
            return
        self._attempt += 1
        self._multiple = None
        self._ranks = {key: RankCapture() for key in self._ranks}

    def _steps_apart(self, summaries: Mapping[str, TraceSummary]) -> int:
        if len(summaries) == 1:
            return 0
        starts = {key: one.step_ends_ns[0] for key, one in summaries.items()}
        return steps_apart(starts, self._step_seconds) if self._step_seconds else 0

    def _give_up(self, now: float) -> Iterator[Action]:
        running = any(rank.stage in (Stage.RUNNING, Stage.WRITTEN) for rank in self._ranks.values())
        limit = self._until + (_RUNNING_SECONDS if running and not self._has_deadline else 0.0)
        if now <= limit:
            return
        for key, rank in list(self._ranks.items()):
            waits = "it has not been asked yet" if rank.stage is Stage.HELD else "no trace has appeared"
            self._end(key, Outcome(key, AnswerState.FAILED, f"given up: {rank.reason or waits}"))
            yield Withdraw(key)

    def _end_all(self, state: AnswerState, reason: str) -> Iterator[Action]:
        for key in list(self._ranks):
            self._end(key, Outcome(key, state, reason))
            yield Withdraw(key)

    def _end(self, key: str, outcome: Outcome) -> None:
        if self._ranks.pop(key, None) is not None:
            self._tell(outcome)

    def _tell_stages(self) -> None:
        for key, rank in self._ranks.items():
            if rank.stage in (Stage.RUNNING, Stage.WRITTEN):
                self._tell(Outcome(key, AnswerState.STARTED))
            elif rank.stage in (Stage.HELD, Stage.SENT) and rank.reason:
                self._tell(Outcome(key, AnswerState.ACCEPTED, rank.reason))

    def _tell(self, outcome: Outcome) -> None:
        if self._told.get(outcome.key) != outcome:
            self._told[outcome.key] = outcome
            self._news.append(outcome)
