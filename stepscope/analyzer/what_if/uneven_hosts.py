"""Uneven hosts: what the host of one rank does longer than those of the others between two collectives.

Ranks that do the same launch the same collectives, and need as long for what lies between them. A rank that runs Python
of its own, waits for values or collects garbage there needs longer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from stepscope.analyzer.what_if.planned_calls import Act, PlannedCall

MOSTLY_LONGER = 0.25
"""Quantile of the difference between hosts over the steps that must be positive for it to be one."""

_WAITS = (Act.WAIT, Act.LAUNCH_AND_WAIT)


class Evened(NamedTuple):
    """Calls of all ranks, those of one made as fast as the others'.

    Attributes:
        rank: its place.
        num_waits: how often a step it waits for its GPU where the others do not.
    """

    calls: list[Sequence[PlannedCall]]
    rank: int
    num_waits: float


class _Part(NamedTuple):
    """Host time and number of waits by step and part of a rank, and the part of each of its calls."""

    host_ns: npt.NDArray[np.float64]
    num_waits: npt.NDArray[np.float64]
    part: list[int]


def evened(ranks: Sequence[Sequence[PlannedCall]], num_steps: int) -> Evened:
    """Make the host of one rank, that which needs most, as fast as the median of the others; between collectives where
    it is not mostly slower, nothing changes."""
    parts = [_parts(calls, num_steps) for calls in ranks]
    slowest = int(np.argmax([np.median(own.host_ns, axis=0).sum() for own in parts]))
    own, others = parts[slowest], [part for place, part in enumerate(parts) if place != slowest]
    longer = own.host_ns - np.median([other.host_ns for other in others], axis=0)
    is_longer = np.quantile(longer, MOSTLY_LONGER, axis=0) > 0
    usual = np.maximum(np.median(own.host_ns, axis=0), 1.0)
    faster = np.where(is_longer, np.maximum(1.0 - np.median(longer, axis=0) / usual, 0.0), 1.0).tolist()
    more_waits = own.num_waits - np.median([other.num_waits for other in others], axis=0)
    calls = [
        call
        if call.aside
        else call._replace(before_ns=call.before_ns * faster[part], after_ns=call.after_ns * faster[part])
        for call, part in zip(ranks[slowest], own.part, strict=True)
    ]
    evened_calls = [calls if place == slowest else of_rank for place, of_rank in enumerate(ranks)]
    return Evened(evened_calls, slowest, float(np.maximum(np.median(more_waits, axis=0), 0.0).sum()))


def _parts(calls: Sequence[PlannedCall], num_steps: int) -> _Part:
    """Parts of a rank's steps: between two collectives, the first of them after the last collective of the step before.

    A step has as many collectives as the next one; where that is not so, it has one part.
    """
    num_collectives = sum(work.communicates for call in calls for _, work in call.works)
    per_step = num_collectives // num_steps
    num_parts = per_step if per_step and num_collectives == per_step * num_steps else 1
    host_ns, num_waits = np.zeros((2, num_steps, num_parts))
    part_of = []
    so_far = 0
    for call in calls:
        step, part = divmod(so_far * num_steps * num_parts // max(num_collectives, 1), num_parts)
        part_of.append(part)
        if not call.aside:
            host_ns[step % num_steps, part] += call.before_ns + call.after_ns
            num_waits[step % num_steps, part] += call.act in _WAITS
        so_far += sum(work.communicates for _, work in call.works)
    return _Part(host_ns, num_waits, part_of)
