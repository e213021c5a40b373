"""How large is the pipeline's bubble, and which part is the schedule's, the uneven stages', the rest's?"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stepscope.analyzer.alignment.device_calls import AFTER_STEPS, BEFORE_STEPS, P2P_KINDS, Call
from stepscope.analyzer.intervals import covered_time
from stepscope.analyzer.pipeline.replay import Replay, Schedule, Task, replay, schedule_order
from stepscope.analyzer.rank_view import RankView, compute_by_step
from stepscope.core.analysis import Pipeline
from stepscope.core.headings import EXPOSED_COMMUNICATION_HEADINGS
from stepscope.trace.columns import NONE


@dataclass(frozen=True, slots=True)
class Chain:
    """The ranks of one pipeline in the order in which activations travel."""

    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PipelineParts:
    """One pipeline, explained.

    Attributes:
        chain: its ranks.
        figures: the published fractions of the pipelined span.
        structural_ns: non-compute time a step that the schedule itself costs every rank.
        imbalance_ns: by rank, what uneven stages add to that.
    """

    chain: Chain
    figures: Pipeline
    structural_ns: float
    imbalance_ns: dict[int, float]


@dataclass(frozen=True, slots=True)
class _StageTimes:
    """Mean time of one forward and one backward by virtual stage, nanoseconds."""

    forward_ns: dict[int, float]
    backward_ns: dict[int, float]

    def evened(self) -> _StageTimes:
        forward = float(np.mean(list(self.forward_ns.values())))
        backward = float(np.mean(list(self.backward_ns.values())))
        return _StageTimes(dict.fromkeys(self.forward_ns, forward), dict.fromkeys(self.backward_ns, backward))

    def of(self, task: Task) -> float:
        return (self.forward_ns if task.is_forward else self.backward_ns)[task.stage]


def find_chains(calls_of_rank: Mapping[int, list[Call]]) -> list[Chain]:
    """Follow the first send of a step from rank to rank: that is the way forward through the pipeline.

    The first stage is the one whose first point-to-point call of a step sends and does not receive.
    """
    first_sent_to: dict[int, int] = {}
    firsts: dict[int, bool] = {}
    for rank, calls in calls_of_rank.items():
        directed = [call for call in calls if call.kind in P2P_KINDS and call.peers]
        directed = [call for call in directed if call.step not in (BEFORE_STEPS, AFTER_STEPS)] or directed
        if not directed:
            continue
        step = directed[0].step
        of_step = [call for call in directed if call.step == step]
        firsts[rank] = all(peer.source == rank for peer in of_step[0].peers)
        sent = [peer.destination for call in of_step for peer in call.peers if peer.source == rank]
        if sent:
            first_sent_to[rank] = sent[0]
    chains = []
    for rank, is_first in firsts.items():
        if not is_first:
            continue
        ranks = [rank]
        while (following := first_sent_to.get(ranks[-1])) is not None and following not in ranks:
            if following not in calls_of_rank or not _sends(calls_of_rank[following], following, ranks[-1]):
                break  # no gradient comes back: not a pipeline
            ranks.append(following)
        if len(ranks) > 1:
            chains.append(Chain(tuple(ranks)))
    return chains


def _sends(calls: list[Call], rank: int, destination: int) -> bool:
    return any(peer.source == rank and peer.destination == destination for call in calls for peer in call.peers)


def explain(chain: Chain, views: Mapping[int, RankView]) -> PipelineParts | None:
    """Measure a pipeline's bubble and replay its schedule without host delay; None when it cannot be recognised."""
    ranks = [views[rank] for rank in chain.ranks]
    num_micro_batches = _count_micro_batches(chain, views)
    if not num_micro_batches:
        return None
    if all(view.micro_batches for view in ranks):
        schedule, order, times, num_stages = _from_marks(ranks)
        optimizer = [float(np.mean(view.optimizer_ns)) for view in ranks]
        busy = [sum(times.of(task) for task in tasks) for tasks in order]
    else:
        schedule = _recognise(chain, views, num_micro_batches)
        num_stages = len(ranks)
        order = schedule_order(schedule, num_stages, num_micro_batches)
        times, optimizer = _from_threads(ranks, num_micro_batches)
        busy = [sum(times.of(task) for task in tasks) for tasks in order]
    period = float(np.median([np.median(view.window.whole_step_ns) for view in ranks]))
    span = period - float(np.mean(optimizer))
    transfer = _least_transfer(ranks)
    if span <= 0 or not times.forward_ns or not times.backward_ns:
        return None
    try:
        even = _run(order, times.evened(), num_stages, transfer)
        uneven = _run(order, times, num_stages, transfer)
    except ValueError:  # the marks do not tell the whole schedule: a stage's rank or a part of the step is missing
        return None
    structural = even.period_ns - float(np.mean(even.busy_ns))
    by_rank = {
        view.rank: max(uneven.period_ns - own - structural, 0.0)
        for view, own in zip(ranks, uneven.busy_ns, strict=True)
    }
    measured = 1.0 - float(np.mean(busy)) / span
    # a cut that shortens the replay (long forwards beside short backwards) is no imbalance
    imbalance = max(uneven.period_ns - float(np.mean(uneven.busy_ns)) - structural, 0.0) / span
    chunks = num_stages // len(ranks)
    p, m = len(ranks), num_micro_batches
    figures = Pipeline(
        schedule=schedule,
        stages=len(ranks),
        micro_batches=m,
        chunks=chunks,
        period_ms=period / 1e6,
        measured=measured,
        structural=structural / span,
        imbalance=imbalance,
        variance=measured - structural / span - imbalance,
        textbook=(p - 1) / (chunks * m + p - 1),
    )
    return PipelineParts(chain, figures, structural, by_rank)


