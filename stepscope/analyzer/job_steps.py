"""Do all ranks give a step the same number? A profiler started by another counter numbers the same steps otherwise.

Calls are matched within steps, so a rank whose numbers no other has would match nothing; by order they are the same
steps. Rivals that pair iterations by number (HTA) drop such a rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from stepscope.analyzer.rank_view import RankView
from stepscope.core.analysis import Notice
from stepscope.trace.columns import IntColumn


def with_common_steps(views: Mapping[int, RankView]) -> dict[int, RankView]:
    """The views with the numbers of the ranks that agree best; a rank that has none of these is numbered by order.

    Only where it marks as many steps and ran mostly at the same time: another stretch of the run is none of theirs.
    """
    numbers = {rank: frozenset(view.facts.step_indices) for rank, view in views.items()}
    if len(set(numbers.values())) == 1:
        return dict(views)
    common = max(views, key=lambda rank: (sum(not numbers[rank].isdisjoint(n) for n in numbers.values()), -rank))
    return {
        rank: _renumbered(view, views[common]) if _is_numbered_otherwise(view, views[common]) else view
        for rank, view in views.items()
    }


def _is_numbered_otherwise(view: RankView, common: RankView) -> bool:
    own, other = view.facts.step_indices, common.facts.step_indices
    together = min(view.window.end_ns, common.window.end_ns) - max(view.window.start_ns, common.window.start_ns)
    shorter = min(view.window_ns, common.window_ns)
    return bool(own) and len(own) == len(other) and set(own).isdisjoint(other) and 2 * together > shorter


def _renumbered(view: RankView, common: RankView) -> RankView:
    number = dict(zip(view.facts.step_indices, common.facts.step_indices, strict=True))

    def of(steps: IntColumn) -> IntColumn:
        return np.array([number.get(step, step) for step in steps.tolist()], np.int64)

    graph = view.graph
    if graph is not None:
        graph = replace(graph, device=replace(graph.device, step=of(graph.device.step)))
    sums, by_name = view.kernel_sums, view.kernel_sums.steps_by_name
    first = (view.facts.step_indices[0], common.facts.step_indices[0])
    by_order = f"rank {view.rank} numbers its steps from {first[0]}, others from {first[1]}: matched by their order"
    return replace(
        view,
        window=replace(view.window, index=of(view.window.index)),
        calls=[replace(call, step=number.get(call.step, call.step)) for call in view.calls],
        micro_batches=[replace(batch, step=number.get(batch.step, batch.step)) for batch in view.micro_batches],
        facts=replace(
            view.facts,
            step_indices=common.facts.step_indices,
            empty_steps=tuple(number.get(step, step) for step in view.facts.empty_steps),
        ),
        kernel_sums=replace(
            sums, steps_by_name=replace(by_name, index=[number.get(step, step) for step in by_name.index])
        ),
        graph=graph,
        notices=[*view.notices, Notice("steps_by_order", by_order)],
    )
