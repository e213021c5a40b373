"""Capture of a running job through the agents of its nodes, on all ranks at once."""

from __future__ import annotations

import math
import os.path
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Any

from stepscope.core.errors import DataError, StepscopeError, UnreachableError, UsageError
from stepscope.core.protocol import captures
from stepscope.core.protocol.fields import FieldError, read_object
from stepscope.core.text.numbers import counted, number_runs, ranks_words
from stepscope.core.vocabulary import Notice
from stepscope.workflow.nodes.agent_client import AgentClient, AgentReply

_LOOK_SECONDS = 0.5
_AWAY_SECONDS = 90.0
"""Within which an agent that is restarted is back."""
_WRITING_SECONDS = 330.0
"""After the deadline agents give up within 300 s."""
_SPREAD_SECONDS = 3.0
"""Within which a request has reached all agents and their processes."""
_AGREED_SECONDS = 4.0
"""Time to the step that all ranks are given, once they did not agree on one."""
_UNKNOWN_SECONDS = 20.0
"""Within which a process that has just been started is known: it imports torch, and libkineto asks every 5 s."""
_MAX_THREADS = 32

Log = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class CapturedJob:
    """A capture of a job through the agents of all its nodes.

    Attributes:
        order: the newest one, where it had to be repeated.
        reports: of each agent that has ranks of it, by URL.
        warnings: limits of the result, for people.
    """

    order: captures.CaptureOrder
    reports: dict[str, captures.CaptureReport]
    warnings: tuple[Notice, ...] = ()

    @property
    def ranks(self) -> tuple[captures.RankCapture, ...]:
        """Processes of all agents, by run and rank."""
        ranks = (one for report in self.reports.values() for one in report.ranks)
        return tuple(sorted(ranks, key=lambda one: one.target.sort_key))

    @property
    def missing_ranks(self) -> list[int]:
        """Requested ranks, else all ranks of the job, that no agent knows."""
        size = max((one.target.world_size or 0 for one in self.ranks), default=0)
        requested = self.order.request.ranks
        wanted = set(range(size)) if requested is None else set(requested)
        return sorted(wanted - {one.target.rank for one in self.ranks})

    @property
    def state(self) -> captures.CaptureState:
        """As a whole."""
        return captures.state_of_ranks(self.ranks)

    @property
    def folder(self) -> str | None:
        """Common directory of all traces; None without traces."""
        paths = [one.progress.path for one in self.ranks if one.progress.path]
        return os.path.commonpath([os.path.dirname(path) for path in paths]) if paths else None


def capture_job(
    agents: Sequence[AgentClient], order: captures.CaptureOrder, *, wait: bool = True, log: Log = lambda _: None
) -> CapturedJob:
    """Capture a job through its nodes' agents and wait for the traces; interrupting the wait cancels it.

    Args:
        agents: of the job's nodes, each once.
        order: the request, whose id is replaced.
        wait: False returns once all agents have accepted the order.
        log: takes lines on the progress.

    Raises:
        UnreachableError: an agent does not answer; the capture is cancelled at the others.
        UsageError: the token is wrong.
        DataError: an agent refuses, or no rank is there.
    """
    order = _changed(order, id=f"c-{secrets.token_hex(6)}")
    is_spread = len(agents) > 1 and order.request.start_step is None and order.request.start_unix_ns is None
    with _Agents(agents) as all_agents:
        try:
            job = _start_once_known(all_agents, order, log, is_spread=is_spread)
            order = job.order
            log(f"capture {order.request.id}: asked {_num_ranks_text(job)}")
            if wait:
                job = _wait(all_agents, job, log)
            if wait and _starts_apart(job):
                all_agents.cancel(order)
                step = _common_step(job)
                order = _changed(order, id=f"{order.request.id}-2", start_step=step, start_unix_ns=None)
                log(f"the ranks go by their own clocks; asked again to begin at step {step}")
                job = _wait(all_agents, _start(all_agents, order), log)
        except BaseException:  # also Ctrl-C
            all_agents.cancel(order)
            raise
    return replace(job, warnings=_warnings(job))


