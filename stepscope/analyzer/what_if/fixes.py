"""Fixes: for each cause, the scenario with the time of that cause removed.

Kernel matching: ranks of one role launch the same kernels in the same order within a step. Where they differ, equal
heads and tails are matched first, then the longest common runs of the rest (difflib's Ratcliff-Obershelp). A run that
is replaced by one of the same length, such as another variant of a kernel, is matched as well.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from difflib import SequenceMatcher
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from stepscope.analyzer.intervals import Nanoseconds, covered_time, union
from stepscope.analyzer.ledger.activities import Work
from stepscope.analyzer.what_if.graph_layout import GraphLayout, Nodes
from stepscope.analyzer.what_if.job_graph import JobGraph
from stepscope.analyzer.what_if.rank_graph import HOST_COLUMN, HOST_WORK, DeviceWork
from stepscope.analyzer.what_if.replay import ReplayModel, Scenario
from stepscope.core.vocabulary import Cause, Reason
from stepscope.trace.columns import NONE
from stepscope.trace.rows import distinct

_MAX_COMPARISONS = 1_000 * 1_000
"""Largest product of the lengths of two runs that are compared; the comparison takes quadratic time."""


class _MatchedStep(NamedTuple):
    """Kernels of one role in one step: matched (one row per rank, NONE if it has none), or of one rank alone."""

    ranks: tuple[int, ...]
    table: Nodes
    extra: Nodes


def _kernels_by_step(layout: GraphLayout, rank: int) -> dict[int, Nodes]:
    """Compute kernels of a rank in launch order, by number of the step in which they were launched."""
    part = layout.parts[rank]
    device = part.graph.device
    kernels = np.flatnonzero((device.work == Work.COMPUTE) & (device.step != NONE))
    kernels = kernels[np.lexsort((device.start_ns[kernels], device.launched_by[kernels], device.step[kernels]))]
    steps, first = np.unique(device.step[kernels], return_index=True)
    parts = np.split(kernels + part.first_activity, first[1:])
    return dict(zip(steps.tolist(), parts, strict=True)) if len(kernels) else {}


def _match_kernels(layout: GraphLayout, role: Mapping[int, int]) -> list[_MatchedStep]:
    """Match the kernels of each role, step by step; roles of one rank are left out."""
    ranks_of_role: dict[int, list[int]] = defaultdict(list)
    for rank in layout.parts:
        ranks_of_role[role.get(rank, 0)].append(rank)
    found = []
    for ranks in ranks_of_role.values():
        if len(ranks) < 2:
            continue
        kernels = {rank: _kernels_by_step(layout, rank) for rank in ranks}
        for step in sorted(set.intersection(*(set(k) for k in kernels.values()))):
            found.append(_match(layout, ranks, [kernels[rank][step] for rank in ranks]))
    return found


def _match(layout: GraphLayout, ranks: Sequence[int], kernels: Sequence[Nodes]) -> _MatchedStep:
    hashes = []
    for rank, own in zip(ranks, kernels, strict=True):
        part = layout.parts[rank]
        hashes.append(part.graph.device.name_hash[own - part.first_activity])
    by_length = sorted(range(len(ranks)), key=lambda i: len(hashes[i]))
    reference = hashes[by_length[(len(ranks) - 1) // 2]]
    matched, extra = [], []
    for own, own_hashes in zip(kernels, hashes, strict=True):
        row = np.full(len(reference), NONE, np.int64)
        pairs, left = _align(reference, own_hashes)
        row[pairs[0]] = own[pairs[1]]
        matched.append(row)
        extra.append(own[left])
    present = np.sum([row != NONE for row in matched], axis=0)
    for i, row in enumerate(matched):
        alone = (present == 1) & (row != NONE)
        extra[i] = np.concatenate((extra[i], row[alone]))
        row[alone] = NONE
    return _MatchedStep(tuple(ranks), np.stack(matched), np.concatenate(extra))


def _align(reference: Nodes, own: Nodes) -> tuple[Nodes, Nodes]:
    """Match two sequences.

    Returns:
        Pairs, shape (2, pairs): indices into the reference and into `own`; and the indices of `own` without a
        counterpart. Runs too long to compare are in neither.
    """
    shorter = min(len(reference), len(own))
    differs = np.flatnonzero(reference[:shorter] != own[:shorter])
    head = int(differs[0]) if len(differs) else shorter
    rest = shorter - head
    differs = np.flatnonzero(reference[len(reference) - rest :][::-1] != own[len(own) - rest :][::-1])
    tail = int(differs[0]) if len(differs) else rest
    pairs = [(np.arange(head), np.arange(head))]
    pairs.append((len(reference) - tail + np.arange(tail), len(own) - tail + np.arange(tail)))
    middle, own_middle = reference[head : len(reference) - tail], own[head : len(own) - tail]
    left = np.empty(0, np.int64)
    if not len(middle) or not len(own_middle):
        left = head + np.arange(len(own_middle))
    elif len(middle) * len(own_middle) <= _MAX_COMPARISONS:
        middle_pairs, left = _align_middle(middle, own_middle)
        pairs.append((head + middle_pairs[0], head + middle_pairs[1]))
        left = head + left
    return np.stack((np.concatenate([p[0] for p in pairs]), np.concatenate([p[1] for p in pairs]))), left


def _align_middle(reference: Nodes, own: Nodes) -> tuple[Nodes, Nodes]:
    matcher = SequenceMatcher(None, reference.tolist(), own.tolist(), autojunk=False)
    pairs, left = [np.empty((2, 0), np.int64)], [np.empty(0, np.int64)]
    for tag, a0, a1, b0, b1 in matcher.get_opcodes():
        if tag == "equal" or (tag == "replace" and a1 - a0 == b1 - b0):
            pairs.append(np.stack((np.arange(a0, a1), np.arange(b0, b1))))
        else:
            left.append(np.arange(b0, b1))
    return np.concatenate(pairs, axis=1), np.concatenate(left)


_OVERLAPPABLE_SHARE = 0.5
"""Share of a step's compute that its reductions can overlap."""

