"""Stages of a pipeline: its chain of ranks, the order of their passes, and the duration of each."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from stepscope.analyzer.collectives.calls import AFTER_STEPS, BEFORE_STEPS, P2P_KINDS, Call
from stepscope.analyzer.intervals import covered_time
from stepscope.analyzer.pipeline.schedules import Order, Pass, Task, interleaved_order
from stepscope.analyzer.rank_view import RankView, compute_by_step
from stepscope.core.vocabulary import EXPOSED_COMMUNICATION_CATEGORIES

Chain = tuple[int, ...]
"""The ranks of one pipeline in the order in which activations travel."""


def find_chains(calls_of_rank: Mapping[int, list[Call]]) -> list[Chain]:
    """Pipelines as chains of ranks, found by following the first send of a step, which goes forward.

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
            sent_back = (peer for call in calls_of_rank.get(following, ()) for peer in call.peers)
            if not any(peer.source == following and peer.destination == ranks[-1] for peer in sent_back):
                break  # no gradient comes back, so it is not a pipeline
            ranks.append(following)
        if len(ranks) > 1:
            chains.append(tuple(ranks))
    return chains


_Way = tuple[bool, bool]
"""(is a send, goes forward)"""


def order_from_traffic(chain: Chain, calls_of_rank: Mapping[int, list[Call]], step: int) -> Order | None:
    """Passes of each pipeline stage in one step, in order; None when the traffic is not of a whole schedule.

    A stage sends an activation after each forward and a gradient after each backward; the first stage receives a
    gradient before each backward, the last one an activation before each forward. Activations from the last rank to the
    first show several stages per device; between two ranks these look like gradients, so there one stage is assumed.
    """
    ways = [_ways(place, chain, calls_of_rank[rank], step) for place, rank in enumerate(chain)]
    down = Counter(ways[0])[True, True]
    back = Counter(ways[-1])[True, True]
    if back >= down or down % (down - back):
        return None
    num_micro_batches, num_chunks = down - back, down // (down - back)
    passes = []
    for place, own in enumerate(ways):
        forward, backward = (place < len(ways) - 1, True), (place > 0, False)
        pass_of_way = {forward: Pass.FORWARD, backward: Pass.BACKWARD}
        passes.append([pass_of_way[way] for way in own if way in pass_of_way])
    total = num_micro_batches * num_chunks
    if any(kinds.count(kind) != total for kinds in passes for kind in (Pass.FORWARD, Pass.BACKWARD)):
        return None
    if num_chunks > 1:
        known = interleaved_order(len(ways), num_micro_batches, num_chunks)
        return known if [[task.kind for task in tasks] for tasks in known] == passes else None
    return [
        [Task(kind, place, kinds[:number].count(kind)) for number, kind in enumerate(kinds)]
        for place, kinds in enumerate(passes)
    ]


def _ways(place: int, chain: Chain, calls: list[Call], step: int) -> list[_Way]:
    """One rank's traffic in issue order; sends of a call come first, as they complete the passes before."""
    rank, following, previous = chain[place], chain[(place + 1) % len(chain)], chain[place - 1]
    found = []
    for call in calls:
        if call.step != step:
            continue
        for peer in sorted(call.peers, key=lambda peer: peer.source != rank):
            is_send = peer.source == rank
            other = peer.destination if is_send else peer.source
            if len(chain) == 2 and other == following:
                found.append((is_send, is_send == (place == 0)))
            elif other in (following, previous):
                found.append((is_send, is_send == (other == following)))
    return found


class StageTimes(NamedTuple):
    """Mean busy nanoseconds of a pipeline pass by kind and virtual stage."""

    mean_ns: Mapping[tuple[Pass, int], float]

    def evened(self) -> StageTimes:
        """The same times with every stage at the mean over stages."""
        of_kind: dict[Pass, list[float]] = defaultdict(list)
        for (kind, _), mean in self.mean_ns.items():
            of_kind[kind].append(mean)
        return StageTimes({key: float(np.mean(of_kind[key[0]])) for key in self.mean_ns})

    def of(self, task: Task) -> float:
        return self.mean_ns[task.kind, task.stage]