def _changed(order: captures.CaptureOrder, **fields: Any) -> captures.CaptureOrder:
    return replace(order, request=replace(order.request, **fields))


class _Agents:
    """All agents of a job, asked in parallel. A context manager."""

    def __init__(self, agents: Sequence[AgentClient]) -> None:
        self.by_url = {str(agent): agent for agent in agents}
        self._threads = ThreadPoolExecutor(min(len(agents), _MAX_THREADS))

    def __enter__(self) -> _Agents:
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown()

    def ask(
        self, urls: Iterable[str], method: str, path: str, order: captures.CaptureOrder | None = None
    ) -> dict[str, AgentReply | UnreachableError]:
        """Reply of each."""
        values = {} if order is None else captures.order_document(order)
        document = {name: value for name, value in values.items() if value is not None} or None

        def ask(url: str) -> AgentReply | UnreachableError:
            try:
                return self.by_url[url].ask(method, path, document)
            except UnreachableError as error:
                return error

        urls = list(urls)
        return dict(zip(urls, self._threads.map(ask, urls), strict=True))

    def cancel(self, order: captures.CaptureOrder) -> None:
        """Cancel it at all agents; those that do not know it, or do not answer, have nothing to cancel."""
        self.ask(self.by_url, "DELETE", f"{captures.CAPTURES_PATH}/{order.request.id}")


class _UnknownJobError(DataError):
    """No agent knows a selected process."""


def _start_once_known(agents: _Agents, order: captures.CaptureOrder, log: Log, *, is_spread: bool) -> CapturedJob:
    """Start the capture; retry for a while where no agent knows the job, while the process that names it exists."""
    end = time.monotonic() + _UNKNOWN_SECONDS
    job = order.selector.job
    process = f"/proc/{job}" if job and job.isdecimal() else ""
    was_there = bool(process) and os.path.exists(process)
    is_logged = False
    while True:
        if is_spread:
            order = _changed(order, start_unix_ns=time.time_ns() + int(_SPREAD_SECONDS * 1e9))
        try:
            return _start(agents, order)
        except _UnknownJobError:
            has_ended = was_there and not os.path.exists(process)
            if job is None or has_ended or time.monotonic() > end:
                raise
        if not is_logged:
            log(f"no process of job {job} is known yet; waits for one, {_UNKNOWN_SECONDS:.0f} s at most")
            is_logged = True
        time.sleep(_LOOK_SECONDS)


def _start(agents: _Agents, order: captures.CaptureOrder) -> CapturedJob:
    job = CapturedJob(order, {})
    failures: list[StepscopeError] = []
    unknown: list[StepscopeError] = []
    for url, reply in agents.ask(agents.by_url, "POST", captures.CAPTURES_PATH, order).items():
        if isinstance(reply, UnreachableError):
            failures.append(reply)
        elif reply.status == HTTPStatus.NOT_FOUND and reply.document:
            unknown.append(_UnknownJobError(reply.error, where=url))
        elif reply.error:
            failures.append(_refusal(url, reply))
        else:
            job.reports[url] = _report(url, reply)
    if failures or not job.reports:
        raise (failures or unknown)[0]
    return job


def _wait(agents: _Agents, job: CapturedJob, log: Log) -> CapturedJob:
    """Poll the agents until the capture has ended, or has no common first step and must be repeated.

    Where ranks are missing, the other agents are asked again for a while: their ranks may have been started a little
    later.
    """
    order, capture = job.order, f"capture {job.order.request.id}"
    answered_at = dict.fromkeys(job.reports, time.monotonic())
    late_until = time.monotonic() + _UNKNOWN_SECONDS
    logged = ""
    while not job.state.is_final and not _starts_apart(job):
        time.sleep(_LOOK_SECONDS)
        waiting = [url for url, report in job.reports.items() if not report.state.is_final]
        replies = agents.ask(waiting, "GET", f"{captures.CAPTURES_PATH}/{order.request.id}")
        forgotten = [url for url, reply in replies.items() if _is_not_found(reply)]
        replies |= agents.ask(
            forgotten, "POST", captures.CAPTURES_PATH, order
        )  # a restarted agent; its ranks know the capture
        if job.missing_ranks and time.monotonic() < late_until:
            late = agents.ask(agents.by_url.keys() - job.reports.keys(), "POST", captures.CAPTURES_PATH, order)
            replies |= {url: reply for url, reply in late.items() if not _is_refused(reply)}
        for url, reply in replies.items():
            if isinstance(reply, UnreachableError) or _is_not_found(reply):
                if time.monotonic() - answered_at[url] > _AWAY_SECONDS:
                    raise reply if isinstance(reply, UnreachableError) else _refusal(url, reply)
                continue
            if reply.error:
                raise _refusal(url, reply)
            answered_at[url] = time.monotonic()
            job.reports[url] = _report(url, reply)
        line = f"{capture}: {_state_text(job)}"
        if line != logged:
            logged = line
            log(line)
        deadline_ns = order.request.deadline_unix_ns
        if deadline_ns is not None and time.time_ns() > deadline_ns + int(_WRITING_SECONDS * 1e9):
            raise DataError("the agents still wait for ranks", where=capture)
    return job