_MOSTLY_HIDDEN = 0.5
"""Share of reduction time under kernels from which the reductions count as overlapped already."""

_MIN_REDUCTION_SHARE = 0.1
"""Smallest reduction of gradients, as a share of the step's longest; less is usually a norm or a loss."""

LOWER_MEDIAN_FROM = 4
"""Number of ranks from which "fastest" is the lower median: one of many ranks is fast by chance."""


Fix = Callable[[ReplayModel, Scenario], Scenario | None]
"""Removes a cause from a scenario; None if that changes nothing or is unknown."""


def without_spans(cause: Cause, model: ReplayModel, scenario: Scenario) -> Scenario | None:
    """Fix: spans of data loading or checkpoints take no time: neither host time nor waits and copies within them."""
    column = HOST_COLUMN[cause]
    inside = model.graph.layout.joined(lambda graph: graph.device.span) == column
    labelled = model.graph.layout.joined(lambda graph: graph.host.label) == column
    if not scenario.host_ns[:, column].any() and not inside.any():
        return None
    return replace(
        scenario.scaled_host([column], 0.0),
        duration_ns=np.where(inside, 0, scenario.duration_ns),
        is_free=scenario.is_free | inside,
        blocks=scenario.blocks & ~labelled,
    )


def without_host_delay(model: ReplayModel, scenario: Scenario) -> Scenario | None:
    """Fix: launches take no host time; the host still blocks, loads data and saves checkpoints."""
    return scenario.scaled_host([HOST_COLUMN[Cause.HOST_BOUND]], 0.0) if model.on_device else None


def without_code_between_operators(model: ReplayModel, scenario: Scenario) -> Scenario | None:
    """Fix: on CPUs, operators follow each other at once but where the host blocks, loads data or saves checkpoints."""
    return None if model.on_device else scenario.scaled_host([HOST_COLUMN[Cause.HOST_BOUND]], 0.0)


def without_blocking(model: ReplayModel, scenario: Scenario) -> Scenario | None:
    """Fix: no call waits for device work, except where the host itself needs the result."""
    blocks = model.graph.layout.joined(lambda graph: graph.host.is_needed)
    if blocks.all():
        return None
    return replace(scenario.scaled_host([HOST_COLUMN[Cause.SYNCHRONIZATION]], 0.0), blocks=blocks)


def transfers_as_expected(model: ReplayModel, scenario: Scenario) -> Scenario | None:
    """Fix: transfers run at the expected bandwidth of their link, where that is known."""
    known = model.expected_transfer_ns != NONE
    if not known.any():
        return None
    expected = np.where(known, model.expected_transfer_ns, scenario.transfer_ns)
    return replace(scenario, transfer_ns=np.minimum(scenario.transfer_ns, expected))


def free_transfers(_model: ReplayModel, scenario: Scenario) -> Scenario | None:
    """Fix: transfers take no time; late arrivals are still waited for."""
    if not len(scenario.transfer_ns):
        return None
    return replace(scenario, transfer_ns=np.zeros_like(scenario.transfer_ns))


