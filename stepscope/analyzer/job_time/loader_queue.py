"""Queue of a loader that is too slow: its workers make batches at their own pace, so far ahead of the training loop.

A worker begins a batch when it is done with its last one and the loop has taken the batch that frees a place: batch k
after k - workers x prefetch_factor. So a step that gets shorter makes the loop wait longer, not finish sooner.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from stepscope.analyzer.job_time.steps import Floats

MIN_WAIT_SHARE = 0.1
"""Least part of a usual step for a step to be one that waits."""
TOLERANCE_SHARE = 0.25
"""Most that a waited batch comes later than by its queue, as a part of a usual step, to have come just then."""
MIN_KNOWN = 3
"""Fewer batches that come after another one that was waited for do not show how long one takes."""
MAX_APART = 8
"""Most batches of a worker from one that was waited for to the next."""
MAX_MISMATCH = 0.25
"""Most that replayed waits differ from the recorded ones, as a part of these, for a loader to be known ..."""
MAX_MISMATCH_OF_STEP = 0.05
"""... or as a part of the steps, where something else hides most of the waits ..."""
MAX_UNEXPLAINED = 0.5
"""... and in any case as a part of the recorded ones: a queue that leaves more of them unexplained is no reason."""

MAX_OF_SPREAD = 0.5
"""The same as a part of how much waits spread, where nothing else tells that the loader has workers."""
DEFAULT_PREFETCH = 2
"""Batches that each worker makes ahead, as torch's DataLoader does."""


class LoaderQueue(NamedTuple):
    """A rank's loader, times in ms.

    Attributes:
        num_workers: each makes a batch at a time.
        num_ahead: batches made or begun beyond the one that the loop has.
        making_ms: how long a worker takes for a batch, by step.
    """

    num_workers: int
    num_ahead: int
    making_ms: Floats

    def replay(self, num_variants: int) -> QueueReplay:
        """The same loader beside so many variants of the training loop."""
        return QueueReplay(self, num_variants)


class QueueReplay:
    """A loader beside variants of the training loop."""

    def __init__(self, queue: LoaderQueue, num_variants: int) -> None:
        self._queue = queue
        self._none = np.full(num_variants, -np.inf)
        self._ready: list[Floats] = []
        self._taken: list[Floats] = []

    def restart(self) -> None:
        """Begin with an empty queue, as each attempt does."""
        self._ready, self._taken = [], []

    def next_ready(self, row: int, asked_ms: Floats, has_waits: npt.NDArray[np.bool_]) -> Floats:
        """When the loop has its next batch if it asks for it then, by variant; at once in those without waits."""
        queue, ready, taken = self._queue, self._ready, self._taken
        made = ready[-queue.num_workers] if len(ready) >= queue.num_workers else self._none
        freed = taken[-queue.num_ahead] if len(taken) >= queue.num_ahead else self._none
        begun = np.maximum(made, freed)
        ready.append(np.where(np.isinf(begun), asked_ms, begun + queue.making_ms[row]))
        taken.append(np.where(has_waits, np.maximum(asked_ms, ready[-1]), asked_ms))
        del ready[: -queue.num_workers], taken[: -queue.num_ahead]
        return taken[-1]

    def correct(self, taken_ms: float, tolerance_ms: float) -> None:
        """Set when the loop has taken its last batch, and that it was ready just then, if it was so within a
        tolerance: a loop that lacks its CPU waits for ready batches too."""
        self._taken[-1] = np.full_like(self._none, taken_ms)
        if np.all(taken_ms - self._ready[-1] < tolerance_ms):
            self._ready[-1] = self._taken[-1]