class ObservedPasses(NamedTuple):
    """Passes of a pipeline's devices.

    Attributes:
        order: by device in the chain's order, its passes in a step.
        times: duration of the passes.
        busy_ns: by device, mean compute time of a step without the optimizer.
    """

    order: Order
    times: StageTimes
    busy_ns: list[float]


def observe_passes(chain: Chain, views: Mapping[int, RankView]) -> ObservedPasses | None:
    """Passes of a pipeline by marks where every rank has some, else by traffic; None without a whole step."""
    ranks = [views[rank] for rank in chain]
    if all(view.micro_batches for view in ranks):
        return _from_marks(ranks)
    return _from_traffic(chain, ranks)


def _from_marks(ranks: Sequence[RankView]) -> ObservedPasses | None:
    passes = [
        [replace(mark, task=mark.task_of(place)) for mark in view.micro_batches] for place, view in enumerate(ranks)
    ]
    busy_of = [_busy_of_marks(view) for view in ranks]
    common = set.intersection(*({mark.step for mark in marks} for marks in passes))
    orders = ([[mark.task for mark in marks if mark.step == step] for marks in passes] for step in sorted(common))
    # a pass that occurs twice is of more than a single step
    order = next((found for found in orders if all(len(set(tasks)) == len(tasks) for tasks in found)), None)
    if order is None:
        return None
    spent: dict[tuple[Pass, int], list[float]] = defaultdict(list)
    for marks, busy in zip(passes, busy_of, strict=True):
        for mark, own in zip(marks, busy.tolist(), strict=True):
            spent[mark.task.kind, mark.task.stage].append(own)
    times = StageTimes({key: float(np.mean(own)) for key, own in spent.items()})
    if ranks[0].on_device:
        return ObservedPasses(order, times, [_computed(view) for view in ranks])
    return ObservedPasses(order, times, [sum(times.of(task) for task in tasks) for tasks in order])


def _busy_of_marks(view: RankView) -> npt.NDArray[np.float64]:
    """Busy time of each mark: of the kernels launched during it; without a device its time outside communication."""
    of_kernels = [mark.busy_ns for mark in view.micro_batches if mark.busy_ns is not None]
    if len(of_kernels) == len(view.micro_batches):
        return np.array(of_kernels)
    start = np.array([mark.start_ns for mark in view.micro_batches], np.int64)
    end = np.array([mark.end_ns for mark in view.micro_batches], np.int64)
    communicating = view.segments.intervals_of(*EXPOSED_COMMUNICATION_CATEGORIES)
    return (end - start - covered_time(start, end, communicating)).astype(np.float64)


def _from_traffic(chain: Chain, ranks: Sequence[RankView]) -> ObservedPasses | None:
    """Passes by traffic; kernels launched by autograd's thread are backward, others before the optimizer forward."""
    calls = {view.rank: view.calls for view in ranks}
    steps = reversed(ranks[0].window.index.tolist())
    order = next((found for step in steps if (found := order_from_traffic(chain, calls, step)) is not None), None)
    if order is None:
        return None
    mean: dict[tuple[Pass, int], float] = {}
    busy = []
    for view, tasks in zip(ranks, order, strict=True):
        backward = float(np.mean(view.backward_ns))
        busy.append(_computed(view))
        share = 2 / len(tasks)  # as many forwards as backwards
        for task in tasks:
            own = max(busy[-1] - backward, 0.0) if task.kind is Pass.FORWARD else backward
            mean[task.kind, task.stage] = own * share
    return ObservedPasses(order, StageTimes(mean), busy)


def shortest_message_ns(ranks: Sequence[RankView]) -> float:
    """The shortest point-to-point call of a pipeline's ranks: nothing in it waited."""
    lengths = (call.end_ns - call.start_ns for view in ranks for call in view.calls if call.kind in P2P_KINDS)
    return float(min(lengths, default=0))


def _computed(view: RankView) -> float:
    return float(np.mean(compute_by_step(view))) - float(np.mean(view.optimizer_ns))
