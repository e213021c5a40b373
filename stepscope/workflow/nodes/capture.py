"""Capture of a running job through the agents of its nodes, on all ranks at once."""

from __future__ import annotations

import math
import os.path
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from http import HTTPStatus

from stepscope.core.documents.evidence import Notice
from stepscope.core.errors import DataError, StepscopeError, UnreachableError, UsageError
from stepscope.core.protocol.captures import (
    CAPTURES_PATH,
    CaptureOrder,
    CaptureReport,
    CaptureState,
    RankCapture,
    report_of,
    whole_state,
)
from stepscope.core.protocol.fields import FieldError
from stepscope.core.protocol.messages import Alignment
from stepscope.core.text.numbers import counted, number_runs, ranks_words
from stepscope.workflow.nodes.agent_client import AgentClient, AgentReply

_LOOK_SECONDS = 0.5
_AWAY_SECONDS = 90.0
"""An agent that is started again is back within."""
_WRITING_SECONDS = 330.0
"""After the deadline agents give up within 300 s."""
_SPREAD_SECONDS = 3.0
"""Within which all agents have heard of a capture, and their processes too."""
_AGREED_SECONDS = 4.0
"""How far ahead a step is that all ranks are told, once they did not agree."""
_UNKNOWN_SECONDS = 20.0
"""Within which a process that has just been started is known: it imports torch, and libkineto asks every 5 s."""
_MOST_AT_ONCE = 32

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class CapturedJob:
    """What has become of a capture.

    Attributes:
        order: the last that was given.
        reports: of each agent that has ranks of it, by URL.
        warnings: what the reader must know.
    """

    order: CaptureOrder
    reports: dict[str, CaptureReport]
    warnings: tuple[Notice, ...] = ()

    @property
    def ranks(self) -> tuple[RankCapture, ...]:
        """Of all agents, by run and rank."""
        ranks = [one for report in self.reports.values() for one in report.ranks]
        return tuple(sorted(ranks, key=lambda one: (one.run or "", -1 if one.rank is None else one.rank, one.key)))

    @property
    def missing_ranks(self) -> list[int]:
        """Those asked for that are at none of the agents; of all ranks where none is named."""
        size = max((one.world_size or 0 for one in self.ranks), default=0)
        wanted = set(range(size)) if self.order.ranks is None else set(self.order.ranks)
        return sorted(wanted - {one.rank for one in self.ranks})

    @property
    def state(self) -> CaptureState:
        """As a whole."""
        return whole_state(self.ranks)

    @property
    def folder(self) -> str | None:
        """Where all traces lie; None without any."""
        paths = [one.path for one in self.ranks if one.path]
        return os.path.commonpath([os.path.dirname(path) for path in paths]) if paths else None


def capture_job(
    agents: Sequence[AgentClient],
    order: CaptureOrder,
    *,
    wait: bool = True,
    tell: Tell = lambda _: None,
) -> CapturedJob:
    """Have it captured, and wait until it is; whoever interrupts the wait cancels the capture. A job that has just been
    started is waited for, too.

    Args:
        agents: of the job's nodes, each once.
        order: what; its id is replaced.
        wait: False returns once all agents have taken the order.
        tell: is given lines on how it goes.

    Raises:
        UnreachableError: an agent does not answer; the others are told to leave it.
        UsageError: the token is not theirs.
        DataError: an agent refuses, or no rank is there.
    """
    order = replace(order, id=f"c-{secrets.token_hex(6)}")
    is_spread = len(agents) > 1 and order.start_step is None and order.start_unix_ns is None
    with _Agents(agents) as all_agents:
        try:
            job = _ordered_once_known(all_agents, order, tell, is_spread=is_spread)
            order = job.order
            tell(f"capture {order.id}: asked {_ranks_in_words(job)}")
            if wait:
                job = _awaited(all_agents, job, tell)
            if wait and _is_torn(job):
                all_agents.cancel(order)
                order = replace(order, id=f"{order.id}-2", start_step=_common_step(job), start_unix_ns=None)
                tell(f"the ranks go by their own clocks; asked anew to begin at step {order.start_step}")
                job = _awaited(all_agents, _ordered(all_agents, order), tell)
        except BaseException:  # ^C too: nobody waits for it any more
            all_agents.cancel(order)
            raise
    return replace(job, warnings=_warnings(job))


