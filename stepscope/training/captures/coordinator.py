"""Capture coordinator: takes requests from the agent or a rule, and agrees with the other ranks on the steps.

Ranks agree without a collective. They share one list in the job's own store, where entry n has the key n. Whoever wants
a capture writes the first free entry by compare-and-set, so that exactly one rank's proposal counts; all ranks read all
entries in order and so decide alike. Without a store, each rank uses its own clock.

The coordinator runs on the agent connection's thread, or on the training thread where there is none, never on both.
"""

from __future__ import annotations

import functools
import logging
import math
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

from stepscope.core.protocol.messages import Alignment, Answer, AnswerState, Cancel, CaptureRequest, decode, encode
from stepscope.core.text.numbers import counted
from stepscope.training.captures.limits import CaptureLimits
from stepscope.training.captures.plan import (
    REQUEST_WARMUP,
    AgreedCapture,
    CancelledCapture,
    CaptureCalendar,
    CapturePlan,
)
from stepscope.training.captures.schedule import Schedule, SlowSteps
from stepscope.training.run.identity import Identity, job_store, own_connection
from stepscope.training.steps.telemetry import RecentStepTime

logger = logging.getLogger(__name__)

RULE_PREFIX = "rule-"
"""Begins the ids of captures that a rule asked for; nobody else's may."""

_MAX_OPEN = 8
_MAX_REMEMBERED = 256
_SPREAD_SECONDS = 2.0  # within which a request that says no time should have reached the ranks of all nodes
_LEAST_LEAD_SECONDS = 0.25
_FIXED_BEFORE_SECONDS = 4.0  # twice the spread: ranks that tick a second apart still have it
_POLL_SECONDS = 0.25  # how often a rank looks for what other ranks' rules have asked for
_POLLS_PER_SECOND = 2000  # of all ranks together; a store answers many times as many
_STORE_PATIENCE = timedelta(seconds=5)
_COMMON_STEPS = 8  # without a store ranks start at multiples of it, so that clocks some steps apart mostly agree

_num_coordinators: Counter[str] = Counter()
"""By run: every rank measures a run equally often, so equal numbers belong together."""


