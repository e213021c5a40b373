"""One capture: the processes that an order means, its limits, and what to ask each process next.

Pure: no I/O, time is an argument.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from http import HTTPStatus

from stepscope.agent.captures.backend import CaptureTarget
from stepscope.core.protocol.captures import CaptureOrder, CaptureReport, CaptureState, RankCapture
from stepscope.core.protocol.messages import Answer, CaptureRequest
from stepscope.core.text.numbers import counted

_HOUR_NS = 3_600_000_000_000
_MOST_NAMED = 3
_NOBODY = "; nobody is: training is known under stepscope.profile(), and when started with KINETO_USE_DAEMON=1"
_LAUNCHED_BY = ("slurm", "pbs", "lsf", "flux", "oar", "mpi")
"""What the name of a run that nobody has named begins with, before the scheduler's number of the job."""


class RefusedError(Exception):
    """An order that is not followed.

    Attributes:
        status: as HTTP has it.
    """

    def __init__(self, status: HTTPStatus, why: str) -> None:
        self.status = status
        super().__init__(why)


@dataclass(frozen=True, slots=True)
class CaptureLimits:
    """What nobody may ask more of than.

    Attributes:
        max_steps: of one capture.
        max_bytes: of one rank's compressed trace; also of who asks for no limit.
        max_per_hour: captures of one run.
        max_open: at the same time; training takes as many.
        max_seconds: until a capture is given up; also of who says no deadline.
    """

    max_steps: int = 100
    max_bytes: int = 1 << 30
    max_per_hour: int = 12
    max_open: int = 8
    max_seconds: float = 3600.0


def chosen_targets(
    targets: Iterable[CaptureTarget],
    order: CaptureOrder,
    *,
    job_pids: Collection[int] = (),
    closed: Sequence[str] = (),
) -> list[CaptureTarget]:
    """The processes that the order means, by run and rank.

    Args:
        targets: all that could be captured; of one process that two back ends name, the first counts.
        job_pids: processes (in the agent's namespace) of the order's job.
        closed: why back ends know of no process.

    Raises:
        RefusedError: there is none here, or the name is that of several runs.
    """
    known: dict[int | str, CaptureTarget] = {}
    for target in targets:
        known.setdefault(target.key if target.pid is None else target.pid, target)
    meant = [target for target in known.values() if _is_meant(target, order, job_pids)]
    what = f"job {order.job}" if order.run is None else f"run {order.run}"
    if not meant:
        names = sorted({target.run for target in known.values() if target.run})
        named = ", ".join(names[:_MOST_NAMED]) + (" and others" if len(names) > _MOST_NAMED else "")
        there = f"; connected are: {named}" if names else _NOBODY
        raise RefusedError(HTTPStatus.NOT_FOUND, f"no process of {what} is known here{there}{_told(closed)}")
    owners = {(target.uid, target.run_directory) for target in meant if target.run is not None}
    if order.run is not None and len(owners) > 1:
        directories = ", ".join(sorted(str(directory) for _, directory in owners)[:_MOST_NAMED])
        raise RefusedError(HTTPStatus.CONFLICT, f"{what} is not one run; name its directory: {directories}")
    wanted = [target for target in meant if order.ranks is None or target.rank in order.ranks]
    if not wanted:
        there = ", ".join(sorted({str(target.rank) for target in meant}))
        raise RefusedError(HTTPStatus.NOT_FOUND, f"none of these ranks of {what} is here; here are: {there}")
    return sorted(wanted, key=lambda target: (target.run or "", -1 if target.rank is None else target.rank, target.key))


def within_limits(
    order: CaptureOrder,
    targets: Sequence[CaptureTarget],
    others: Sequence[CaptureReport],
    limits: CaptureLimits,
    now_ns: int,
) -> CaptureOrder:
    """The order with the limits that it leaves open.

    Args:
        others: captures asked for before.

    Raises:
        RefusedError: it asks for more than anybody may, or too often.
    """
    if order.steps > limits.max_steps:
        raise RefusedError(
            HTTPStatus.UNPROCESSABLE_ENTITY,
            f"at most {counted(limits.max_steps, 'step is', 'steps are')} captured at once",
        )
    if order.max_bytes is not None and order.max_bytes > limits.max_bytes:
        raise RefusedError(HTTPStatus.UNPROCESSABLE_ENTITY, f"a trace has at most {limits.max_bytes} bytes")
    latest_ns = now_ns + int(limits.max_seconds * 1e9)
    if order.start_unix_ns is not None and order.start_unix_ns > latest_ns:
        line = f"a capture starts within {limits.max_seconds:.0f} s"
        raise RefusedError(HTTPStatus.UNPROCESSABLE_ENTITY, line)
    if sum(not report.state.is_final for report in others) >= limits.max_open:
        line = f"{counted(limits.max_open, 'capture is', 'captures are')} open already; ask again when one is done"
        raise RefusedError(HTTPStatus.TOO_MANY_REQUESTS, line)
    keys = {_run_key(target.run_directory, target.key) for target in targets}
    recent = sum(
        abs(now_ns - report.created_ns) < _HOUR_NS  # the clock may have been set back by hours
        and not keys.isdisjoint(_run_key(one.run_directory, one.key) for one in report.ranks)
        for report in others
    )
    if recent >= limits.max_per_hour:
        line = (
            f"this run was captured {counted(recent, 'time')} within an hour; no more than {limits.max_per_hour} may be"
        )
        raise RefusedError(HTTPStatus.TOO_MANY_REQUESTS, line)
    deadline_ns = min(order.deadline_unix_ns or latest_ns, latest_ns)
    return replace(order, max_bytes=order.max_bytes or limits.max_bytes, deadline_unix_ns=deadline_ns)


