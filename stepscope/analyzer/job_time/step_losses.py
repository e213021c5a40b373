"""Losses of each step that the host's own records tell, steps that are slow for another reason, and the late rank."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from stepscope.analyzer.job_time.steps import Flags, Floats, HostLoss, JobSteps

MIN_SLOW_RATIO = 1.5
"""Least ratio of a slow step's rest to the ordinary one."""
MIN_SLOW_SIGMAS = 6.0
"""Least distance of a slow step from the ordinary ones, in their own spread."""
ORDINARY_QUANTILE = 0.25
"""Ordinary steps are those around this quantile, as up to half of all steps may be slow."""
_QUARTILE_TO_SIGMA = 1.4826
MIN_LATE_SHARE = 0.10
"""Least lateness of a rank's end for its name to be given, as a share of the step."""
MIN_REPEATS = 3
MIN_PERIODIC_SHARE = 0.8


class StepLosses(NamedTuple):
    """What each step lost to the host, by loss: ms, and the rank that held the others up (as a column).

    Attributes:
        alone_ms: what the step gains if this loss alone is taken away: less than `ms` where another rank is held up by
            something else meanwhile.
        own_ms: how long it held up the rank that it held up longest.
        rest_ms: the step without all these losses.
    """

    ms: dict[HostLoss, Floats]
    alone_ms: dict[HostLoss, Floats]
    own_ms: dict[HostLoss, Floats]
    column: dict[HostLoss, npt.NDArray[np.int64]]
    rest_ms: Floats


def step_losses(steps: JobSteps) -> StepLosses:
    """Losses of each step by the slowest rank, the first cause of an instant taking all of it.

    Ranks that are synchronised once a step wait for the one that was held up longest: two causes on one rank add up
    to the step at most, those on different ranks overlap.
    """
    held_up = np.zeros(steps.end_ms.shape)
    lost = np.zeros(len(steps))
    ms, column = {}, {}
    by_rank = {}
    period_ms = steps.period_ms[:, None]
    for loss in HostLoss:
        own = steps.host_ms[loss]
        if loss is HostLoss.RUN_DELAY:  # a thread may lack its CPU as well while it collects or loads
            own = own * (1.0 - held_up / np.maximum(period_ms, 1e-9))
        own = np.minimum(own, period_ms - held_up)
        by_rank[loss] = own
        held_up = held_up + own
        so_far = held_up.max(axis=1)
        ms[loss] = so_far - lost
        column[loss] = steps.host_ms[loss].argmax(axis=1)
        lost = so_far
    alone = {loss: lost - (held_up - own).max(axis=1) for loss, own in by_rank.items()}
    longest = {loss: own.max(axis=1) for loss, own in by_rank.items()}
    return StepLosses(ms, alone, longest, column, steps.period_ms - lost)


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
    ms, alone, rest = dict(losses.ms), dict(losses.alone_ms), losses.rest_ms.copy()
    most = {loss: times * ms[loss] for loss, times in _SURROUNDINGS.items()}
    longest = np.maximum.reduce(list(most.values()))
    more = np.clip(rest - ordinary_ms, 0.0, longest)
    for loss in _SURROUNDINGS:
        is_longest = (most[loss] == longest) & (more > 0)
        ms[loss], alone[loss] = (own + np.where(is_longest, more, 0.0) for own in (ms[loss], alone[loss]))
        rest, more = rest - np.where(is_longest, more, 0.0), np.where(is_longest, 0.0, more)
    return StepLosses(ms, alone, losses.own_ms, losses.column, rest)


LITTLE = 0.05
"""A step without a loss has less of it than this share of an ordinary step."""
MIN_STEPS_WITHOUT = 4


def with_ordinary_steps(losses: StepLosses, steps: JobSteps, settled: Flags) -> StepLosses:
    """Losses whose steps gain at most what they take longer than the settled steps without that loss.

    What other ranks lose meanwhile without a record of it, as slow Python, is part of those steps too. They may get
    ahead with it, so a step that follows and is shorter makes up for a part. A step that a rank has no record of may
    have the loss.
    """
    if len(steps.ranks) == 1:
        return losses
    period_ms, alone = steps.period_ms, dict(losses.alone_ms)
    is_complete = np.isfinite(steps.end_ms).all(axis=1)
    for loss, own in losses.ms.items():
        has_loss = own > LITTLE * period_ms
        follows = np.concatenate(([False], has_loss[:-1]))
        ordinary = settled & is_complete & ~has_loss & ~follows
        if ordinary.sum() >= MIN_STEPS_WITHOUT:
            longer = period_ms - np.median(period_ms[ordinary])
            made_up = np.append(np.minimum(longer, 0.0)[1:] * follows[1:], 0.0)
            alone[loss] = np.minimum(alone[loss], np.maximum(longer + made_up, 0.0))
    return losses._replace(alone_ms=alone)


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
