"""One capture: the processes that a request selects, its limits, and what to ask each process next.

Pure: no I/O, time is an argument.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from http import HTTPStatus

from stepscope.agent.config.settings import CaptureLimits
from stepscope.core.protocol import captures
from stepscope.core.text.numbers import counted

_MAX_OPEN = 8
"""Captures at the same time; training takes as many."""
_MAX_SECONDS = 3600.0
"""Until a capture is given up, also where no deadline is requested."""
_HOUR_NS = 3_600_000_000_000
_MAX_NAMED = 3
_NO_PROCESSES = "; none is: training is known under stepscope.profile(), and when started with KINETO_USE_DAEMON=1"
_LAUNCHERS = ("slurm", "pbs", "lsf", "flux", "oar", "mpi")
"""First part of the name of a run without a name of its own; the scheduler's number of the job follows."""


class CaptureRefusedError(Exception):
    """A capture request that the agent refuses."""

    def __init__(self, status: HTTPStatus, why: str) -> None:
        self.status = status
        super().__init__(why)


def select_capture_targets(
    targets: Iterable[captures.CaptureTarget],
    selector: captures.CaptureSelector,
    ranks: Collection[int] | None = None,
    *,
    job_pids: Collection[int] = (),
    closed: Sequence[str] = (),
) -> list[captures.CaptureTarget]:
    """The processes of a run or job that the agent is to capture, by run and rank.

    Args:
        targets: all that could be captured; of one process that two backends know, the first counts.
        ranks: those wanted; None is all.
        job_pids: processes (in the agent's namespace) of the selected job.
        closed: why backends know of no process.

    Raises:
        RefusedError: no such process is here, or several runs have this name.
    """
    known: dict[object, captures.CaptureTarget] = {}
    for target in targets:
        known.setdefault(target.key if target.pid is None else (target.pid, target.uid), target)
    selected = _of_one_user([one for one in known.values() if _is_selected(one, selector, job_pids)], job_pids)
    if not selected:
        names = sorted({target.run for target in known.values() if target.run})
        listed = ", ".join(names[:_MAX_NAMED]) + (" and others" if len(names) > _MAX_NAMED else "")
        connected = f"; connected are: {listed}" if names else _NO_PROCESSES
        reasons = f" ({'; '.join(closed)})" if closed else ""
        raise CaptureRefusedError(HTTPStatus.NOT_FOUND, f"no process of {selector} is known here{connected}{reasons}")
    owners = {(target.uid, target.run_directory) for target in selected if target.run is not None}
    if selector.run is not None and len(owners) > 1:
        directories = ", ".join(sorted(str(directory) for _, directory in owners)[:_MAX_NAMED])
        raise CaptureRefusedError(HTTPStatus.CONFLICT, f"{selector} is not one run; name its directory: {directories}")
    wanted = [target for target in selected if ranks is None or target.rank in ranks]
    if not wanted:
        here = ", ".join(sorted({str(target.rank) for target in selected}))
        raise CaptureRefusedError(HTTPStatus.NOT_FOUND, f"none of these ranks of {selector} is here; here are: {here}")
    return sorted(wanted, key=lambda target: target.sort_key)


def capture_within_limits(
    request: captures.CaptureRequest,
    targets: Sequence[captures.CaptureTarget],
    others: Sequence[captures.CaptureReport],
    limits: CaptureLimits,
    now_ns: int,
) -> captures.CaptureRequest:
    """The capture request, with the agent's limits where it leaves them open.

    Args:
        others: captures requested before.

    Raises:
        RefusedError: it is beyond a limit, or too frequent.
    """
    latest_ns = now_ns + int(_MAX_SECONDS * 1e9)
    beyond = None
    if request.steps > limits.max_steps:
        beyond = f"at most {counted(limits.max_steps, 'step is', 'steps are')} captured at once"
    elif request.max_bytes is not None and request.max_bytes > limits.max_bytes:
        beyond = f"a trace has at most {limits.max_bytes} bytes"
    elif request.start_unix_ns is not None and request.start_unix_ns > latest_ns:
        beyond = f"a capture starts within {_MAX_SECONDS:.0f} s"
    if beyond is not None:
        raise CaptureRefusedError(HTTPStatus.UNPROCESSABLE_ENTITY, beyond)
    if sum(not report.state.is_final for report in others) >= _MAX_OPEN:
        line = f"{counted(_MAX_OPEN, 'capture is', 'captures are')} open already; ask again when one is done"
        raise CaptureRefusedError(HTTPStatus.TOO_MANY_REQUESTS, line)
    runs = set(map(_run_key, targets))
    num_recent = sum(
        abs(now_ns - report.created_ns) < _HOUR_NS  # the clock may have been set back by hours
        and not runs.isdisjoint(_run_key(one.target) for one in report.ranks)
        for report in others
    )
    if num_recent >= limits.max_per_hour:
        times = counted(num_recent, "time")
        line = f"this run was captured {times} within an hour; no more than {limits.max_per_hour} may be"
        raise CaptureRefusedError(HTTPStatus.TOO_MANY_REQUESTS, line)
    deadline_ns = min(request.deadline_unix_ns or latest_ns, latest_ns)
    return replace(request, max_bytes=request.max_bytes or limits.max_bytes, deadline_unix_ns=deadline_ns)


