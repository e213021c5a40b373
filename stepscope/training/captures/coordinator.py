"""Capture coordinator of a rank: takes requests from the agent or a rule, and agrees with the other ranks on the steps.

Ranks agree without a collective. They share one list in the job's own store, where entry n has the key n. A rank that
wants a capture writes the first free entry by compare-and-set, so that exactly one rank's proposal counts; all ranks
read all entries in order and so decide alike. Without a store, each rank uses its own clock.

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

from stepscope.core.protocol.captures import RULE_PREFIX, Alignment, CaptureProgress, CaptureRequest, CaptureState
from stepscope.core.protocol.messages import Answer, Cancel, decode_message, encode_message
from stepscope.core.text.numbers import counted
from stepscope.training.captures.plan import REQUEST_WARMUP, AgreedCapture, CaptureCalendar, CapturePlan
from stepscope.training.captures.schedule import Schedule, SlowStepWatch
from stepscope.training.run.identity import Identity, job_store, own_store_connection
from stepscope.training.steps.telemetry import RecentStepTime

logger = logging.getLogger(__name__)

_MAX_OPEN = 8
_MAX_REMEMBERED = 256
_SPREAD_SECONDS = 2.0  # within which a request without a time should have reached the ranks of all nodes
_MIN_LEAD_SECONDS = 0.25
_FIXED_BEFORE_SECONDS = 4.0  # twice the spread: ranks that tick a second apart still have it
_POLL_SECONDS = 0.25  # between looks for requests of other ranks' rules
_POLLS_PER_SECOND = 2000  # of all ranks together; a store answers many times as many
_STORE_TIMEOUT = timedelta(seconds=5)
_COMMON_STEPS = 8  # without a store ranks start at multiples of it, so that clocks some steps apart mostly agree

_num_coordinators: Counter[str] = Counter()
"""Coordinators so far by run: every rank measures a run equally often, so equal numbers belong together."""


class RankCaptureCoordinator:
    """A rank's captures: takes requests, agrees on their steps with the other ranks, and answers the progress of each.

    Args:
        takes_scheduled: whether this rank takes the scheduled captures.
        slow_steps: the rule by which the run requests captures itself.
        send: sends an answer to the agent, or keeps it for when there is one.

    Attributes:
        plan: the capture that each step belongs to.
        tick_seconds: time from one `tick` to the next.
    """

    def __init__(
        self,
        run: str,
        identity: Identity,
        schedule: Schedule,
        *,
        takes_scheduled: bool,
        step_time: RecentStepTime,
        slow_steps: SlowStepWatch | None,
        send: Callable[[Answer], None],
    ) -> None:
        self.plan = CapturePlan(schedule, takes_scheduled=takes_scheduled, report=self.report)
        self._identity = identity
        self._takes_scheduled = takes_scheduled
        self._step_time = step_time
        self._slow_steps = slow_steps
        self._send = send
        self._calendar = CaptureCalendar(schedule)
        self._pending: dict[str, CaptureRequest] = {}
        self._progress: dict[str, CaptureProgress | None] = {}
        self._rule_fired_after: int | None = None
        self._polled_at = 0.0
        self._poll_seconds = max(_POLL_SECONDS, identity.world_size / _POLLS_PER_SECOND)
        self.tick_seconds = 1.0 if slow_steps is None else self._poll_seconds
        self._log: CaptureLog | None = None
        self._log_prefix = f"stepscope/captures/{run}/{_num_coordinators[run]}"
        self._is_store_silent = False
        _num_coordinators[run] += 1

    def request(self, request: CaptureRequest) -> None:
        """Take a request of the agent; a known one is answered with its progress."""
        if request.id in self._progress:
            known = self._progress[request.id]
            if known is not None:
                self._send(Answer(request.id, known))
            return
        num_open = sum(known is None or not known.state.is_final for known in tuple(self._progress.values()))
        if request.id.startswith(RULE_PREFIX):
            self.refuse(request.id, f'ids that begin with "{RULE_PREFIX}" are reserved for the rule')
        elif request.ranks is not None and self._identity.rank not in request.ranks:
            self.refuse(request.id, f"rank {self._identity.rank} is not among those requested")
        elif num_open >= _MAX_OPEN:
            self.refuse(
                request.id,
                f"{counted(num_open, 'capture is', 'captures are')} open already; ask again when one is done",
            )
        else:
            self._pending[request.id] = request
            self._progress[request.id] = None
            self.tick()
            if request.id in self._pending:
                reason = "its first step is fixed when its time is near"
                self.report(request.id, CaptureProgress(CaptureState.ACCEPTED, reason))

    def cancel(self, cancel: Cancel) -> None:
        if self._pending.pop(cancel.id, None) is not None:
            self.report(cancel.id, CaptureProgress(CaptureState.CANCELLED, "as asked"))
            return
        known = self._progress.get(cancel.id)
        if known is not None and known.state.is_final:
            self._send(Answer(cancel.id, known))
        elif cancel.id in self._progress:
            self.plan.post(cancel)
        else:
            self.refuse(cancel.id, "no capture of this id is known here")

    def refuse_unreadable(self, capture_id: str, reason: str) -> None:
        """Refuse a request that cannot be read, unless its id is known."""
        if capture_id not in self._progress:
            self.refuse(capture_id, reason)

    def request_by_rule(self) -> None:
        """Request a capture because steps have become slow, at the next tick."""
        if self._slow_steps is not None:
            self._rule_fired_after = self._slow_steps.num_captures

    def tick(self) -> None:
        """Settle the requests that can be settled now, and read those of other ranks' rules."""
        if self._slow_steps is not None:
            is_due, fired_after = self._rule_fired_after is not None, self._rule_fired_after
            if is_due or time.monotonic() - self._polled_at >= self._poll_seconds:
                self._polled_at, self._rule_fired_after = time.monotonic(), None
                self._read_log()
            if is_due and fired_after == self._slow_steps.num_captures:  # else another rank has requested it already
                self._settle(CaptureRequest(f"{RULE_PREFIX}{fired_after}", self._slow_steps.num_steps))
        for request in tuple(self._pending.values()):
            if request.id in self._pending and self._settle(request):
                self._pending.pop(request.id, None)
        self._forget()

    def report(self, capture_id: str, progress: CaptureProgress) -> None:
        """Answer the progress of a capture and remember it; from any thread."""
        self._progress[capture_id] = progress
        self._send(Answer(capture_id, progress))

    def refuse(self, capture_id: str, reason: str) -> None:
        self.report(capture_id, CaptureProgress(CaptureState.REFUSED, reason))

    def close(self) -> None:
        """Fail the requests that are still pending: no step follows."""
        for capture_id in tuple(self._pending):
            self.report(capture_id, CaptureProgress(CaptureState.FAILED, "training ended before it began"))
        self._pending.clear()

    def _forget(self) -> None:
        final = [name for name, known in tuple(self._progress.items()) if known is not None and known.state.is_final]
        for name in final[: max(len(self._progress) - _MAX_REMEMBERED, 0)]:
            self._progress.pop(name, None)

    def _settle(self, request: CaptureRequest) -> bool:
        """Give the request its steps or refuse it; False while that is too early."""
        if request.deadline_unix_ns is not None and time.time_ns() > request.deadline_unix_ns:
            self.refuse(request.id, "its deadline has passed")
            return True
        starts_ns, deadline_ns = request.start_unix_ns, request.deadline_unix_ns
        if starts_ns is not None and deadline_ns is not None and request.start_step is None and starts_ns > deadline_ns:
            self.refuse(request.id, "it is to start after its deadline")
            return True
        if request.start_step is not None and request.start_step <= self.plan.step:
            self.refuse(request.id, f"too late: step {request.start_step} has begun, step {self.plan.step} runs")
            return True
        if request.start_step is None and not self._can_be_placed(request):
            return False
        log = self._find_log()
        if log is not None:
            try:
                log.append(request.id, functools.partial(self._propose, request), self._take_entry)
                return True
            except (RuntimeError, ValueError) as error:  # torch's store errors are RuntimeErrors
                self._give_up_store(error)
        proposal = self._propose(request)
        if proposal is not None:
            is_exact = request.start_step is not None or self._identity.world_size == 1
            self._place(proposal, Alignment.STEP if is_exact else Alignment.TIME)
        return True

    def _can_be_placed(self, request: CaptureRequest) -> bool:
        """Only steps a few seconds ahead can be predicted from the present time of a step."""
        is_near = request.start_unix_ns is None or self._lead_seconds(request) < _FIXED_BEFORE_SECONDS
        return is_near and self._step_time.median_ns is not None

    def _propose(self, request: CaptureRequest) -> CaptureRequest | None:
        """The request with the step at which it can start; None when it cannot and was refused.

        One that gave the step has no time, any other has one: readers of the list tell them apart by that.
        """
        if request.start_step is not None:
            return replace(request, start_unix_ns=None)
        step_ns = self._step_time.median_ns or 1.0
        earliest = self.plan.step + 1 + REQUEST_WARMUP + math.ceil(self._lead_seconds(request) * 1e9 / step_ns)
        if self._identity.world_size > 1 and self._log is None:
            earliest = math.ceil(earliest / _COMMON_STEPS) * _COMMON_STEPS
        start = self._calendar.free_start(earliest, request.steps)
        if start is None:
            self.refuse(request.id, f"the schedule leaves no room for {counted(request.steps, 'step')}")
            return None
        ahead_ns = (start - self.plan.step) * step_ns
        if request.deadline_unix_ns is not None and time.time_ns() + ahead_ns > request.deadline_unix_ns:
            reason = f"it could begin at step {start}, in about {ahead_ns / 1e9:.1f} s, which is after its deadline"
            self.refuse(request.id, reason)
            return None
        return replace(request, start_step=start, start_unix_ns=request.start_unix_ns or time.time_ns())

    def _lead_seconds(self, request: CaptureRequest) -> float:
        """Time from the agreement on a capture to its start, so that all ranks learn of it in time."""
        if request.start_unix_ns is not None:
            least = _MIN_LEAD_SECONDS if self._identity.world_size > 1 else 0.0
            return max((request.start_unix_ns - time.time_ns()) / 1e9, least)
        if self._identity.world_size == 1:
            return 0.0
        return 2 * self._poll_seconds + _MIN_LEAD_SECONDS if request.id.startswith(RULE_PREFIX) else _SPREAD_SECONDS

    def _take_entry(self, entry: CaptureRequest) -> None:
        """Take an entry of the list that all ranks read in one order."""
        self._pending.pop(entry.id, None)
        self._place(entry, Alignment.STEP if entry.start_unix_ns is None else Alignment.STORE)

    def _place(self, entry: CaptureRequest, aligned_by: Alignment) -> None:
        assert entry.start_step is not None
        is_of_rule = entry.id.startswith(RULE_PREFIX)
        if is_of_rule and self._slow_steps is not None:
            self._slow_steps.count_capture()
        slot = self._calendar.place(entry.id, entry.start_step, entry.steps)
        is_taken = self._takes_scheduled if is_of_rule else entry.ranks is None or self._identity.rank in entry.ranks
        if not is_taken:
            return
        if isinstance(slot, str):
            self.refuse(entry.id, slot)
            return
        self._progress.setdefault(entry.id, None)
        self.plan.post(AgreedCapture(entry, slot, aligned_by))

    def _find_log(self) -> CaptureLog | None:
        """The shared list of the ranks; None where they share no store."""
        if self._log is None and self._identity.world_size > 1 and not self._is_store_silent:
            try:
                store = job_store()
                if store is not None:
                    self._log = CaptureLog(own_store_connection(store, _STORE_TIMEOUT), self._log_prefix)
            except (RuntimeError, ValueError) as error:
                self._give_up_store(error)
        return self._log

    def _read_log(self) -> None:
        log = self._find_log()
        if log is not None:
            try:
                log.read(self._take_entry)
            except (RuntimeError, ValueError) as error:
                self._give_up_store(error)

    def _give_up_store(self, error: Exception) -> None:
        self._log, self._is_store_silent = None, True
        logger.debug("the ranks' store does not answer; captures start by each rank's clock: %s", error)


