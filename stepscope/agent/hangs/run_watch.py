"""Do the steps of a run last longer than they should, and who of its ranks has fallen silent? Pure: time is told."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from stepscope.core.long_steps import worth_a_look_seconds
from stepscope.core.training_ranks import TrainingRank

_FIRST_SECONDS = 600.0
"""First steps load and compile."""
_NUM_FIRST_STEPS, _NUM_REMEMBERED = 3, 100
_SILENT_SECONDS = 8.0
"""A process speaks once a second."""
_TOLD_LATE_SECONDS = 5.0
"""Steps that ended just before a process did are heard of only after it has gone."""


class RunWatch:
    """The ranks of one run on this node."""

    def __init__(self) -> None:
        self._seconds: deque[float] = deque(maxlen=_NUM_REMEMBERED)
        self._steps: dict[int, int] = {}
        self._known: dict[int, tuple[TrainingRank, float]] = {}
        self._ranks: Sequence[TrainingRank] = ()
        self._now = 0.0

    def look(self, ranks: Sequence[TrainingRank], now: float) -> None:
        """Take in how the run's ranks are now, at least one; `now` in monotonic seconds."""
        self._ranks, self._now = ranks, now
        for rank in ranks:
            if rank.step is not None and rank.step_ms is not None and self._steps.get(rank.rank) != rank.step:
                self._steps[rank.rank] = rank.step
                if rank.step >= _NUM_FIRST_STEPS:
                    self._seconds.append(rank.step_ms / 1e3)
        self._known |= {rank.rank: (rank, now) for rank in ranks}

    @property
    def limit_seconds(self) -> float:
        """Age from which an open step is doubted."""
        return worth_a_look_seconds(self._seconds) if self._seconds else _FIRST_SECONDS

    @property
    def age_seconds(self) -> float:
        """Of the oldest open step of ranks that are connected."""
        return max((rank.step_age_ms or 0.0) / 1e3 for rank in self._ranks)

    @property
    def is_doubtful(self) -> bool:
        """Whether a step has lasted so long that it is worth asking."""
        return self.age_seconds >= self.limit_seconds

    def silent(self) -> list[TrainingRank]:
        """Ranks that were there when steps last ended, and have gone or say nothing any more."""
        here = {rank.rank for rank in self._ranks}
        mute = [rank for rank in self._ranks if rank.heartbeat_age_ms >= _SILENT_SECONDS * 1e3]
        stood_at = self._now - self.age_seconds - _TOLD_LATE_SECONDS
        gone = [rank for number, (rank, seen) in self._known.items() if number not in here and seen >= stood_at]
        return sorted([*mute, *gone], key=lambda rank: rank.rank)

    def at_work(self) -> list[TrainingRank]:
        """Ranks that say that they are in a phase."""
        silent = {rank.rank for rank in self.silent()}
        return [rank for rank in self._ranks if rank.doing and rank.rank not in silent]
