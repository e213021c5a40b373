"""Pipeline bubble: the parts of the schedule and of uneven stages, and their time on each rank."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from stepscope.analyzer import intervals
from stepscope.analyzer.collectives.arrivals import WaitPieces
from stepscope.analyzer.collectives.calls import P2P_KINDS, Call
from stepscope.analyzer.intervals import Intervals, Nanoseconds
from stepscope.analyzer.ledger.segments import CAUSE_CODE, TO_ATTRIBUTE, CategorySpans, Segments, assemble
from stepscope.analyzer.pipeline.schedules import Order, ScheduleReplay, recognise_schedule, replay_schedule
from stepscope.analyzer.pipeline.stages import Chain, StageTimes, observe_passes, shortest_message_ns
from stepscope.analyzer.rank_view import RankView
from stepscope.core.documents.analysis import Pipeline
from stepscope.core.vocabulary import CATEGORY_CODE, Cause, TimeCategory


class ScheduledIdle(NamedTuple):
    """Idle nanoseconds of a pipeline's step: in total, and before each pass with input from another device."""

    total_ns: float
    at_receive_ns: tuple[float, ...]


def attribute_bubble(view: RankView, parts: PipelineParts, waits: WaitPieces) -> RankView:
    """Turn a rank's waiting for other stages into pipeline bubble, as far as the schedule idles in each step.

    As much more as uneven stages add is attributed to these. Scheduled idle time beyond the waiting is found in idle
    device time.

    Waiting at a receive is first explained by the schedule's idle time there; more is some rank's lateness (a slow
    loader in the first stage shows at the first receive of all others). What is left of a step's scheduled idle time
    explains the first waiting of the step.
    """
    segments, calls, step_bounds_ns = view.segments, view.calls, view.step_bounds_ns
    cross_stage = np.array([call.kind in P2P_KINDS for call in calls] or [False])[waits.call]
    waiting = Intervals(waits.start_ns[cross_stage], waits.end_ns[cross_stage])
    bubble, missing = _scheduled(waiting, calls, step_bounds_ns, parts.structural_ns[view.rank])
    uneven, _ = _scheduled(intervals.subtract(waiting, bubble), calls, step_bounds_ns, parts.imbalance_ns[view.rank])
    queued = segments.intervals_of(TimeCategory.DEVICE_GAP, TimeCategory.SYNCHRONIZATION)
    caused_idle, _ = _first_of_each_step(queued, step_bounds_ns, missing)
    segments = _relabel(segments, bubble, category=TimeCategory.BUBBLE, cause=Cause.PIPELINE_BUBBLE)
    segments = _relabel(segments, uneven, category=None, cause=Cause.IMBALANCE)
    return replace(view, segments=_relabel(segments, caused_idle, category=None, cause=Cause.PIPELINE_BUBBLE))


def _scheduled(
    waiting: Intervals, calls: list[Call], bounds: Nanoseconds, idle: ScheduledIdle
) -> tuple[Intervals, npt.NDArray[np.float64]]:
    """The waiting that scheduled idle time explains (at each receive, then first in the step), and the rest of that."""
    spans = [intervals.empty()]
    for begin, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        for place, budget in _receives(calls, begin, end, idle.at_receive_ns):
            during = intervals.clip(waiting, calls[place].exposed_from_ns, calls[place].end_ns)
            spans.append(_first_of(during, budget))
    at_receives = intervals.join(*spans)
    taken = intervals.covered_time(bounds[:-1], bounds[1:], at_receives)
    left = np.maximum(idle.total_ns - taken, 0.0)
    more, missing = _first_of_each_step(intervals.subtract(waiting, at_receives), bounds, left)
    return intervals.join(at_receives, more), missing


def _receives(calls: list[Call], begin: int, end: int, idle_ns: Sequence[float]) -> list[tuple[int, float]]:
    """Index of each receiving call of a step with its scheduled idle time; empty where their number differs from the
    schedule's."""
    found = []
    for place, call in enumerate(calls):
        if begin <= call.exposed_from_ns < end and call.peers:
            found += [place] * sum(peer.destination == call.rank for peer in call.peers)
    if len(found) != len(idle_ns):
        return []
    budget = Counter[int]()
    for place, idle in zip(found, idle_ns, strict=True):
        budget[place] += round(idle)
    return list(budget.items())


def _first_of(time: Intervals, budget: float) -> Intervals:
    """The first `budget` nanoseconds of the time."""
    length = time.end - time.start
    take = np.clip(round(budget) - (np.cumsum(length) - length), 0, length)
    return intervals.union(time.start, time.start + take)


def _first_of_each_step(
    time: Intervals, bounds: Nanoseconds, budget_ns: npt.NDArray[np.float64]
) -> tuple[Intervals, npt.NDArray[np.float64]]:
    """The first `budget_ns` of the time in each step, and the budget left over."""
    taken = [
        _first_of(intervals.clip(time, start, end), budget)
        for start, end, budget in zip(bounds[:-1].tolist(), bounds[1:].tolist(), budget_ns.tolist(), strict=True)
    ]
    left = budget_ns - np.array([part.total for part in taken], np.float64)
    return intervals.join(*taken), np.maximum(left, 0.0)


