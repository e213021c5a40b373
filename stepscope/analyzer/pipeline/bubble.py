"""How large is the pipeline's bubble, and which part is the schedule's, the uneven stages', the rest's?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from stepscope.analyzer.alignment.call_words import P2P_KINDS
from stepscope.analyzer.pipeline.chains import Chain
from stepscope.analyzer.pipeline.replay import Replay, replay
from stepscope.analyzer.pipeline.schedule_waits import ScheduledIdle
from stepscope.analyzer.pipeline.schedules import recognise
from stepscope.analyzer.pipeline.stage_times import StageTimes, observe
from stepscope.analyzer.pipeline.tasks import Order
from stepscope.analyzer.rank_view import RankView
from stepscope.core.analysis import Pipeline


@dataclass(frozen=True, slots=True)
class PipelineParts:
    """One pipeline, explained.

    Attributes:
        chain: its ranks.
        figures: the published fractions of the pipelined span.
        structural_ns: by rank, non-compute time a step that the schedule itself costs.
        imbalance_ns: by rank, what uneven stages add to that.
        heavy: by rank, its share of the work that exceeds the mean: who the uneven cut burdens; adds up to 1, or empty.
    """

    chain: Chain
    figures: Pipeline
    structural_ns: dict[int, ScheduledIdle]
    imbalance_ns: dict[int, ScheduledIdle]
    heavy: dict[int, float]


def explain(chain: Chain, views: Mapping[int, RankView]) -> PipelineParts | None:
    """Measure a pipeline's bubble and replay its schedule without host delay; None when it cannot be recognised."""
    ranks = [views[rank] for rank in chain.ranks]
    observed = observe(chain, views)
    if observed is None:
        return None
    period = _step_ns(ranks[0])  # its steps begin with work, the others' with a wait of any length
    span = period - float(np.mean([np.mean(view.optimizer_ns) for view in ranks]))
    order, times = observed.order, observed.times
    num_stages = 1 + max(task.stage for tasks in order for task in tasks)
    transfer = _least_transfer(ranks)
    if span <= 0:
        return None
    try:
        even = _run(order, times.evened(), num_stages, transfer)
        uneven = _run(order, times, num_stages, transfer)
    except ValueError:  # the marks do not tell the whole schedule: a stage's rank or a part of the step is missing
        return None
    structural = even.period_ns - float(np.mean(even.busy_ns))
    # a cut that shortens the replay (long forwards beside short backwards) is no imbalance
    imbalance = max(uneven.period_ns - float(np.mean(uneven.busy_ns)) - structural, 0.0) / span
    measured = max(1.0 - float(np.mean(observed.busy_ns)) / span, 0.0)
    # a replay that idles more than the devices did (passes at the mean of uneven ones) explains all there was
    explained = structural / span + imbalance
    fitting = min(measured / explained, 1.0) if explained > 0 else 1.0
    p, v, m = len(ranks), num_stages // len(ranks), len({task.micro_batch for tasks in order for task in tasks})
    figures = Pipeline(
        schedule=recognise(order),
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
    return PipelineParts(chain, figures, *_idle_of_ranks(chain, even, uneven, structural), _heavy(chain, uneven))


def _idle_of_ranks(
    chain: Chain, even: Replay, uneven: Replay, structural: float
) -> tuple[dict[int, ScheduledIdle], dict[int, ScheduledIdle]]:
    """By rank, the idle time of a step that the schedule costs, and what its uneven stages add."""
    scheduled, added = {}, {}
    for place, rank in enumerate(chain.ranks):
        more = [max(long - short, 0.0) for short, long in zip(even.idle_ns[place], uneven.idle_ns[place], strict=True)]
        waiting = max(uneven.period_ns - uneven.busy_ns[place] - structural, 0.0)
        scheduled[rank] = ScheduledIdle(structural, even.idle_ns[place])
        added[rank] = ScheduledIdle(waiting, tuple(more))
    return scheduled, added


def _heavy(chain: Chain, uneven: Replay) -> dict[int, float]:
    mean = float(np.mean(uneven.busy_ns))
    excess = {rank: own - mean for rank, own in zip(chain.ranks, uneven.busy_ns, strict=True) if own > mean}
    total = sum(excess.values())
    return {rank: own / total for rank, own in excess.items()}


def _run(order: Order, times: StageTimes, num_stages: int, transfer_ns: float) -> Replay:
    durations = {task: times.of(task) for tasks in order for task in tasks}
    return replay(order, durations, num_stages=num_stages, transfer_ns=transfer_ns)


def _step_ns(view: RankView) -> float:
    """Mean length of the steps seen whole: on the host the last one too."""
    return float(np.mean(view.window.whole_step_ns if view.on_device else np.diff(view.step_bounds_ns)))


def _least_transfer(ranks: list[RankView]) -> float:
    """The shortest point-to-point call of the pipeline: nothing in it waited."""
    lengths = [c.end_ns - c.start_ns for view in ranks for c in view.calls if c.kind in P2P_KINDS]
    return float(min(lengths, default=0))
