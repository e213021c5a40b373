"""Who holds a GPU's memory at one moment: blocks by category and by the stack that allocated them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from stepscope.analyzer.memory.categories import category_of
from stepscope.analyzer.memory.history import History
from stepscope.core.documents.hang import stack_lines
from stepscope.core.documents.memory import Holder, JobKind, MemoryCategory, MemorySnapshot


def holders_after(
    number: int, history: History, snapshot: MemorySnapshot, owners: Mapping[int, str], job: JobKind
) -> list[Holder]:
    """Holders after the first `number` events, the largest first.

    Args:
        owners: known owners of blocks, by address.
    """
    sizes: dict[tuple[MemoryCategory, int], int] = defaultdict(int)
    counts: dict[tuple[MemoryCategory, int], int] = defaultdict(int)
    step_ends = history.places_of(snapshot.step_ends_us)
    failed = history.last_failure
    noted_at = len(history.events.actions) if failed is None else failed
    is_training = job is JobKind.TRAINING
    for held in history.held_after(number):
        category = category_of(held, snapshot.stacks, owners, step_ends, noted_at, is_training=is_training)
        sizes[category, held.stack] += held.size
        counts[category, held.stack] += 1
    return [
        Holder(key[0], sizes[key], counts[key], stack_lines(snapshot.stacks[key[1]]))
        for key in sorted(sizes, key=lambda key: -sizes[key])
    ]
