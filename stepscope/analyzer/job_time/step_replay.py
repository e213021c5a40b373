"""Replay of a job's steps with some of what holds its ranks up, and without the rest.

Ranks wait for each other once a step. Until then a rank waits for its batch, does its part of the step and whatever
else it does before; after it, it saves, evaluates, collects. So a step is

    together = max over ranks (end of the step before + wait + held up before + own time)
    end = together + held up after

which is exact for the recorded steps: the earliest end of a step tells when ranks were together, a rank that ends later
shows what it did after that, and the rank that arrived last shows the own time of a step. Without a cause the same
recurrence gives what the steps would have taken. What one cause hides of another, in the same step or the next, needs
no rule of its own.

The batches of a loader that is too slow come at its own pace, whatever the ranks do meanwhile: its workers go on while
another rank saves, until they are as far ahead as they may be. Its waits are replayed by that queue.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from stepscope.analyzer.job_time.loader_queue import LoaderQueue
from stepscope.analyzer.job_time.steps import Floats, HostLoss, JobSteps

MOSTLY_AFTER = 0.25
"""Least part of a rank's loss that shows as its late ends, for the rank to have it after its part of each step."""


class _Parts(NamedTuple):
    """What the ranks' steps are made of: ms by step and rank.

    Attributes:
        before, after: by loss, how long it holds a rank up until it waits for the others, and after that.
        own_ms: a rank's own part of a step; of ranks that others wait not for, as much as fits.
        late_ms: what a rank ends later for no recorded reason; negative where it does not wait for the others.
        start_ms: by step, when it begins where the step before does not tell; else NaN.
    """

    before: dict[HostLoss, Floats]
    after: dict[HostLoss, Floats]
    own_ms: Floats
    late_ms: Floats
    start_ms: Floats


class StepReplay:
    """Replay of recorded steps.

    Args:
        held_up: by loss, step and rank: how long the rank was held up, no instant counted twice.
        usual: the steps that show how long ranks usually take.
        queues: by column, the queue of a rank whose loader is too slow.
    """

    def __init__(
        self,
        steps: JobSteps,
        held_up: Mapping[HostLoss, Floats],
        usual: np.typing.NDArray[np.bool_],
        queues: Mapping[int, LoaderQueue],
    ) -> None:
        self._queues = queues
        self._parts = _parts(steps, held_up, usual)

    def periods_ms(self, kept: Sequence[Collection[HostLoss]]) -> Floats:
        """Periods of all steps with only these losses kept: ms by step and set of losses."""
        parts = self._parts
        num_steps, num_ranks = parts.own_ms.shape
        if num_ranks == 1 and not self._queues:  # nothing hides anything
            return np.stack([self._one_after_another(losses) for losses in kept], axis=1)
        has = {loss: np.array([loss in losses for losses in kept])[:, None] for loss in parts.before}
        waits = has[HostLoss.DATA_WAIT]
        queues = {column: queue.replay(len(kept)) for column, queue in self._queues.items()}
        before = [(has[loss], parts.before[loss]) for loss in has if loss is not HostLoss.DATA_WAIT]
        after = [(has[loss], parts.after[loss]) for loss in has]
        before = [(of, ms) for of, ms in before if ms.any()]
        after = [(of, ms) for of, ms in after if ms.any()]
        end = np.zeros((len(kept), num_ranks))
        latest = np.zeros(len(kept))
        periods = np.empty((num_steps, len(kept)))
        for row in range(num_steps):
            if not np.isnan(parts.start_ms[row]):
                end[:] = latest[:] = parts.start_ms[row]
                for queue in queues.values():
                    queue.restart()
            ready = end + waits * parts.before[HostLoss.DATA_WAIT][row]
            for column, queue in queues.items():
                ready[:, column] = queue.next_ready(row, end[:, column], waits[:, 0])
            arrived = ready + parts.own_ms[row]
            for of, ms in before:
                arrived += of * ms[row]
            end = arrived.max(axis=1, keepdims=True) + parts.late_ms[row]
            for of, ms in after:
                end = end + of * ms[row]
            ends = np.maximum(end.max(axis=1), latest)  # ranks that do not wait for the others may end before them
            periods[row] = ends - latest
            latest = ends
        return periods

    def _one_after_another(self, kept: Collection[HostLoss]) -> Floats:
        """Periods of the only rank's steps."""
        lost: Floats = sum((self._parts.before[loss] for loss in kept), start=np.zeros_like(self._parts.own_ms))
        return (self._parts.own_ms + lost)[:, 0]


def _parts(steps: JobSteps, held_up: Mapping[HostLoss, Floats], usual: np.typing.NDArray[np.bool_]) -> _Parts:
    end = steps.known_ends_ms
    is_first = np.concatenate(([True], steps.attempt[1:] != steps.attempt[:-1])) | steps.is_after_gap
    start = np.where(is_first, steps.latest_end_ms - steps.period_ms, np.nan)
    began = np.concatenate((end[:1], end[:-1]))
    began[is_first] = start[is_first, None]
    done = end - held_up[HostLoss.LATENESS]
    for _ in range(2):  # a rank that mostly does something after a step does so also where all others are late too
        # Ranks that are not synchronised may end a step before another has begun it.
        together = np.maximum(done.min(axis=1, keepdims=True), began.max(axis=1, keepdims=True))
        after = _after(held_up, end - together)
        is_mostly = {loss: after[loss].sum(axis=0) >= MOSTLY_AFTER * own.sum(axis=0) for loss, own in held_up.items()}
        done = end - sum(is_mostly[loss] * own for loss, own in held_up.items() if loss is not HostLoss.DATA_WAIT)
    late = end - together - sum(after.values())
    before = {}
    left = together - began
    for loss, own in held_up.items():
        before[loss] = np.minimum(own - after[loss], left)
        left = left - before[loss]
    own = left.min(axis=1, keepdims=True)
    typical = float(np.median(own[usual])) if usual.any() else 0.0
    return _Parts(before, after, np.minimum(np.maximum(own, typical), left), late, start)


def _after(held_up: Mapping[HostLoss, Floats], late_ms: Floats) -> dict[HostLoss, Floats]:
    """By loss, what of it explains that a rank ends later than the others: first the one that is most alike."""
    candidates = [loss for loss in held_up if loss is not HostLoss.DATA_WAIT]
    own = np.stack([held_up[loss] for loss in candidates])
    closest = np.where(own > 0, np.abs(own - late_ms), np.inf).argmin(axis=0)
    after = dict.fromkeys(held_up, np.zeros_like(late_ms))
    for is_first in (True, False):
        for place, loss in enumerate(candidates):
            more = np.where((closest == place) == is_first, np.clip(late_ms, 0.0, own[place]), 0.0)
            after[loss] = after[loss] + more
            late_ms = late_ms - more
    return after