_MAX_ENTRIES = 1000


class CaptureLog:
    """This rank's view of the list of captures that all ranks share in the job's store.

    Args:
        store: has compare_set, check and get of torch.distributed's stores.
        prefix: of the keys, the same on all ranks and unlike that of any other run of the same job.

    Raises:
        RuntimeError, ValueError: from every method, when the store does not answer, or holds something else.
    """

    def __init__(self, store: Any, prefix: str) -> None:
        self._store = store
        self._prefix = prefix
        self._next = 0

    def append(
        self, capture_id: str, propose: Callable[[], CaptureRequest | None], take: Callable[[CaptureRequest], None]
    ) -> None:
        """Read the new entries, then write the proposal, unless another rank has written an entry of this id.

        Args:
            propose: makes the proposal; called again after each entry of another rank; None gives up.
            take: takes every entry, in their order, the own one last.
        """
        while (proposal := propose()) is not None:
            if self._next >= _MAX_ENTRIES:
                raise RuntimeError(f"{_MAX_ENTRIES} captures have been requested; a run has room for no more")
            entry = self._entry(self._store.compare_set(self._key, "", encode_message(proposal).decode()))
            take(entry)
            if entry.id == capture_id:
                return

    def read(self, take: Callable[[CaptureRequest], None]) -> None:
        """Read the new entries; asks the store once when there are none."""
        while self._store.check([self._key]):
            take(self._entry(self._store.get(self._key)))

    @property
    def _key(self) -> str:
        return f"{self._prefix}/{self._next}"

    def _entry(self, line: bytes) -> CaptureRequest:
        entry = decode_message(bytes(line))
        if not isinstance(entry, CaptureRequest) or entry.start_step is None:
            raise ValueError(f"the store holds no capture at {self._key}")
        self._next += 1
        return entry
