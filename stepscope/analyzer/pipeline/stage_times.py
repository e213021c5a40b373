"""In which order did the devices of a pipeline run their passes, and how long does each pass keep its device busy?"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from stepscope.analyzer.intervals import covered_time
from stepscope.analyzer.pipeline.chains import Chain
from stepscope.analyzer.pipeline.point_to_point import order_from_traffic
from stepscope.analyzer.pipeline.tasks import MicroBatch, Order, Pass, Task
from stepscope.analyzer.rank_view import RankView, compute_by_step
from stepscope.core.headings import EXPOSED_COMMUNICATION_HEADINGS
from stepscope.trace.columns import NONE


@dataclass(frozen=True, slots=True)
class StageTimes:
    """Mean busy time of one pass by its kind and virtual stage, nanoseconds."""

    mean_ns: Mapping[tuple[Pass, int], float]

    def evened(self) -> StageTimes:
        """Every stage at the mean over stages."""
        of_kind: dict[Pass, list[float]] = defaultdict(list)
        for (kind, _), mean in self.mean_ns.items():
            of_kind[kind].append(mean)
        return StageTimes({key: float(np.mean(of_kind[key[0]])) for key in self.mean_ns})

    def of(self, task: Task) -> float:
        return self.mean_ns[task.kind, task.stage]


@dataclass(frozen=True, slots=True)
class Observed:
    """What a pipeline's devices did in a step.

    Attributes:
        order: by device in the chain's order, its passes.
        times: how long each takes.
        busy_ns: by device, mean time a step in which it computed, its optimizer aside.
    """

    order: Order
    times: StageTimes
    busy_ns: list[float]


def observe(chain: Chain, views: Mapping[int, RankView]) -> Observed | None:
    """From the marks where every rank has some, else from the traffic; None where neither tells a whole step."""
    ranks = [views[rank] for rank in chain.ranks]
    if all(view.micro_batches for view in ranks):
        return _from_marks(ranks)
    return _from_traffic(chain, ranks)


def _from_marks(ranks: Sequence[RankView]) -> Observed | None:
    passes = [[_placed(mark, place) for mark in view.micro_batches] for place, view in enumerate(ranks)]
    busy_of = [_busy_of_marks(view) for view in ranks]
    common = set.intersection(*({mark.step for mark in marks} for marks in passes))
    order = next((found for step in sorted(common) if (found := _order_of(passes, step)) is not None), None)
    if order is None:
        return None
    spent: dict[tuple[Pass, int], list[float]] = defaultdict(list)
    for marks, busy in zip(passes, busy_of, strict=True):
        for mark, own in zip(marks, busy.tolist(), strict=True):
            spent[mark.task.kind, mark.task.stage].append(own)
    times = StageTimes({key: float(np.mean(own)) for key, own in spent.items()})
    if ranks[0].on_device:
        return Observed(order, times, [_computed(view) for view in ranks])
    return Observed(order, times, [sum(times.of(task) for task in tasks) for tasks in order])


def _placed(mark: MicroBatch, place: int) -> MicroBatch:
    """A mark that does not name its stage is of the only one that its rank holds."""
    return mark if mark.task.stage != NONE else replace(mark, task=replace(mark.task, stage=place))


def _order_of(passes: Sequence[Sequence[MicroBatch]], step: int) -> Order | None:
    """Each rank's passes in that step; None when one comes twice: then it is no single step."""
    order = [[mark.task for mark in marks if mark.step == step] for marks in passes]
    return order if all(len(set(tasks)) == len(tasks) for tasks in order) else None


def _busy_of_marks(view: RankView) -> npt.NDArray[np.float64]:
    """Of each mark: the kernels launched under it; without a device its time outside communication."""
    told = [mark.busy_ns for mark in view.micro_batches if mark.busy_ns is not None]
    if len(told) == len(view.micro_batches):
        return np.array(told)
    start = np.array([mark.start_ns for mark in view.micro_batches], np.int64)
    end = np.array([mark.end_ns for mark in view.micro_batches], np.int64)
    communicating = view.segments.intervals_of(*EXPOSED_COMMUNICATION_HEADINGS)
    return (end - start - covered_time(start, end, communicating)).astype(np.float64)


def _from_traffic(chain: Chain, ranks: Sequence[RankView]) -> Observed | None:
    """Backward is what autograd's thread launched; the rest before the optimizer is forward."""
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
    return Observed(order, StageTimes(mean), busy)


def _computed(view: RankView) -> float:
    return float(np.mean(compute_by_step(view))) - float(np.mean(view.optimizer_ns))
