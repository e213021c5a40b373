"""Fixes: for each cause, the scenario with that cause's time taken out.

Kernel match: Ranks of one role launch the same kernels in the same order within a step. Where they differ, equal
heads and tails are taken off and the longest common stretches of the rest are matched; a stretch that is only
replaced by one of the same length (another variant of a kernel) is matched as well.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher

import numpy as np
import numpy.typing as npt

from stepscope.analyzer.intervals import Nanoseconds, covered_time, union
from stepscope.analyzer.ledger.activities import Work
from stepscope.analyzer.rows import distinct
from stepscope.analyzer.what_if.job_graph import JobGraph, Layout, Nodes
from stepscope.analyzer.what_if.rank_graph import HOST_COLUMN, HOST_WORK, DeviceWork
from stepscope.analyzer.what_if.replay import Scenario
from stepscope.core.vocabulary.causes import Cause, Reason
from stepscope.trace.columns import NONE

_MOST_COMPARISONS = 1_000 * 1_000
"""Longer stretches that differ stay as they are: comparing them takes time with the square of their length."""


@dataclass(frozen=True, slots=True)
class MatchedStep:
    """One role's kernels in one step.

    Attributes:
        ranks: of the role.
        table: the matched kernels, one row a rank, NONE where a rank has none.
        extra: the kernels that only one rank has.
    """

    ranks: tuple[int, ...]
    table: Nodes
    extra: Nodes


def kernels_by_step(layout: Layout, rank: int) -> dict[int, Nodes]:
    """A rank's compute kernels in launch order, by the number of the step they were launched in (job's numbering)."""
    part = layout.parts[rank]
    device = part.graph.device
    kernels = np.flatnonzero((device.work == Work.COMPUTE) & (device.step != NONE))
    kernels = kernels[np.lexsort((device.start_ns[kernels], device.launched_by[kernels], device.step[kernels]))]
    steps, first = np.unique(device.step[kernels], return_index=True)
    parts = np.split(kernels + part.first_activity, first[1:])
    return dict(zip(steps.tolist(), parts, strict=True)) if len(kernels) else {}


def match_kernels(layout: Layout, role: Mapping[int, int]) -> list[MatchedStep]:
    """Each role's kernels, step by step. Roles of one rank have no peers and are left out."""
    ranks_of_role: dict[int, list[int]] = defaultdict(list)
    for rank in layout.parts:
        ranks_of_role[role.get(rank, 0)].append(rank)
    found = []
    for ranks in ranks_of_role.values():
        if len(ranks) < 2:
            continue
        kernels = {rank: kernels_by_step(layout, rank) for rank in ranks}
        for step in sorted(set.intersection(*(set(k) for k in kernels.values()))):
            found.append(_match(layout, ranks, [kernels[rank][step] for rank in ranks]))
    return found