def overlapped_reductions(model: ReplayModel, scenario: Scenario) -> Scenario | None:
    """Fix: gradient reductions overlap the backward pass; None if most of them do already.

    Of a step's reductions the last stays exposed, because no compute is left when its gradients are ready, as does
    what follows it (a norm, a loss). So does what outlasts half of the step's compute: the backward pass is two
    thirds of it, but has few gradients ready at its beginning.
    """
    if not model.on_device:
        return None
    transfer = scenario.transfer_ns.copy()
    for rank, part in model.graph.layout.parts.items():
        mine = part.first_communication + np.flatnonzero(model.reduces[part.communications])
        activities = model.graph.layout.activity_of_communication[mine] - part.first_activity
        if not len(mine) or _hidden_share(part.graph.device, activities) >= _MOSTLY_HIDDEN:
            continue
        order = np.argsort(part.graph.device.start_ns[activities], kind="stable")
        mine, step_of = mine[order], part.graph.device.step[activities[order]]
        for step, computing in _kernels_by_step(model.graph.layout, rank).items():
            own = mine[step_of == step]
            took = scenario.transfer_ns[own]
            if not len(own):
                continue
            last = np.flatnonzero(took >= _MIN_REDUCTION_SHARE * took.max())[-1]
            room = int(_OVERLAPPABLE_SHARE * scenario.duration_ns[computing].sum())
            transfer[own[:last]] = 0
            transfer[own[last]] += max(int(took[:last].sum()) - room, 0)
    return None if (transfer == scenario.transfer_ns).all() else replace(scenario, transfer_ns=transfer)


def _hidden_share(device: DeviceWork, activities: Nodes) -> float:
    """Share of the activities' time that overlaps compute."""
    computes = device.work == Work.COMPUTE
    compute = union(device.start_ns[computes], device.end_ns[computes])
    start, end = device.start_ns[activities], device.end_ns[activities]
    return float(covered_time(start, end, compute).sum()) / max(int((end - start).sum()), 1)


def without_copies(model: ReplayModel, scenario: Scenario) -> Scenario | None:
    """Fix: copies and memsets take no time."""
    copies = model.graph.layout.joined(lambda graph: graph.device.work) == Work.COPY
    if not copies.any():
        return None
    return replace(scenario, duration_ns=np.where(copies, 0, scenario.duration_ns), is_free=scenario.is_free | copies)


def without_straggler(model: ReplayModel, scenario: Scenario) -> Scenario | None:
    """Fix: each matched kernel takes its time on the fastest rank of its role; others are removed."""
    steps = _match_kernels(model.graph.layout, model.role)
    if not steps or not model.on_device:
        return None
    duration = scenario.duration_ns.copy()
    for step in steps:
        times = np.where(step.table == NONE, np.iinfo(np.int64).max, scenario.duration_ns[step.table])
        place = np.maximum(_place_of_fastest(np.count_nonzero(step.table != NONE, axis=0)), 0)  # absent ranks come last
        fastest = np.take_along_axis(np.sort(times, axis=0), place[None, :], axis=0)[0]
        for row in step.table:
            own = row != NONE
            duration[row[own]] = fastest[own]
    return _without_extra(model.graph, replace(scenario, duration_ns=duration), steps)


def without_slow_rank(model: ReplayModel, scenario: Scenario) -> Scenario | None:
    """Fix: each rank's operators take their time on the rank of its role with the least compute.

    Operators of one rank alone are removed. Single operators on CPUs vary too much to be compared one by one: the
    fastest of each is chance.
    """
    steps = _match_kernels(model.graph.layout, model.role)
    if not steps or model.on_device:
        return None
    spent: dict[tuple[int, ...], Nanoseconds] = {}
    for step in steps:
        own = np.where(step.table == NONE, 0, scenario.duration_ns[step.table]).sum(axis=1)
        spent[step.ranks] = spent.get(step.ranks, np.zeros_like(own)) + own
    duration = scenario.duration_ns.copy()
    for step in steps:
        ranks = np.argsort(spent[step.ranks], kind="stable")
        fastest = step.table[ranks[_place_of_fastest(len(ranks))]]
        for row in step.table:
            both = (row != NONE) & (fastest != NONE)
            duration[row[both]] = scenario.duration_ns[fastest[both]]
    return _without_extra(model.graph, replace(scenario, duration_ns=duration), steps)