def loader_queue(
    began_ms: Floats,
    wait_ms: Floats,
    is_restart: npt.NDArray[np.bool_],
    usual_ms: float,
    num_workers: int | None,
    prefetch: int = DEFAULT_PREFETCH,
) -> LoaderQueue | None:
    """The queue of a rank whose loader is too slow, by its own waits; None where they are no such queue's.

    Args:
        began_ms: by step, when the loop asked for its batch.
        wait_ms: by step, how long it waited for it.
        is_restart: steps before which the loader began anew, or is not known.
        usual_ms: a step without waits.
        num_workers: of the loader; None where unknown: one stands for all of them, if batches come at their own pace
            rather than so long after they are asked for, as those that the training process makes itself.
        prefetch: batches that each worker makes ahead.
    """
    is_known, num_workers = num_workers is not None, 1 if num_workers is None else num_workers
    if not num_workers:
        return None
    waited = wait_ms > MIN_WAIT_SHARE * usual_ms
    taken = began_ms + wait_ms
    counted = ~is_restart
    recorded = np.where(waited, wait_ms, 0.0)[counted]
    most = max(MAX_MISMATCH * float(recorded.sum()), MAX_MISMATCH_OF_STEP * usual_ms * len(recorded))
    most = min(most, MAX_UNEXPLAINED * float(recorded.sum()))
    if not is_known and len(recorded):
        most = min(most, MAX_OF_SPREAD * float(np.abs(recorded - np.median(recorded)).sum()))
    best = None
    for making_ms in _making_ms(taken, waited, is_restart, num_workers):
        queue = LoaderQueue(num_workers, num_workers * prefetch, making_ms)
        replayed = _waits(queue, began_ms, taken, waited, is_restart, TOLERANCE_SHARE * usual_ms)[counted]
        mismatch = float(np.abs(replayed - recorded).sum())
        if mismatch < most:
            best, most = queue, mismatch
    return best


def _making_ms(
    ready_ms: Floats, waited: npt.NDArray[np.bool_], is_restart: npt.NDArray[np.bool_], num_workers: int
) -> list[Floats]:
    """How long each batch may have taken, the likeliest first: known where that worker's last one was waited for too,
    else one of a few lengths that all others share: that of the known ones, or what the waited ones are apart."""
    rows = np.flatnonzero(waited)
    segment = np.cumsum(is_restart)
    first, then = rows[:-1], rows[1:]
    is_near = (segment[first] == segment[then]) & (then - first <= MAX_APART * num_workers)
    first, then = first[is_near], then[is_near]
    if len(first) < MIN_KNOWN:
        return []
    apart = (ready_ms[then] - ready_ms[first]) / (then - first) * num_workers
    making = np.full(len(ready_ms), np.nan)
    making[num_workers:] = ready_ms[num_workers:] - ready_ms[:-num_workers]
    known = waited.copy()
    known[:num_workers] = False
    known[num_workers:] &= waited[:-num_workers] & (segment[num_workers:] == segment[:-num_workers])
    known &= ~is_restart
    typical = [float(np.median(making[known]))] if known.any() else []
    typical += [float(np.median(apart)), float(apart.min())]
    return [np.where(known, making, one) for one in dict.fromkeys(typical) if one > 0]


def _waits(
    queue: LoaderQueue,
    began_ms: Floats,
    taken_ms: Floats,
    has_waited: npt.NDArray[np.bool_],
    is_restart: npt.NDArray[np.bool_],
    tolerance_ms: float,
) -> Floats:
    """Waits of a loop that takes its batches when the recorded one did."""
    replay = queue.replay(1)
    always = np.ones(1, np.bool_)
    waits = np.zeros(len(began_ms))
    begun = 0
    for row in range(len(began_ms)):
        if is_restart[row]:
            replay.restart()
            begun = row
        waits[row] = replay.next_ready(row, began_ms[row : row + 1], always)[0] - began_ms[row]
        is_first = row - begun < queue.num_workers  # of its worker, which began nobody knows when
        replay.correct(float(taken_ms[row]), np.inf if is_first else tolerance_ms if has_waited[row] else 0.0)
    return waits
