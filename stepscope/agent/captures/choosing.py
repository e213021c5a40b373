"""Which processes does an order mean, and may it? Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from http import HTTPStatus

from stepscope.agent.captures.backend import CaptureTarget
from stepscope.core.captures import CaptureOrder, CaptureReport
from stepscope.core.counting import counted

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


def chosen(
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