class CaptureCoordinator:
    """Takes requests, agrees on their steps with the other ranks, and says what has become of each.

    Args:
        send: sends an answer to the agent, or keeps it for when there is one.

    Attributes:
        tick_seconds: how often `tick` should be called.
    """

    def __init__(
        self,
        run: str,
        identity: Identity,
        schedule: Schedule,
        *,
        takes_scheduled: bool,
        pace: RecentStepTime,
        slow_steps: SlowSteps | None,
        send: Callable[[Answer], None],
    ) -> None:
        self.plan = CapturePlan(schedule, takes_scheduled=takes_scheduled, tell=self.tell)
        self._identity = identity
        self._takes_scheduled = takes_scheduled
        self._pace = pace
        self._slow_steps = slow_steps
        self._send = send
        self._calendar = CaptureCalendar(schedule)
        self._pending: dict[str, CaptureRequest] = {}
        self._answers: dict[str, Answer | None] = {}
        self._rule_fired_after: int | None = None
        self._polled_at = 0.0
        self._poll_seconds = max(_POLL_SECONDS, identity.world_size / _POLLS_PER_SECOND)
        self.tick_seconds = 1.0 if slow_steps is None else self._poll_seconds
        self._log: CaptureLog | None = None
        self._log_prefix = f"stepscope/captures/{run}/{_num_coordinators[run]}"
        self._is_store_silent = False
        _num_coordinators[run] += 1

    def ask(self, request: CaptureRequest) -> None:
        """The agent asks for a capture."""
        if request.id in self._answers:
            known = self._answers[request.id]
            if known is not None:
                self._send(known)
            return
        num_open = sum(answer is None or not answer.state.is_final for answer in tuple(self._answers.values()))
        if request.id.startswith(RULE_PREFIX):
            self._refuse(request.id, f'ids that begin with "{RULE_PREFIX}" are the rule\'s own')
        elif request.ranks is not None and self._identity.rank not in request.ranks:
            self._refuse(request.id, f"rank {self._identity.rank} is not among those asked for")
        elif num_open >= _MAX_OPEN:
            self._refuse(
                request.id,
                f"{counted(num_open, 'capture is', 'captures are')} open already; ask again when one is done",
            )
        else:
            self._pending[request.id] = request
            self._answers[request.id] = None
            self.tick()
            if request.id in self._pending:
                self.tell(Answer(request.id, AnswerState.ACCEPTED, "its first step is fixed when its time is near"))

    def cancel(self, cancel: Cancel) -> None:
        """The agent wants a capture no more."""
        if self._pending.pop(cancel.id, None) is not None:
            self.tell(Answer(cancel.id, AnswerState.CANCELLED, "as asked"))
            return
        known = self._answers.get(cancel.id)
        if known is not None and known.state.is_final:
            self._send(known)
        elif cancel.id in self._answers:
            self.plan.post(CancelledCapture(cancel.id))
        else:
            self._refuse(cancel.id, "no capture of this id is known here")

    def refuse(self, capture_id: str, reason: str) -> None:
        """A request that cannot be read."""
        if capture_id not in self._answers:
            self._refuse(capture_id, reason)

    def ask_by_rule(self) -> None:
        """Steps have become slow; settled at the next tick."""
        if self._slow_steps is not None:
            self._rule_fired_after = self._slow_steps.num_captures

    def tick(self) -> None:
        """Settle what can be settled now, and see what other ranks' rules have asked for."""
        if self._slow_steps is not None:
            is_due, fired_after = self._rule_fired_after is not None, self._rule_fired_after
            if is_due or time.monotonic() - self._polled_at >= self._poll_seconds:
                self._polled_at, self._rule_fired_after = time.monotonic(), None
                self._read_log()
            if is_due and fired_after == self._slow_steps.num_captures:  # else another rank has asked already
                self._settle(CaptureRequest(f"{RULE_PREFIX}{fired_after}", self._slow_steps.num_steps))
        for request in tuple(self._pending.values()):
            if request.id in self._pending and self._settle(request):
                self._pending.pop(request.id, None)
        self._forget()

    def tell(self, answer: Answer) -> None:
        """Send an answer and remember it; from any thread."""
        self._answers[answer.id] = answer
        self._send(answer)

    def close(self) -> None:
        """No step comes any more."""
        for capture_id in tuple(self._pending):
            self.tell(Answer(capture_id, AnswerState.FAILED, "training ended before it began"))
        self._pending.clear()

    def _refuse(self, capture_id: str, reason: str) -> None:
        self.tell(Answer(capture_id, AnswerState.REFUSED, reason))

    def _forget(self) -> None:
        """The oldest that are done with, when there are too many."""
        over = [name for name, answer in tuple(self._answers.items()) if answer is not None and answer.state.is_final]
        for name in over[: max(len(self._answers) - _MAX_REMEMBERED, 0)]:
            self._answers.pop(name, None)

    def _settle(self, request: CaptureRequest) -> bool:
        """Give the request its steps or refuse it; False before that can be: no step has ended, or its time is far."""
        if request.deadline_unix_ns is not None and time.time_ns() > request.deadline_unix_ns:
            self._refuse(request.id, "its deadline has passed")
            return True
        starts_ns, deadline_ns = request.start_unix_ns, request.deadline_unix_ns
        if starts_ns is not None and deadline_ns is not None and request.start_step is None and starts_ns > deadline_ns:
            self._refuse(request.id, "it is to start after its deadline")
            return True
        if request.start_step is not None and request.start_step <= self.plan.step:
            self._refuse(request.id, f"too late: step {request.start_step} has begun, step {self.plan.step} runs")
            return True
        if request.start_step is None and not self._can_be_placed(request):
            return False
        log, given = self._find_log(), request.start_step is not None
        if log is not None:
            try:
                log.append(request.id, functools.partial(self._propose, request), self._learn)
                return True
            except (RuntimeError, ValueError) as error:  # torch's store errors are RuntimeErrors
                self._give_up_store(error)
        proposal = self._propose(request)
        if proposal is not None:
            is_alone = self._identity.world_size == 1
            self._place(proposal, Alignment.STEP if given or is_alone else Alignment.TIME)
        return True

    def _can_be_placed(self, request: CaptureRequest) -> bool:
        """Only steps a few seconds ahead can be told from how long steps take now."""
        is_near = request.start_unix_ns is None or self._lead_seconds(request) < _FIXED_BEFORE_SECONDS
        return is_near and self._pace.median_ns is not None

    def _propose(self, request: CaptureRequest) -> CaptureRequest | None:
        """The request with the step at which it could start; None when it could not, which is then said.

        One that gave the step has no time, any other has one: so who reads the list knows which it is.
        """
        if request.start_step is not None:
            return replace(request, start_unix_ns=None)
        step_ns = self._pace.median_ns or 1.0
        earliest = self.plan.step + 1 + REQUEST_WARMUP + math.ceil(self._lead_seconds(request) * 1e9 / step_ns)
        if self._identity.world_size > 1 and self._log is None:
            earliest = math.ceil(earliest / _COMMON_STEPS) * _COMMON_STEPS
        start = self._calendar.free_start(earliest, request.steps)
        if start is None:
            self._refuse(request.id, f"the schedule leaves no room for {counted(request.steps, 'step')}")
            return None
        ahead_ns = (start - self.plan.step) * step_ns
        if request.deadline_unix_ns is not None and time.time_ns() + ahead_ns > request.deadline_unix_ns:
            reason = f"it could begin at step {start}, in about {ahead_ns / 1e9:.1f} s, which is after its deadline"
            self._refuse(request.id, reason)
            return None
        return replace(request, start_step=start, start_unix_ns=request.start_unix_ns or time.time_ns())

    def _lead_seconds(self, request: CaptureRequest) -> float:
        """How long before its start a capture is agreed on, so that all ranks hear of it in time."""
        if request.start_unix_ns is not None:
            least = _LEAST_LEAD_SECONDS if self._identity.world_size > 1 else 0.0
            return max((request.start_unix_ns - time.time_ns()) / 1e9, least)
        if self._identity.world_size == 1:
            return 0.0
        return 2 * self._poll_seconds + _LEAST_LEAD_SECONDS if request.id.startswith(RULE_PREFIX) else _SPREAD_SECONDS

    def _learn(self, entry: CaptureRequest) -> None:
        """An entry of the list that all ranks read in one order."""
        self._pending.pop(entry.id, None)
        self._place(entry, Alignment.STEP if entry.start_unix_ns is None else Alignment.STORE)

    def _place(self, entry: CaptureRequest, aligned_by: Alignment) -> None:
        assert entry.start_step is not None
        is_rules = entry.id.startswith(RULE_PREFIX)
        if is_rules and self._slow_steps is not None:
            self._slow_steps.asked()
        place = self._calendar.place(entry.id, entry.start_step, entry.steps)
        is_taken = self._takes_scheduled if is_rules else entry.ranks is None or self._identity.rank in entry.ranks
        if not is_taken:
            return
        if isinstance(place, str):
            self._refuse(entry.id, place)
            return
        self._answers.setdefault(entry.id, None)
        self.plan.post(
            AgreedCapture(
                entry.id,
                place.start,
                place.steps,
                aligned_by,
                CaptureLimits(entry.max_bytes, entry.max_overhead, entry.deadline_unix_ns),
                joined=place.joined,
                of_schedule=place.of_schedule,
                is_partial=entry.ranks is not None,
            )
        )

    def _find_log(self) -> CaptureLog | None:
        """The list that the ranks share; None where they share no store."""
        if self._log is None and self._identity.world_size > 1 and not self._is_store_silent:
            try:
                store = job_store()
                if store is not None:
                    self._log = CaptureLog(own_connection(store, _STORE_PATIENCE), self._log_prefix)
            except (RuntimeError, ValueError) as error:
                self._give_up_store(error)
        return self._log

    def _read_log(self) -> None:
        log = self._find_log()
        if log is not None:
            try:
                log.read(self._learn)
            except (RuntimeError, ValueError) as error:
                self._give_up_store(error)

    def _give_up_store(self, error: Exception) -> None:
        self._log, self._is_store_silent = None, True
        logger.debug("the ranks' store does not answer; captures start by each rank's clock: %s", error)