def _relabel(segments: Segments, cover: Intervals, *, category: TimeCategory | None, cause: Cause) -> Segments:
    """Give a new cause, and perhaps category, to what under `cover` has no cause yet or is idle."""
    if not len(segments):
        return segments
    inside, start, end = intervals.pieces(segments.start_ns, segments.end_ns, cover)
    eligible = np.isin(
        segments.cause[inside], [TO_ATTRIBUTE, CAUSE_CODE[Cause.DEVICE_GAP], CAUSE_CODE[Cause.SYNCHRONIZATION]]
    )
    inside, start, end = inside[eligible], start[eligible], end[eligible]
    changed = Intervals(start, end)
    span = intervals.union(segments.start_ns[:1], segments.end_ns.max(keepdims=True))
    outside = intervals.subtract(span, changed)
    kept, kept_start, kept_end = intervals.pieces(segments.start_ns, segments.end_ns, outside)
    categories = (
        segments.category[inside] if category is None else np.full(len(inside), CATEGORY_CODE[category], np.int8)
    )
    return assemble(
        [
            CategorySpans(Intervals(kept_start, kept_end), segments.category[kept], segments.cause[kept]),
            CategorySpans(changed, categories, cause),
        ]
    )


class PipelineParts(NamedTuple):
    """Pipeline bubble by cause.

    Attributes:
        figures: fractions of the pipelined span.
        structural_ns: by rank, idle time of a step due to the schedule itself.
        imbalance_ns: by rank, idle time that uneven stages add.
        heavy: by rank, its share of the work above the mean; adds up to 1, or empty.
        evened_ns: what a step is shorter with even stages, without host delays.
    """

    chain: Chain
    figures: Pipeline
    structural_ns: dict[int, ScheduledIdle]
    imbalance_ns: dict[int, ScheduledIdle]
    heavy: dict[int, float]
    evened_ns: float


def explain_bubble(chain: Chain, views: Mapping[int, RankView]) -> PipelineParts | None:
    """Measured bubble of a pipeline, split by replaying its schedule; None when the schedule is not recognised.

    Idea: the observed order of passes is replayed without host delays, once with every stage at the mean duration (the
    rest of idle time is the schedule's own) and once with the measured durations (what that adds is imbalance). What
    the measurement exceeds both by is variance.
    """
    ranks = [views[rank] for rank in chain]
    observed = observe_passes(chain, views)
    if observed is None:
        return None
    # steps of the first stage begin with work, those of others with a wait of any length; on the host the last is whole
    first = ranks[0]
    period = float(np.mean(first.window.whole_step_ns if first.on_device else np.diff(first.step_bounds_ns)))
    span = period - float(np.mean([np.mean(view.optimizer_ns) for view in ranks]))
    order, times = observed.order, observed.times
    num_stages = 1 + max(task.stage for tasks in order for task in tasks)
    transfer = shortest_message_ns(ranks)
    if span <= 0:
        return None
    try:
        even = _replay(order, times.evened(), num_stages, transfer)
        uneven = _replay(order, times, num_stages, transfer)
    except ValueError:  # the marks are not a whole schedule: a stage's rank or a part of the step is missing
        return None
    structural = even.period_ns - float(np.mean(even.busy_ns))
    # uneven stages that shorten the replay (long forwards beside short backwards) are not imbalance
    imbalance = max(uneven.period_ns - float(np.mean(uneven.busy_ns)) - structural, 0.0) / span
    measured = max(1.0 - float(np.mean(observed.busy_ns)) / span, 0.0)
    # a replay that idles more than the devices did (mean durations of uneven passes) explains all of it
    explained = structural / span + imbalance
    fitting = min(measured / explained, 1.0) if explained > 0 else 1.0
    p, v, m = len(ranks), num_stages // len(ranks), len({task.micro_batch for tasks in order for task in tasks})
    figures = Pipeline(
        schedule=recognise_schedule(order),
        stages=p,
        micro_batches=m,
        chunks=v,
        period_ms=period / 1e6,
        measured=measured,
        structural=fitting * structural / span,
        imbalance=fitting * imbalance,
        variance=max(measured - explained, 0.0),
        textbook=(p - 1) / (v * m + p - 1),
    )
    mean = float(np.mean(uneven.busy_ns))
    excess = {rank: own - mean for rank, own in zip(chain, uneven.busy_ns, strict=True) if own > mean}
    heavy = {rank: own / sum(excess.values()) for rank, own in excess.items()}
    evened_ns = max(uneven.period_ns - even.period_ns, 0.0)
    return PipelineParts(chain, figures, *_idle_of_ranks(chain, even, uneven, structural), heavy, evened_ns)


def _idle_of_ranks(
    chain: Chain, even: ScheduleReplay, uneven: ScheduleReplay, structural: float
) -> tuple[dict[int, ScheduledIdle], dict[int, ScheduledIdle]]:
    """By rank, the idle time of a step due to the schedule, and what uneven stages add."""
    scheduled, added = {}, {}
    for place, rank in enumerate(chain):
        more = [max(long - short, 0.0) for short, long in zip(even.idle_ns[place], uneven.idle_ns[place], strict=True)]
        waiting = max(uneven.period_ns - uneven.busy_ns[place] - structural, 0.0)
        scheduled[rank] = ScheduledIdle(structural, even.idle_ns[place])
        added[rank] = ScheduledIdle(waiting, tuple(more))
    return scheduled, added


def _replay(order: Order, times: StageTimes, num_stages: int, transfer_ns: float) -> ScheduleReplay:
    durations = {task: times.of(task) for tasks in order for task in tasks}
    return replay_schedule(order, durations, num_stages=num_stages, transfer_ns=transfer_ns)
