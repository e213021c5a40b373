"""Losses of each step that the host's own records tell, steps that are slow for another reason, and the late rank."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from stepscope.analyzer.job_time.loader_queue import DEFAULT_PREFETCH, LoaderQueue, loader_queue
from stepscope.analyzer.job_time.step_replay import StepReplay
from stepscope.analyzer.job_time.steps import MIN_LATE_SHARE, Flags, Floats, HostLoss, JobSteps
from stepscope.core.documents.training_settings import LoaderSettings

MIN_SLOW_RATIO = 1.5
"""Least ratio of a slow step's rest to the ordinary one."""
MIN_SLOW_SIGMAS = 6.0
"""Least distance of a slow step from the ordinary ones, in their own spread."""
ORDINARY_QUANTILE = 0.25
"""Ordinary steps are those around this quantile, as up to half of all steps may be slow."""
_QUARTILE_TO_SIGMA = 1.4826
MIN_REPEATS = 3
MIN_PERIODIC_SHARE = 0.8


class StepLosses(NamedTuple):
    """What each step lost to the host, by loss: ms, and the rank that held the others up (as a column).

    Attributes:
        ms: what the step takes longer with this loss than with those before it alone, in the order of HostLoss.
        alone_ms: what the step gains if this loss alone is taken away: less than `ms` where another rank is held up by
            something else meanwhile, or another wait takes its place.
        own_ms: what the step loses to this loss alone, without all the others.
        rest_ms: the step without all these losses.
        queues: by column, the queue of a rank whose loader is too slow.
    """

    ms: dict[HostLoss, Floats]
    alone_ms: dict[HostLoss, Floats]
    own_ms: dict[HostLoss, Floats]
    column: dict[HostLoss, npt.NDArray[np.int64]]
    rest_ms: Floats
    queues: dict[int, LoaderQueue]


def step_losses(steps: JobSteps, usual: Flags, loader: LoaderSettings | None = None) -> StepLosses:
    """Losses of each step by a replay of the steps without them.

    Args:
        usual: the steps that show how long ranks usually take.
        loader: settings of the loader that trains; None where unknown.
    """
    held_up = _held_up(steps)
    found = [loss for loss in HostLoss if held_up[loss].any()]
    zeros = dict.fromkeys(set(HostLoss) - set(found), np.zeros(len(steps)))
    column = {loss: steps.host_ms[loss].argmax(axis=1) for loss in HostLoss}
    queues = _queues(steps, held_up[HostLoss.DATA_WAIT], usual, loader)
    kept = [found[:num] for num in range(len(found) + 1)]
    kept += [[other for other in found if other is not loss] for loss in found]
    kept += [[loss] for loss in found]
    periods = StepReplay(steps, held_up, usual, queues).periods_ms(kept)
    num = len(found)
    waiting = [HostLoss.DATA_WAIT in losses for losses in kept]
    periods[:, waiting] += (steps.period_ms - periods[:, num])[:, None]  # what waits differ from those of their queue
    periods = np.maximum(periods, 0.0)
    none, whole = periods[:, 0], periods[:, num]
    ms = {loss: periods[:, place + 1] - periods[:, place] for place, loss in enumerate(found)}
    alone = {loss: whole - periods[:, num + 1 + place] for place, loss in enumerate(found)}
    own = {loss: periods[:, 2 * num + 1 + place] - none for place, loss in enumerate(found)}
    return StepLosses(ms | zeros, alone | zeros, own | zeros, column, none, queues)


def _held_up(steps: JobSteps) -> dict[HostLoss, Floats]:
    """By loss, step and rank: how long the rank was held up, the first cause of an instant taking all of it."""
    ends = steps.known_ends_ms
    own_ms = np.repeat(steps.period_ms[:, None], ends.shape[1], axis=1)
    own_ms[1:] = np.fmax(own_ms[1:], ends[1:] - ends[:-1])  # a rank that waits for another had ended before it
    so_far, by_loss = np.zeros_like(own_ms), {}
    for loss in HostLoss:
        own = steps.host_ms[loss]
        if loss is HostLoss.RUN_DELAY:  # a thread may lack its CPU as well while it collects or loads
            own = own * (1.0 - so_far / np.maximum(own_ms, 1e-9))
        by_loss[loss] = np.minimum(own, own_ms - so_far)
        so_far = so_far + by_loss[loss]
    return by_loss


def _queues(steps: JobSteps, wait_ms: Floats, usual: Flags, loader: LoaderSettings | None) -> dict[int, LoaderQueue]:
    """By column, the queue of a rank whose loader is too slow."""
    if not usual.any():
        return {}
    num_workers = None if loader is None else loader.num_workers
    prefetch = (None if loader is None else loader.prefetch_factor) or DEFAULT_PREFETCH
    is_restart = np.concatenate(([True], steps.attempt[1:] != steps.attempt[:-1])) | steps.is_after_gap
    usual_ms = float(np.median((steps.period_ms - wait_ms.max(axis=1))[usual]))
    queues = {}
    for column in np.flatnonzero(wait_ms.any(axis=0)).tolist():
        ends = steps.known_ends_ms[:, column]
        began = np.where(is_restart, steps.latest_end_ms - steps.period_ms, np.concatenate((ends[:1], ends[:-1])))
        queue = loader_queue(began, wait_ms[:, column], is_restart, usual_ms, num_workers, prefetch)
        if queue is not None:
            queues[column] = queue
    return queues


class SlowSteps(NamedTuple):
    """Steps whose rest is far longer than the ordinary one, without a record of why.

    Attributes:
        is_slow: by step, of all steps.
        ordinary_ms: rest of an ordinary step.
        every: the period at which they come, None where they do not.
        late_ranks: ranks that end them later than the others; empty where all end together.
    """

    is_slow: Flags
    ordinary_ms: float
    every: int | None
    late_ranks: list[int]


