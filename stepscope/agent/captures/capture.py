"""What is to be said to whom, for a capture to come about? One capture's way, without I/O; time is an argument."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from stepscope.agent.captures.backend import CaptureTarget
from stepscope.core.agent_messages import Answer, CaptureRequest
from stepscope.core.captures import CaptureOrder, CaptureReport, CaptureState, RankCapture

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
