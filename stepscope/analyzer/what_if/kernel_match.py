"""Which kernel on one rank is the same piece of work as which kernel on another?

Ranks of one role launch the same kernels in the same order within a step. Where they differ, equal heads and tails are
taken off and the longest common stretches of the rest are matched; a stretch that is only replaced by one of the same
length (another variant of a kernel) is matched as well.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

import numpy as np
import numpy.typing as npt

from stepscope.analyzer.ledger.activities import Work
from stepscope.analyzer.what_if.edge_blocks import Layout, Nodes
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