def _run(order: list[list[Task]], times: _StageTimes, num_stages: int, transfer_ns: float) -> Replay:
    durations = {task: times.of(task) for tasks in order for task in tasks}
    return replay(order, durations, num_stages=num_stages, transfer_ns=transfer_ns)


def _count_micro_batches(chain: Chain, views: Mapping[int, RankView]) -> int:
    """Micro-batches a step: from the marks, else the forward sends of the first stage; median over steps."""
    first, second = chain.ranks[0], chain.ranks[1]
    marks = {mark.number for mark in views[first].micro_batches}
    if marks:
        return len(marks)
    steps: dict[int, int] = defaultdict(int)
    for call in views[first].calls:
        steps[call.step] += sum(peer.source == first and peer.destination == second for peer in call.peers)
    seen = [steps[index] for index in views[first].window.index.tolist() if steps[index]]
    return int(np.median(seen)) if seen else 0


def _recognise(chain: Chain, views: Mapping[int, RankView], num_micro_batches: int) -> Schedule:
    """On the last stage GPipe receives every micro-batch before it sends the first gradient; 1F1B does not."""
    last = chain.ranks[-1]
    calls = views[last].calls
    step = int(views[last].window.index[-1])
    received_before = 0
    for call in (call for call in calls if call.step == step and call.peers):
        if any(peer.source == last for peer in call.peers):
            break
        received_before += len(call.peers)
    return Schedule.GPIPE if num_micro_batches > 1 and received_before >= num_micro_batches else Schedule.ONE_F_ONE_B


def _from_threads(ranks: list[RankView], num_micro_batches: int) -> tuple[_StageTimes, list[float]]:
    """Without marks: backward is what autograd's thread launched; the rest before the optimizer is forward."""
    forward, backward, optimizer = {}, {}, []
    for stage, view in enumerate(ranks):
        compute = float(np.mean(compute_by_step(view)))
        own_optimizer, own_backward = float(np.mean(view.optimizer_ns)), float(np.mean(view.backward_ns))
        optimizer.append(own_optimizer)
        backward[stage] = own_backward / num_micro_batches
        forward[stage] = max(compute - own_optimizer - own_backward, 0.0) / num_micro_batches
    return _StageTimes(forward, backward), optimizer


def _from_marks(ranks: list[RankView]) -> tuple[Schedule, list[list[Task]], _StageTimes, int]:
    """Order and mean times from the marked forwards and backwards; communication inside a mark is not its work."""
    order: list[list[Task]] = []
    times: tuple[dict[int, list[float]], dict[int, list[float]]] = (defaultdict(list), defaultdict(list))
    for place, view in enumerate(ranks):
        seen: dict[Task, None] = {}
        busy = _busy_of_marks(view)
        for mark, own in zip(view.micro_batches, busy.tolist(), strict=True):
            stage = place if mark.stage == NONE else mark.stage
            seen.setdefault(Task(mark.is_forward, stage, mark.number))
            times[0 if mark.is_forward else 1][stage].append(own)
        order.append(list(seen))
    num_stages = 1 + max(task.stage for tasks in order for task in tasks)
    means = _StageTimes(*({stage: float(np.mean(v)) for stage, v in part.items()} for part in times))
    if num_stages > len(ranks):
        schedule = Schedule.INTERLEAVED
    else:
        last = order[-1]
        forwards = sum(task.is_forward for task in last)
        gpipe = forwards > 1 and all(task.is_forward for task in last[:forwards])
        schedule = Schedule.GPIPE if gpipe else Schedule.ONE_F_ONE_B
    return schedule, order, means, num_stages


def _busy_of_marks(view: RankView) -> npt.NDArray[np.float64]:
    """Time of each mark in which the rank was not in communication."""
    start = np.array([mark.start_ns for mark in view.micro_batches], np.int64)
    end = np.array([mark.end_ns for mark in view.micro_batches], np.int64)
    communicating = view.segments.intervals_of(*EXPOSED_COMMUNICATION_HEADINGS)
    return (end - start - covered_time(start, end, communicating)).astype(np.float64)


def _least_transfer(ranks: list[RankView]) -> float:
    """The shortest point-to-point call of the pipeline: nothing in it waited."""
    lengths = [c.end_ns - c.start_ns for view in ranks for c in view.calls if c.kind in P2P_KINDS]
    return float(min(lengths, default=0))