def _is_selected(target: captures.CaptureTarget, selector: captures.CaptureSelector, job_pids: Collection[int]) -> bool:
    if selector.run is not None and selector.run not in (target.run, target.run_directory):
        return False
    if selector.uid is not None and selector.uid != target.uid:
        return False
    if selector.job is None or target.pid in job_pids:
        return True
    return target.job == selector.job or target.run in {f"{launcher}-{selector.job}" for launcher in _LAUNCHERS}


def _of_one_user(
    selected: Sequence[captures.CaptureTarget], job_pids: Collection[int]
) -> Sequence[captures.CaptureTarget]:
    """Those of the user who has the job, or has used the name for longest: others may use the same names."""
    of_job = {target.uid for target in selected if target.pid in job_pids}
    if len(of_job) == 1:
        return [target for target in selected if target.uid in of_job]
    since: dict[int | None, float] = {}
    for target in selected:
        if target.known_since is None:
            return selected
        since[target.uid] = min(since.get(target.uid, target.known_since), target.known_since)
    first = [uid for uid, at in since.items() if at == min(since.values())]
    return [target for target in selected if target.uid in first]


def _run_key(target: captures.CaptureTarget) -> tuple[int | None, str]:
    return target.uid, target.key if target.run_directory is None else target.run_directory


_ASK_AGAIN_SECONDS = 10.0
"""Without an answer; a rank that answers "accepted" is asked again only after it was away."""
_AWAY_SECONDS = 75.0
"""How long a process may be away: after an agent's restart it is back within a minute."""
_WRITING_SECONDS = 300.0
"""From the deadline on, for the last traces to be written."""


class Capture:
    """One capture on request at this agent: what each process was asked, and has answered."""

    def __init__(self, report: captures.CaptureReport, now: float) -> None:
        """`report` is a new one, or as kept by an agent that has ended since."""
        self.report = report
        self._asked_at: dict[str, float] = {}
        self._here_at = {one.target.key: now for one in report.ranks}

    @classmethod
    def new(
        cls,
        order: captures.CaptureOrder,
        targets: Sequence[captures.CaptureTarget],
        *,
        host: str,
        now_ns: int,
        now: float,
    ) -> Capture:
        """One that no process has been asked for yet."""
        asked = captures.CaptureProgress(captures.CaptureState.ASKED)
        return cls(
            captures.CaptureReport(
                host, now_ns, order, tuple(captures.RankCapture(target, asked) for target in targets)
            ),
            now,
        )

    @property
    def request(self) -> captures.CaptureRequest:
        return self.report.order.request

    def cancel(self) -> None:
        """Tell each process that was or is asked, from now on, that the capture is cancelled."""
        self.report = replace(self.report, is_cancelled=True)
        self._asked_at.clear()

    def update(self, update: captures.CaptureUpdate) -> captures.RankCapture | None:
        """Take in what a process answered; its capture then, None when that is nothing new."""
        one = next((one for one in self._open_ranks() if one.target.key == update.key), None)
        if one is None:
            return None
        before, new = one.progress, update.progress
        progress = replace(
            new,
            start_step=before.start_step if new.start_step is None else new.start_step,
            steps=before.steps if new.steps is None else new.steps,
            aligned_by=new.aligned_by or before.aligned_by,
            joined=new.joined or before.joined,
        )
        return None if progress == before else self._set_progress(one, progress)

    def to_ask(self, here: Collection[str], now: float) -> list[str]:
        """Keys of the processes to ask or to cancel now: those not asked yet, without an answer, or back again.

        Args:
            here: keys of all processes that can be asked.
        """
        keys = []
        for one in self._open_ranks():
            key = one.target.key
            if key not in here:
                self._asked_at.pop(key, None)
                continue
            self._here_at[key] = now
            is_owing = one.progress.state is captures.CaptureState.ASKED or self.report.is_cancelled
            is_silent = is_owing and now - self._asked_at.get(key, now) > _ASK_AGAIN_SECONDS
            if key not in self._asked_at or is_silent:
                self._asked_at[key] = now
                keys.append(key)
        return keys

    def give_up(self, is_alive: Mapping[str, bool], now: float, now_ns: int) -> list[captures.RankCapture]:
        """Set those that will not answer any more to failed, and return them.

        Args:
            is_alive: of processes that are away, whether they still run; unknown ones are absent.
        """
        deadline_ns = self.request.deadline_unix_ns
        is_late = deadline_ns is not None and now_ns > deadline_ns + int(_WRITING_SECONDS * 1e9)
        given_up = []
        for one in self._open_ranks():
            if not is_alive.get(one.target.key, True):
                why = "its process has ended"
            elif now - self._here_at[one.target.key] > _AWAY_SECONDS:
                why = f"its process has been away for {_AWAY_SECONDS:.0f} s"
            elif is_late:
                why = "it has not answered in time"
            else:
                continue
            failed = replace(one.progress, state=captures.CaptureState.FAILED, reason=why)
            given_up.append(self._set_progress(one, failed))
        return given_up

    def away(self, here: Collection[str]) -> dict[str, int | None]:
        """Processes that are still to answer and not here, with their pids."""
        return {one.target.key: one.target.pid for one in self._open_ranks() if one.target.key not in here}

    def _open_ranks(self) -> list[captures.RankCapture]:
        return [one for one in self.report.ranks if not one.progress.state.is_final]

    def _set_progress(self, one: captures.RankCapture, progress: captures.CaptureProgress) -> captures.RankCapture:
        changed = replace(one, progress=progress)
        ranks = tuple(changed if other is one else other for other in self.report.ranks)
        self.report = replace(self.report, ranks=ranks)
        return changed