class _Agents:
    """All agents of a job, asked at once. A context manager."""

    def __init__(self, agents: Sequence[AgentClient]) -> None:
        self.by_url = {str(agent): agent for agent in agents}
        self._threads = ThreadPoolExecutor(min(len(agents), _MOST_AT_ONCE))

    def __enter__(self) -> _Agents:
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown()

    def ask(
        self, urls: Iterable[str], method: str, path: str, order: CaptureOrder | None = None
    ) -> dict[str, AgentReply | UnreachableError]:
        """What each answers."""
        asked = {} if order is None else asdict(order)
        document = {name: value for name, value in asked.items() if value is not None} or None

        def ask(url: str) -> AgentReply | UnreachableError:
            try:
                return self.by_url[url].ask(method, path, document)
            except UnreachableError as error:
                return error

        urls = list(urls)
        return dict(zip(urls, self._threads.map(ask, urls), strict=True))

    def cancel(self, order: CaptureOrder) -> None:
        """Tell all to leave it; those that do not know it, or do not answer, have nothing to leave."""
        self.ask(self.by_url, "DELETE", f"{CAPTURES_PATH}/{order.id}")


class _NobodyError(DataError):
    """No agent knows a process that is meant."""


def _ordered_once_known(agents: _Agents, order: CaptureOrder, tell: Tell, *, is_spread: bool) -> CapturedJob:
    """Order it; again and again for some time where nobody knows the job, or as long as the process it is named by."""
    end = time.monotonic() + _UNKNOWN_SECONDS
    process = f"/proc/{order.job}" if order.job and order.job.isdecimal() else ""
    was_there = bool(process) and os.path.exists(process)
    is_told = False
    while True:
        if is_spread:
            order = replace(order, start_unix_ns=time.time_ns() + int(_SPREAD_SECONDS * 1e9))
        try:
            return _ordered(agents, order)
        except _NobodyError:
            has_ended = was_there and not os.path.exists(process)
            if order.job is None or has_ended or time.monotonic() > end:
                raise
        if not is_told:
            tell(f"no process of job {order.job} is known yet; waits for one, {_UNKNOWN_SECONDS:.0f} s at most")
            is_told = True
        time.sleep(_LOOK_SECONDS)


def _ordered(agents: _Agents, order: CaptureOrder) -> CapturedJob:
    job = CapturedJob(order, {})
    failures: list[StepscopeError] = []
    nowhere: list[StepscopeError] = []
    for url, reply in agents.ask(agents.by_url, "POST", CAPTURES_PATH, order).items():
        if isinstance(reply, UnreachableError):
            failures.append(reply)
        elif reply.status == HTTPStatus.NOT_FOUND and reply.document:
            nowhere.append(_NobodyError(reply.error, where=url))
        elif reply.error:
            failures.append(_refusal(url, reply))
        else:
            job.reports[url] = _report(url, reply)
    if failures or not job.reports:
        raise (failures or nowhere)[0]
    return job