def _match(layout: Layout, ranks: Sequence[int], kernels: Sequence[Nodes]) -> MatchedStep:
    words = []
    for rank, own in zip(ranks, kernels, strict=True):
        part = layout.parts[rank]
        words.append(part.graph.device.word[own - part.first_activity])
    by_length = sorted(range(len(ranks)), key=lambda i: len(words[i]))
    reference = words[by_length[(len(ranks) - 1) // 2]]
    matched, extra = [], []
    for own, word in zip(kernels, words, strict=True):
        row = np.full(len(reference), NONE, np.int64)
        pairs, left = align(reference, word)
        row[pairs[0]] = own[pairs[1]]
        matched.append(row)
        extra.append(own[left])
    present = np.sum([row != NONE for row in matched], axis=0)
    for i, row in enumerate(matched):
        alone = (present == 1) & (row != NONE)
        extra[i] = np.concatenate((extra[i], row[alone]))
        row[alone] = NONE
    return MatchedStep(tuple(ranks), np.stack(matched), np.concatenate(extra))


def align(
    reference: npt.NDArray[np.int64], own: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Line two sequences up.

    Returns:
        Pairs, shape (2, pairs): places in the reference and in `own`; and the places of `own` that have no counterpart.
        Stretches too long to compare are in neither.
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
    elif len(middle) * len(own_middle) <= _MOST_COMPARISONS:
        middle_pairs, left = _align_middle(middle, own_middle)
        pairs.append((head + middle_pairs[0], head + middle_pairs[1]))
        left = head + left
    return np.stack((np.concatenate([p[0] for p in pairs]), np.concatenate([p[1] for p in pairs]))), left


def _align_middle(
    reference: npt.NDArray[np.int64], own: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    matcher = SequenceMatcher(None, reference.tolist(), own.tolist(), autojunk=False)
    pairs, left = [np.empty((2, 0), np.int64)], [np.empty(0, np.int64)]
    for tag, a0, a1, b0, b1 in matcher.get_opcodes():
        if tag == "equal" or (tag == "replace" and a1 - a0 == b1 - b0):
            pairs.append(np.stack((np.arange(a0, a1), np.arange(b0, b1))))
        else:
            left.append(np.arange(b0, b1))
    return np.concatenate(pairs, axis=1), np.concatenate(left)


_BESIDE = 0.5
"""Of a step's computing, what its reductions can lie beside."""

_HIDDEN_ALREADY = 0.5
"""Share of the reductions' time beside kernels from which they are overlapped already."""

_NO_TRIFLE = 0.1
"""Of the longest reduction of a step: what takes less is hardly gradients, but a norm or a loss."""

LOWER_MEDIAN_FROM = 4
"""Ranks from which "fastest" is the lower median: of many ranks one is fast by luck."""


@dataclass(frozen=True, slots=True)
class FixedJob:
    """What the fixes are applied to.

    Attributes:
        graph: the job.
        role: by rank, its place in the pipeline.
        expected_transfer_ns: by communication, what its link should take, or NONE where that is not known.
        alike: by communication, a number that calls of the same group, kind and size share.
        reduces: by communication, whether it sums gradients over data-parallel ranks.
        steps: numbers of the steps that count.
        on_device: whether the activities ran on one (else they are operators of the main thread).
    """

    graph: JobGraph
    role: Mapping[int, int]
    expected_transfer_ns: Nanoseconds
    alike: Nodes
    reduces: npt.NDArray[np.bool_]
    steps: frozenset[int]
    on_device: bool


Fix = Callable[[FixedJob, Scenario], Scenario | None]
"""Takes the cause out of a scenario; None where it would change nothing or cannot be told."""


def without_loading(job: FixedJob, scenario: Scenario) -> Scenario | None:
    """Data is ready at once."""
    return _without_spans(job.graph, scenario, Cause.DATA_LOADING)


def without_checkpoint(job: FixedJob, scenario: Scenario) -> Scenario | None:
    """A checkpoint costs nothing."""
    return _without_spans(job.graph, scenario, Cause.CHECKPOINT)


def _without_spans(graph: JobGraph, scenario: Scenario, cause: Cause) -> Scenario | None:
    """No host time, no waiting and no copies inside spans of this kind."""
    column = HOST_COLUMN[cause]
    parts = graph.layout.parts.values()
    inside = np.concatenate([p.graph.device.inside for p in parts]) == column
    labelled = np.concatenate([p.graph.host.label for p in parts]) == column
    if not scenario.host_ns[:, column].any() and not inside.any():
        return None
    return replace(
        scenario.scaled_host([column], 0.0),
        duration_ns=np.where(inside, 0, scenario.duration_ns),
        is_free=scenario.is_free | inside,
        blocks=scenario.blocks & ~labelled,
    )


def without_host_delay(_job: FixedJob, scenario: Scenario) -> Scenario | None:
    """The host launches everything at once; it still waits where it blocks, loads data or saves a checkpoint."""
    return scenario.scaled_host([HOST_COLUMN[Cause.HOST_BOUND]], 0.0)


def without_blocking(job: FixedJob, scenario: Scenario) -> Scenario | None:
    """No call waits for device work."""
    blocks = _needed(job.graph)
    if blocks.all():
        return None
    return replace(scenario.scaled_host([HOST_COLUMN[Cause.SYNCHRONIZATION]], 0.0), blocks=blocks)


def transfers_as_expected(job: FixedJob, scenario: Scenario) -> Scenario | None:
    """Transfers take what the link should take, where that is known."""
    known = job.expected_transfer_ns != NONE
    if not known.any():
        return None
    expected = np.where(known, job.expected_transfer_ns, scenario.transfer_ns)
    return replace(scenario, transfer_ns=np.minimum(scenario.transfer_ns, expected))


def free_transfers(_job: FixedJob, scenario: Scenario) -> Scenario | None:
    """Transfers take no time; arrivals are still waited for."""
    if not len(scenario.transfer_ns):
        return None
    return replace(scenario, transfer_ns=np.zeros_like(scenario.transfer_ns))


def overlapped_reductions(job: FixedJob, scenario: Scenario) -> Scenario | None:
    """Gradients are summed beside the backward pass that makes them; None where most of that is so already.

    Of a step's reductions the last stays, as nothing computes any more when its gradients are there, with what comes
    after it (a norm, a loss), and what outlasts half of the step's computing: a backward pass is two thirds of it, but
    has made little at its beginning.
    """
    if not job.on_device:
        return None
    transfer = scenario.transfer_ns.copy()
    for rank, part in job.graph.layout.parts.items():
        mine = part.first_communication + np.flatnonzero(job.reduces[part.communications])
        activities = job.graph.layout.activity_of_communication[mine] - part.first_activity
        if not len(mine) or _hidden_share(part.graph.device, activities) >= _HIDDEN_ALREADY:
            continue
        order = np.argsort(part.graph.device.start_ns[activities], kind="stable")
        mine, step_of = mine[order], part.graph.device.step[activities[order]]
        for step, computing in kernels_by_step(job.graph.layout, rank).items():
            own = mine[step_of == step]
            took = scenario.transfer_ns[own]
            if not len(own):
                continue
            last = np.flatnonzero(took >= _NO_TRIFLE * took.max())[-1]
            room = int(_BESIDE * scenario.duration_ns[computing].sum())
            transfer[own[:last]] = 0
            transfer[own[last]] += max(int(took[:last].sum()) - room, 0)
    return None if (transfer == scenario.transfer_ns).all() else replace(scenario, transfer_ns=transfer)


def _hidden_share(device: DeviceWork, activities: Nodes) -> float:
    """Of the time of some activities, the part beside which something computes."""
    computes = device.work == Work.COMPUTE
    beside = union(device.start_ns[computes], device.end_ns[computes])
    start, end = device.start_ns[activities], device.end_ns[activities]
    return float(covered_time(start, end, beside).sum()) / max(int((end - start).sum()), 1)


def without_copies(job: FixedJob, scenario: Scenario) -> Scenario | None:
    """Copies and fills take no time."""
    copies = np.concatenate([p.graph.device.work for p in job.graph.layout.parts.values()]) == Work.COPY
    if not copies.any():
        return None
    return replace(scenario, duration_ns=np.where(copies, 0, scenario.duration_ns), is_free=scenario.is_free | copies)


def without_straggler(job: FixedJob, scenario: Scenario) -> Scenario | None:
    """Each matched kernel takes what it takes on the fastest rank of its role; kernels that no other has are gone."""
    steps = match_kernels(job.graph.layout, job.role)
    if not steps or not job.on_device:
        return None
    duration = scenario.duration_ns.copy()
    for step in steps:
        times = np.where(step.table == NONE, np.iinfo(np.int64).max, scenario.duration_ns[step.table])
        fastest = _fastest(times, np.count_nonzero(step.table != NONE, axis=0))
        for row in step.table:
            own = row != NONE
            duration[row[own]] = fastest[own]
    return _without_extra(job.graph, replace(scenario, duration_ns=duration), steps)


def without_slow_rank(job: FixedJob, scenario: Scenario) -> Scenario | None:
    """Each rank's operators take what they take on the rank of its role that computes least over all steps; what no
    other has is gone. Operators on CPUs vary too much to be compared one by one: the least of each is luck."""
    steps = match_kernels(job.graph.layout, job.role)
    if not steps or job.on_device:
        return None
    spent: dict[tuple[int, ...], Nanoseconds] = {}
    for step in steps:
        own = np.where(step.table == NONE, 0, scenario.duration_ns[step.table]).sum(axis=1)
        spent[step.ranks] = spent.get(step.ranks, np.zeros_like(own)) + own
    duration = scenario.duration_ns.copy()
    for step in steps:
        ranks = np.argsort(spent[step.ranks], kind="stable")
        model = step.table[ranks[_place_of_fastest(len(ranks))]]
        for row in step.table:
            both = (row != NONE) & (model != NONE)
            duration[row[both]] = scenario.duration_ns[model[both]]
    return _without_extra(job.graph, replace(scenario, duration_ns=duration), steps)


def _without_extra(graph: JobGraph, scenario: Scenario, steps: Sequence[MatchedStep]) -> Scenario:
    """Kernels that only one rank has are gone, with their launches."""
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


def _fastest(times: Nanoseconds, num_present: Nodes) -> Nanoseconds:
    """By column the least, from four ranks up the lower median; absent ranks are sorted last."""
    ordered = np.sort(times, axis=0)
    place = _place_of_fastest(num_present)
    result: Nanoseconds = np.take_along_axis(ordered, np.maximum(place, 0)[None, :], axis=0)[0]
    return result


def _place_of_fastest(num_ranks: npt.ArrayLike) -> Nodes:
    num_ranks = np.asarray(num_ranks, np.int64)
    return np.where(num_ranks >= LOWER_MEDIAN_FROM, (num_ranks - 1) // 2, 0)


def balanced(job: FixedJob, scenario: Scenario) -> Scenario | None:
    """Each step's compute is cut evenly over the ranks."""
    kernels = {rank: kernels_by_step(job.graph.layout, rank) for rank in job.graph.layout.parts}
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


def ideal(job: FixedJob, scenario: Scenario) -> Scenario:
    """Every rank computes the mean of all ranks and steps, like transfers take their median, the host is never late."""
    duration = scenario.duration_ns.copy()
    layout = job.graph.layout
    kernels = [(step, own) for rank in layout.parts for step, own in kernels_by_step(layout, rank).items()]
    totals = [duration[own].sum() for _, own in kernels]
    counted = [total for (step, _), total in zip(kernels, totals, strict=True) if step in job.steps]
    for (_, own), total in zip(kernels, totals, strict=True):
        if total > 0:
            duration[own] = (duration[own] * (float(np.mean(counted or totals)) / total)).astype(np.int64)
    transfer = scenario.transfer_ns.copy()
    for number in distinct(job.alike).tolist():
        same = job.alike == number
        transfer[same] = int(np.median(transfer[same]))
    return replace(
        scenario.scaled_host(list(range(len(HOST_WORK))), 0.0),
        duration_ns=duration,
        transfer_ns=transfer,
        blocks=_needed(job.graph),
    )


def _needed(graph: JobGraph) -> npt.NDArray[np.bool_]:
    """By call, whether it waits for what the host itself uses."""
    return np.concatenate([p.graph.host.is_needed for p in graph.layout.parts.values()])


_OVERLAPPED = (Cause.COMMUNICATION, "gradients reduced beside the backward pass")

FIXES: dict[tuple[Cause, str], Fix] = {
    (Cause.DATA_LOADING, "data ready at once"): without_loading,
    (Cause.STRAGGLER, "every kernel as fast as on its fastest rank"): without_straggler,
    (Cause.STRAGGLER, "every rank's operators as fast as on the fastest rank"): without_slow_rank,
    (Cause.IMBALANCE, "compute cut evenly over the ranks"): balanced,
    (Cause.HOST_BOUND, "the host never late"): without_host_delay,
    (Cause.SYNCHRONIZATION, "no blocking calls"): without_blocking,
    (Cause.COMMUNICATION, "transfers at the link's expected bandwidth"): transfers_as_expected,
    _OVERLAPPED: overlapped_reductions,
    (Cause.COMMUNICATION, "transfers free"): free_transfers,
    (Cause.CHECKPOINT, "checkpoints free"): without_checkpoint,
    (Cause.COPY, "copies free"): without_copies,
}
"""(cause, what is changed) -> how."""

FIX_OF_REASON = {Reason.NO_OVERLAP: _OVERLAPPED}
"""Of a cause's changes, the one that may answer this reason; for others the first."""