def slow_steps(steps: JobSteps, rest_ms: Floats, settled: Flags) -> SlowSteps:
    """Find the slow steps among the settled ones, and what they have in common; other steps by their likeness."""
    is_slow = np.zeros(len(steps), np.bool_)
    if not settled.any():
        return SlowSteps(is_slow, float(np.median(rest_ms)), None, [])
    rest = rest_ms[settled]
    ordinary, middle = np.quantile(rest, (ORDINARY_QUANTILE, 0.5))
    lower = rest[rest <= ordinary * MIN_SLOW_RATIO]
    spread = _QUARTILE_TO_SIGMA * float(np.median(np.abs(lower - np.median(lower))))
    least = max(MIN_SLOW_RATIO * ordinary, ordinary + MIN_SLOW_SIGMAS * spread)
    is_slow[settled] = rest > least
    every = _period(steps, np.flatnonzero(is_slow))
    _complete(steps, rest_ms, settled, is_slow, every)
    late = late_ranks(steps, is_slow & settled)
    typical = float(np.median(rest[~is_slow[settled]])) if (~is_slow[settled]).any() else float(middle)
    return SlowSteps(is_slow, typical, every, late)


def _period(steps: JobSteps, slow: npt.NDArray[np.intp]) -> int | None:
    """The number n if slow steps are every n-th one: most of their distances are n or a multiple of it."""
    if len(slow) < MIN_REPEATS:
        return None
    distances = np.diff(steps.index[slow])
    distances = distances[distances > 0]
    if not len(distances):
        return None
    every = int(np.median(distances))
    fits = (distances % every == 0).mean() if every > 1 else 0.0
    return every if fits >= MIN_PERIODIC_SHARE else None


def _complete(steps: JobSteps, rest_ms: Floats, settled: Flags, is_slow: Flags, every: int | None) -> None:
    """Tell whether steps that are not settled are slow ones: only a period can, as a profiler slows them."""
    if every is None:
        return
    between = np.sqrt(max(rest_ms[settled & ~is_slow].mean(), 1e-9) * rest_ms[is_slow].mean())
    place = int(np.bincount(steps.index[is_slow & settled] % every).argmax())
    is_slow[~settled] = (rest_ms[~settled] > between) & (steps.index[~settled] % every == place)


def late_ranks(steps: JobSteps, which: Flags) -> list[int]:
    """Ranks that end most of these steps later than the others by a tenth of the step; empty where none does.

    Empty as well where clocks may differ by what nobody knows.
    """
    if not steps.are_ends_comparable or len(steps.ranks) < 2 or not which.any():
        return []
    ends = steps.end_ms[which]
    later = ends - np.nanmedian(ends, axis=1)[:, None]
    if len(steps.ranks) == 2:
        later = ends - np.nanmin(ends, axis=1)[:, None]
    is_late = np.nan_to_num(later) > MIN_LATE_SHARE * steps.period_ms[which][:, None]
    share = is_late.mean(axis=0)
    return [rank for rank, often in zip(steps.ranks, share.tolist(), strict=True) if often > 0.5]


_SURROUNDINGS = {HostLoss.CHECKPOINT: 1.0, HostLoss.EVALUATION: 1.0, HostLoss.COMPILATION: 2.0}
"""Most that a loss has around it, as a multiple of its own length: a validation also sets up loaders and runs
callbacks; new code also runs for the first time outside of the compiler's callbacks, which on an H200 saw 40%."""


def with_surroundings(losses: StepLosses, ordinary_ms: float) -> StepLosses:
    """Losses in which a phase or compilation has what its step takes longer than an ordinary one, within limits."""
    ms, alone, own_ms = dict(losses.ms), dict(losses.alone_ms), dict(losses.own_ms)
    rest = losses.rest_ms.copy()
    most = {loss: times * ms[loss] for loss, times in _SURROUNDINGS.items()}
    longest = np.maximum.reduce(list(most.values()))
    more = np.clip(rest - ordinary_ms, 0.0, longest)
    for loss in _SURROUNDINGS:
        is_longest = (most[loss] == longest) & (more > 0)
        for of in (ms, alone, own_ms):
            of[loss] = of[loss] + np.where(is_longest, more, 0.0)
        rest, more = rest - np.where(is_longest, more, 0.0), np.where(is_longest, 0.0, more)
    return losses._replace(ms=ms, alone_ms=alone, own_ms=own_ms, rest_ms=rest)


MIN_OWN_SHARE = 0.25
"""Least part of a loss that one rank alone causes for ranks to be named; below it all of them lose the same."""


def ranks_by_loss(steps: JobSteps, losses: StepLosses, loss: HostLoss, weight: Floats) -> dict[int, float]:
    """Part of one loss by the rank that caused it, ms over all steps: what it was held up longer than the others.

    Where all ranks are held up at once, each causes the same part.
    """
    held_up = steps.host_ms[loss]
    slowest = losses.column[loss]
    rows = np.arange(len(steps))
    others = held_up.copy()
    others[rows, slowest] = np.nan
    usual = np.nanmedian(others, axis=1) if len(steps.ranks) > 1 else np.zeros(len(steps))
    alone = np.minimum(held_up[rows, slowest] - usual, losses.own_ms[loss]) * weight
    total = float((losses.own_ms[loss] * weight).sum())
    if total <= 0:
        return {}
    if alone.sum() < MIN_OWN_SHARE * total:
        return dict.fromkeys(steps.ranks, total / len(steps.ranks))
    parts = np.bincount(slowest, weights=alone, minlength=len(steps.ranks))
    return {rank: part for rank, part in zip(steps.ranks, parts.tolist(), strict=True) if part > 0}