def _told(closed: Sequence[str]) -> str:
    return f" ({'; '.join(closed)})" if closed else ""


def _is_meant(target: CaptureTarget, order: CaptureOrder, job_pids: Collection[int]) -> bool:
    if order.run is not None and order.run not in (target.run, target.run_directory):
        return False
    if order.job is None:
        return True
    if target.pid in job_pids:
        return True
    return target.job == order.job or target.run in {f"{launcher}-{order.job}" for launcher in _LAUNCHED_BY}


def _run_key(run_directory: str | None, key: str) -> str:
    return key if run_directory is None else run_directory


_ASK_AGAIN_SECONDS = 10.0
"""Without an answer; a rank that answers "accepted" is asked again only after it was away."""
_AWAY_SECONDS = 75.0
"""How long a process may be away: after an agent's restart it is back within a minute."""
_WRITING_SECONDS = 300.0
"""From the deadline on, for the last traces to be written."""


class Capture:
    """One capture at this agent."""

    def __init__(self, report: CaptureReport, now: float) -> None:
        """
        Args:
            report: as it was made, or kept by an agent that has ended since.
            now: monotonic, seconds.
        """
        self.order: CaptureOrder = report.order
        self._host = report.host
        self._created_ns = report.created_ns
        self._ranks: dict[str, RankCapture] = {one.key: one for one in report.ranks}
        self._is_cancelled = report.is_cancelled
        self._asked_at: dict[str, float] = {}
        self._here_at = dict.fromkeys(self._ranks, now)

    @classmethod
    def new(
        cls, order: CaptureOrder, targets: Sequence[CaptureTarget], *, host: str, now_ns: int, now: float
    ) -> Capture:
        """One that nobody has been asked for yet."""
        ranks = tuple(
            RankCapture(
                target.key,
                target.backend,
                target.rank,
                target.world_size,
                target.run,
                target.run_directory,
                target.pid,
                target.uid,
                target.newest_step,
                target.step_ms,
            )
            for target in targets
        )
        return cls(CaptureReport(host, now_ns, order, ranks), now)

    @property
    def report(self) -> CaptureReport:
        """How it is now."""
        return CaptureReport(self._host, self._created_ns, self.order, tuple(self._ranks.values()), self._is_cancelled)

    @property
    def request(self) -> CaptureRequest:
        """What ranks are asked."""
        order = self.order
        return CaptureRequest(
            order.id,
            order.steps,
            order.start_step,
            order.start_unix_ns,
            order.ranks,
            order.max_bytes,
            order.max_overhead,
            order.deadline_unix_ns,
        )

    def cancel(self) -> None:
        """Nobody wants it any more: whoever was or is asked is told so from now on."""
        self._is_cancelled = True
        self._asked_at.clear()

    def answered(self, key: str, answer: Answer) -> RankCapture | None:
        """A process has answered; what is known of it then, None when that is nothing new."""
        one = self._ranks.get(key)
        if one is None or one.state.is_final:
            return None
        self._ranks[key] = replace(
            one,
            state=CaptureState(answer.state),
            reason=answer.reason,
            start_step=one.start_step if answer.start_step is None else answer.start_step,
            steps=one.steps if answer.steps is None else answer.steps,
            aligned_by=answer.aligned_by or one.aligned_by,
            joined=answer.joined or one.joined,
            path=answer.path,
            bytes=answer.bytes,
            overhead=answer.overhead,
            stopped_by=answer.stopped_by,
        )
        return None if self._ranks[key] == one else self._ranks[key]

    def to_ask(self, here: Collection[str], now: float) -> list[str]:
        """Whom to ask now, or to tell that it is cancelled: who was not told yet, has not answered, or was away.

        Args:
            here: keys of all processes that can be asked.
            now: monotonic, seconds.
        """
        keys = []
        for key, one in self._ranks.items():
            if one.state.is_final:
                continue
            if key not in here:
                self._asked_at.pop(key, None)
                continue
            self._here_at[key] = now
            is_owing = one.state is CaptureState.ASKED or self._is_cancelled
            is_silent = is_owing and now - self._asked_at.get(key, now) > _ASK_AGAIN_SECONDS
            if key not in self._asked_at or is_silent:
                self._asked_at[key] = now
                keys.append(key)
        return keys

    def given_up(self, is_alive: Mapping[str, bool], now: float, now_ns: int) -> list[RankCapture]:
        """Those of which nothing is to be expected any more, from now on failed.

        Args:
            is_alive: of processes that are away, whether they still run; those of which that is not known are absent.
            now: monotonic, seconds.
            now_ns: ns since the epoch.
        """
        is_late = self.order.deadline_unix_ns is not None and now_ns > self.order.deadline_unix_ns + int(
            _WRITING_SECONDS * 1e9
        )
        given_up = []
        for key, one in list(self._ranks.items()):
            if one.state.is_final:
                continue
            if not is_alive.get(key, True):
                why = "its process has ended"
            elif now - self._here_at[key] > _AWAY_SECONDS:
                why = f"its process has been away for {_AWAY_SECONDS:.0f} s"
            elif is_late:
                why = "it has not answered in time"
            else:
                continue
            self._ranks[key] = replace(one, state=CaptureState.FAILED, reason=why)
            given_up.append(self._ranks[key])
        return given_up

    def away(self, here: Collection[str]) -> dict[str, int | None]:
        """Processes that are still to answer and not here, with their pids."""
        return {key: one.pid for key, one in self._ranks.items() if not one.state.is_final and key not in here}