_MAX_ENTRIES = 1000


class CaptureLog:
    """This rank's view of the list.

    Args:
        store: with compare_set, check and get, as torch.distributed's stores have them.
        prefix: of the keys, the same on all ranks and unlike any other run's of the same job.

    Raises:
        RuntimeError, ValueError: from every method, when the store does not answer, or holds something else.
    """

    def __init__(self, store: Any, prefix: str) -> None:
        self._store = store
        self._prefix = prefix
        self._next = 0

    def append(
        self, capture_id: str, propose: Callable[[], CaptureRequest | None], learn: Callable[[CaptureRequest], None]
    ) -> None:
        """Read what is new; then write what `propose` says, unless someone has written an entry of this id.

        Args:
            propose: is called again after each entry that someone else has written; None gives up.
            learn: is given every entry, in their order, the own one last.
        """
        while (proposal := propose()) is not None:
            if self._next >= _MAX_ENTRIES:
                raise RuntimeError(f"{_MAX_ENTRIES} captures have been asked for; a run has room for no more")
            entry = self._entry(self._store.compare_set(self._key, "", encode(proposal).decode()))
            learn(entry)
            if entry.id == capture_id:
                return

    def read(self, learn: Callable[[CaptureRequest], None]) -> None:
        """Read what is new; asks the store once when nothing is."""
        while self._store.check([self._key]):
            learn(self._entry(self._store.get(self._key)))

    @property
    def _key(self) -> str:
        return f"{self._prefix}/{self._next}"

    def _entry(self, line: bytes) -> CaptureRequest:
        entry = decode(bytes(line))
        if not isinstance(entry, CaptureRequest) or entry.start_step is None:
            raise ValueError(f"the store holds no capture at {self._key}")
        self._next += 1
        return entry
