"""Does each step keep some memory, and where was that allocated?

Steps are told apart by the ends of the optimizer's steps, where torch noted them. What is allocated then should be the
same each time; where it grows, what grows is what was born in many different steps and still lives.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from statistics import median

from stepscope.analyzer.memory.history import History
from stepscope.core.flight_recorder import StackFrame, stack_lines
from stepscope.core.memory import Growth

_LEAST_STEPS = 4
_LEAST_SHARE_OF_STEPS = 0.75
"""Of the steps in which something was kept: fewer is a change, not a leak."""
_LEAST_BYTES = 1 << 10


def growth_of(history: History, step_ends_us: Sequence[int], stacks: Sequence[tuple[StackFrame, ...]]) -> Growth | None:
    """What each step keeps; None where nothing grows, or fewer than five steps are recorded."""
    ends = history.places_of(step_ends_us)
    levels = [int(history.allocated[place]) for place in ends]
    differences = [later - earlier for earlier, later in pairwise(levels)]
    if len(differences) < _LEAST_STEPS:
        return None
    growing = sum(difference >= _LEAST_BYTES for difference in differences)
    kept = int(median(differences))
    if growing < _LEAST_SHARE_OF_STEPS * len(differences) or kept < _LEAST_BYTES:
        return None
    found = _what_grows(history, ends)
    if found is None:
        return None
    stack, held = found
    return Growth(kept, len(differences), stack_lines(stacks[stack]), held)


def _what_grows(history: History, ends: Sequence[int]) -> tuple[int, int] | None:
    """The stack of which blocks of most steps live on, and how much it holds after the last step; None where all that
    is held is of few steps: then it is larger each time, as a longer sequence's, and none is kept."""
    steps: dict[int, set[int]] = defaultdict(set)
    recorded: dict[int, int] = defaultdict(int)
    sizes: dict[int, int] = defaultdict(int)
    for held in history.held_after(ends[-1]):
        sizes[held.stack] += held.size
        if held.born is not None:
            steps[held.stack].add(bisect_right(ends, held.born))
            recorded[held.stack] += held.size
    lasting = [stack for stack in recorded if len(steps[stack]) >= _LEAST_SHARE_OF_STEPS * (len(ends) - 1)]
    if not lasting:
        return None
    stack = max(lasting, key=lambda one: recorded[one])
    return stack, sizes[stack]