def _is_not_found(reply: AgentReply | UnreachableError) -> bool:
    return not isinstance(reply, UnreachableError) and reply.status == HTTPStatus.NOT_FOUND


def _is_refused(reply: AgentReply | UnreachableError) -> bool:
    return isinstance(reply, UnreachableError) or bool(reply.error)


def _refusal(url: str, reply: AgentReply) -> StepscopeError:
    if reply.status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        what_next = "name the file with the agent's token: --token-file"
        return UsageError(reply.error, where=url, what_next=what_next)
    return DataError(reply.error, where=url)


def _report(url: str, reply: AgentReply) -> captures.CaptureReport:
    try:
        return read_object(captures.CaptureReport, reply.document)
    except FieldError as error:
        raise UnreachableError(f"not an agent of this version ({error})", where=url) from None


def _starts_apart(job: CapturedJob) -> bool:
    """Whether ranks that share no store have different first steps."""
    waiting = [one.progress for one in job.ranks if not one.progress.state.is_final]
    starts = {progress.start_step for progress in waiting}
    return None not in starts and len(starts) > 1 and any(one.aligned_by is captures.Alignment.TIME for one in waiting)


def _common_step(job: CapturedJob) -> int:
    """A step that no rank will have begun when the request reaches it."""
    furthest = max(one.progress.start_step or 0 for one in job.ranks)
    steps_ms = [one.target.step_ms for one in job.ranks if one.target.step_ms]
    return furthest + math.ceil(_AGREED_SECONDS * 1e3 / min(steps_ms, default=1e3)) + 1


def _warnings(job: CapturedJob) -> tuple[Notice, ...]:
    notices = []
    if missing := job.missing_ranks:
        line = f"none of these agents has {ranks_words(missing)}; give those of all nodes with --agent"
        notices.append(Notice("ranks_missing", line))
    if len({one.progress.start_step for one in job.ranks if one.progress.state is captures.CaptureState.DONE}) > 1:
        line = "not all ranks began with the same step; analyse only steps that all traces have"
        notices.append(Notice("starts_differ", line))
    reports = job.reports.values()
    if sum(any(_has_unknown_start(one.progress) for one in report.ranks) for report in reports) > 1:
        line = "ranks of one node hold the same steps; whether those of other nodes do is unknown"
        notices.append(Notice("starts_unknown", line))
    return tuple(notices)


def _has_unknown_start(progress: captures.CaptureProgress) -> bool:
    return progress.path is not None and progress.start_step is None


def _num_ranks_text(job: CapturedJob) -> str:
    return f"{counted(len(job.ranks), 'rank')} on {counted(len(job.reports), 'node')}"


def _state_text(job: CapturedJob) -> str:
    counts = Counter(one.progress.state for one in job.ranks)
    waiting = [one.progress for one in job.ranks if not one.progress.state.is_final]
    starts = sorted({one.start_step for one in waiting if one.start_step is not None})
    step = f", from step {number_runs(starts)}" if starts else ""
    why = next((f": {one.reason}" for one in waiting if one.reason), "")
    return ", ".join(f"{count} {state}" for state, count in counts.items()) + step + why