def _without_extra(graph: JobGraph, scenario: Scenario, steps: Sequence[_MatchedStep]) -> Scenario:
    """Remove kernels that only one rank has, with their launches."""
    parts = graph.layout.parts.values()
    launched_by = np.concatenate(
        [np.where(p.graph.device.launched_by == NONE, NONE, p.graph.device.launched_by + p.first_call) for p in parts]
    )
    gone = np.concatenate([step.extra for step in steps])
    duration, is_free, host = scenario.duration_ns.copy(), scenario.is_free.copy(), scenario.host_ns.copy()
    duration[gone] = 0
    is_free[gone] = True
    host[launched_by[gone], HOST_COLUMN[Cause.HOST_BOUND]] = 0
    return replace(scenario, duration_ns=duration, is_free=is_free, host_ns=host)


def _place_of_fastest(num_ranks: npt.ArrayLike) -> Nodes:
    num_ranks = np.asarray(num_ranks, np.int64)
    return np.where(num_ranks >= LOWER_MEDIAN_FROM, (num_ranks - 1) // 2, 0)


def balanced(model: ReplayModel, scenario: Scenario) -> Scenario | None:
    """Fix: each step's compute is spread evenly over the ranks."""
    kernels = {rank: _kernels_by_step(model.graph.layout, rank) for rank in model.graph.layout.parts}
    common = set.intersection(*(set(k) for k in kernels.values())) if len(kernels) > 1 else set()
    if not common:
        return None
    duration = scenario.duration_ns.copy()
    for step in common:
        own = [scenario.duration_ns[kernels[rank][step]].sum() for rank in kernels]
        mean = float(np.mean(own))
        for rank, total in zip(kernels, own, strict=True):
            if total > 0:
                chosen = kernels[rank][step]
                duration[chosen] = (duration[chosen] * (mean / total)).astype(np.int64)
    return replace(scenario, duration_ns=duration)


def ideal_job(model: ReplayModel, scenario: Scenario) -> Scenario:
    """Ideal scenario of a replay: compute takes the mean of ranks and steps, transfers the median, the host no time."""
    duration = scenario.duration_ns.copy()
    layout = model.graph.layout
    kernels = [(step, own) for rank in layout.parts for step, own in _kernels_by_step(layout, rank).items()]
    totals = [duration[own].sum() for _, own in kernels]
    kept = {model.step_numbers[place] for place in model.kept}
    counted = [total for (step, _), total in zip(kernels, totals, strict=True) if step in kept]
    for (_, own), total in zip(kernels, totals, strict=True):
        if total > 0:
            duration[own] = (duration[own] * (float(np.mean(counted or totals)) / total)).astype(np.int64)
    transfer = scenario.transfer_ns.copy()
    for number in distinct(model.alike).tolist():
        same = model.alike == number
        transfer[same] = int(np.median(transfer[same]))
    return replace(
        scenario.scaled_host(list(range(len(HOST_WORK))), 0.0),
        duration_ns=duration,
        transfer_ns=transfer,
        blocks=layout.joined(lambda graph: graph.host.is_needed),
    )


_OVERLAPPED = (Cause.COMMUNICATION, "gradients reduced beside the backward pass")

FIXES: dict[tuple[Cause, str], Fix] = {
    (Cause.DATA_LOADING, "without data-loading waits"): partial(without_spans, Cause.DATA_LOADING),
    (Cause.STRAGGLER, "every kernel as fast as on its fastest rank"): without_straggler,
    (Cause.STRAGGLER, "every rank's operators as fast as on the fastest rank"): without_slow_rank,
    (Cause.IMBALANCE, "compute cut evenly over the ranks"): balanced,
    (Cause.HOST_BOUND, "without CPU launch delays"): without_host_delay,
    (Cause.HOST_BOUND, "without the code between operators"): without_code_between_operators,
    (Cause.SYNCHRONIZATION, "no blocking calls"): without_blocking,
    (Cause.COMMUNICATION, "transfers at the link's expected bandwidth"): transfers_as_expected,
    _OVERLAPPED: overlapped_reductions,
    (Cause.COMMUNICATION, "transfers free"): free_transfers,
    (Cause.CHECKPOINT, "checkpoints free"): partial(without_spans, Cause.CHECKPOINT),
    (Cause.COPY, "copies free"): without_copies,
}
"""Fixes by (cause, description of the change)."""

FIX_OF_REASON = {Reason.NO_OVERLAP: _OVERLAPPED}
"""The change of a cause that answers this reason; for other reasons the first change."""