def _awaited(agents: _Agents, job: CapturedJob, tell: Tell) -> CapturedJob:
    """Look again and again, until it has ended, or has no common first step and is to be ordered anew.

    Where ranks are missing, agents that know nobody of it are asked for a while whether they do now: theirs may have
    been started a little later than the others.
    """
    order = job.order
    heard_at = dict.fromkeys(job.reports, time.monotonic())
    late_until = time.monotonic() + _UNKNOWN_SECONDS
    told = ""
    while not job.state.is_final and not _is_torn(job):
        time.sleep(_LOOK_SECONDS)
        waiting = [url for url, report in job.reports.items() if not report.state.is_final]
        replies = agents.ask(waiting, "GET", f"{CAPTURES_PATH}/{order.id}")
        forgotten = [url for url, reply in replies.items() if _is_not_found(reply)]
        replies |= agents.ask(forgotten, "POST", CAPTURES_PATH, order)  # an agent that was started anew; ranks know
        if job.missing_ranks and time.monotonic() < late_until:
            late = agents.ask(agents.by_url.keys() - job.reports.keys(), "POST", CAPTURES_PATH, order)
            replies |= {url: reply for url, reply in late.items() if not _is_refused(reply)}
        for url, reply in replies.items():
            if isinstance(reply, UnreachableError) or _is_not_found(reply):
                if time.monotonic() - heard_at[url] > _AWAY_SECONDS:
                    raise reply if isinstance(reply, UnreachableError) else _refusal(url, reply)
                continue
            if reply.error:
                raise _refusal(url, reply)
            heard_at[url] = time.monotonic()
            job.reports[url] = _report(url, reply)
        line = f"capture {order.id}: {_state_in_words(job)}"
        if line != told:
            told = line
            tell(line)
        if order.deadline_unix_ns is not None and time.time_ns() > order.deadline_unix_ns + int(_WRITING_SECONDS * 1e9):
            raise DataError("the agents still wait for ranks", where=f"capture {order.id}")
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


def _report(url: str, reply: AgentReply) -> CaptureReport:
    try:
        return report_of(reply.document)
    except FieldError as error:
        raise UnreachableError(f"what answers is no agent of this version ({error})", where=url) from None


def _is_torn(job: CapturedJob) -> bool:
    """Whether ranks that share no store have come to different first steps."""
    waiting = [one for one in job.ranks if not one.state.is_final]
    is_told = bool(waiting) and all(one.start_step is not None for one in waiting)
    by_time = any(one.aligned_by is Alignment.TIME for one in waiting)
    return is_told and by_time and len({one.start_step for one in waiting}) > 1


def _common_step(job: CapturedJob) -> int:
    """One that no rank has begun when it hears of it."""
    furthest = max(one.start_step or 0 for one in job.ranks)
    steps_ms = [one.step_ms for one in job.ranks if one.step_ms]
    return furthest + math.ceil(_AGREED_SECONDS * 1e3 / min(steps_ms, default=1e3)) + 1


def _warnings(job: CapturedJob) -> tuple[Notice, ...]:
    notices = []
    if missing := job.missing_ranks:
        line = f"none of these agents has {ranks_words(missing)}; name those of all nodes with --agent"
        notices.append(Notice("ranks_missing", line))
    if len({one.start_step for one in job.ranks if one.state is CaptureState.DONE}) > 1:
        line = "not all ranks began with the same step; analyse only steps that all traces have"
        notices.append(Notice("starts_differ", line))
    reports = job.reports.values()
    if sum(any(one.path and one.start_step is None for one in report.ranks) for report in reports) > 1:
        line = "ranks of one node hold the same steps; nobody tells whether those of other nodes do"
        notices.append(Notice("starts_unknown", line))
    return tuple(notices)


def _ranks_in_words(job: CapturedJob) -> str:
    num, nodes = len(job.ranks), len(job.reports)
    return f"{counted(num, 'rank')} on {counted(nodes, 'node')}"


def _state_in_words(job: CapturedJob) -> str:
    counts: dict[CaptureState, int] = {}
    for one in job.ranks:
        counts[one.state] = counts.get(one.state, 0) + 1
    starts = sorted({one.start_step for one in job.ranks if one.start_step is not None and not one.state.is_final})
    step = f", from step {number_runs(starts)}" if starts else ""
    why = next((f": {one.reason}" for one in job.ranks if one.reason and not one.state.is_final), "")
    return ", ".join(f"{count} {state}" for state, count in counts.items()) + step + why
