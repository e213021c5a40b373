"""Changes of the live verdicts of runs that last, within a number of calls an hour for each user.

Pure: no I/O, time is an argument.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from stepscope.core.documents.node import RunVerdict

VERDICT_CHANGE_SCHEMA = "stepscope.verdict-change/1"
_KEPT_SECONDS = 3600.0
"""After its last verdict a run is remembered: training or the agent may connect again."""
_MAX_RUNS_OF_USER = 128
_HOUR_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class VerdictChange:
    """Change of the live verdict of a run.

    Attributes:
        before: cause of the bottleneck that was there; empty for none.
        now: the verdict.
    """

    before: str
    now: RunVerdict


def change_document(change: VerdictChange, host: str) -> dict[str, Any]:
    """The JSON document of a change; `host` is the machine whose agent sends it."""
    return {
        "schema": VERDICT_CHANGE_SCHEMA,
        "host": host,
        "uid": change.now.uid,
        "before": change.before or None,
        "verdict": asdict(change.now.verdict),
    }


@dataclass(slots=True)
class _Run:
    """A run: the state that was announced, and the newer one that must last."""

    announced: str = ""
    waiting: str | None = None
    since: float = 0.0
    since_ns: int = 0
    seen_at: float = 0.0


class VerdictChanges:
    """Finds changes of bottlenecks that last over at least two verdicts. A run begins without a bottleneck.

    Args:
        settle_seconds: that a change must last.
        per_hour: changes for the runs of one user; further ones wait.
    """

    def __init__(self, settle_seconds: float, per_hour: int) -> None:
        self._settle_seconds, self._per_hour = settle_seconds, per_hour
        self._runs: dict[tuple[int | None, str], _Run] = {}
        self._times: dict[int | None, deque[float]] = {}

    def take(self, verdicts: Iterable[RunVerdict], now: float) -> list[VerdictChange]:
        """The changes that are due, by the newest verdict of each run; `now` in monotonic seconds."""
        self._forget(now)
        return [change for one in verdicts if (change := self._change(one, now)) is not None]

    def _change(self, one: RunVerdict, now: float) -> VerdictChange | None:
        verdict = one.verdict
        run = self._of(one, now)
        if verdict.bottleneck is None:  # what is not known is no change
            return None
        state = verdict.cause if verdict.bottleneck else ""
        if state == run.announced:
            run.waiting = None
        elif state != run.waiting:
            run.waiting, run.since, run.since_ns = state, now, verdict.time_ns
        elif verdict.time_ns > run.since_ns and now - run.since >= self._settle_seconds and self._may_call(one, now):
            before, run.announced, run.waiting = run.announced, state, None
            return VerdictChange(before, one)
        return None

    def _of(self, one: RunVerdict, now: float) -> _Run:
        key = one.uid, one.verdict.run
        of_user = [other for other in self._runs if other[0] == one.uid]
        if key not in self._runs and len(of_user) >= _MAX_RUNS_OF_USER:
            del self._runs[min(of_user, key=lambda other: self._runs[other].seen_at)]
        run = self._runs.setdefault(key, _Run())
        run.seen_at = now
        return run

    def _may_call(self, one: RunVerdict, now: float) -> bool:
        times = self._times.setdefault(one.uid, deque(maxlen=self._per_hour))
        if len(times) == self._per_hour and now - times[0] < _HOUR_SECONDS:
            return False
        times.append(now)
        return True

    def _forget(self, now: float) -> None:
        for key in [key for key, run in self._runs.items() if now - run.seen_at > _KEPT_SECONDS]:
            del self._runs[key]
        for uid in [uid for uid, times in self._times.items() if now - times[-1] > _HOUR_SECONDS]:
            del self._times[uid]
