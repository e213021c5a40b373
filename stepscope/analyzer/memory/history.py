"""History of allocations: memory held at each moment, by whom, and growth from step to step.

A snapshot lists what is held at its end, and its events what changed before: going backwards gives the memory at each
moment without knowing the allocations before the recording.

Growth: steps are delimited by the ends of the optimizer's steps, where torch recorded them. Allocated memory should be
equal at each; if it grows, the blocks that grow are those allocated in many different steps and still held.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median

import numpy as np
from numpy.typing import NDArray

from stepscope.core.documents.hang import StackFrame, stack_lines
from stepscope.core.documents.memory import (
    NO_STACK,
    AllocatorAction,
    AllocatorEvents,
    Growth,
    MemorySegment,
    MemorySnapshot,
)

_MAX_POINTS = 400
_RESERVED_SIGNS = {
    AllocatorAction.SEGMENT_ALLOC: 1,
    AllocatorAction.SEGMENT_MAP: 1,
    AllocatorAction.SEGMENT_FREE: -1,
    AllocatorAction.SEGMENT_UNMAP: -1,
}


@dataclass(frozen=True, slots=True)
class HeldBlock:
    """A block that is allocated at some moment.

    Attributes:
        stack: of its allocation; NO_STACK if it is unknown.
        born: index of the event that allocated it; None if that was before the recording.
        died: index of the event that freed it; None if none is recorded.
    """

    address: int
    size: int
    stack: int
    born: int | None
    died: int | None = None


@dataclass(frozen=True, slots=True)
class History:
    """Memory of one GPU over time.

    Attributes:
        allocated, reserved: bytes before the first event and after each.
        allocated_now, reserved_now: bytes at the end, from the segments.
    """

    device: int
    segments: Sequence[MemorySegment]
    events: AllocatorEvents
    allocated: NDArray[np.int64]
    reserved: NDArray[np.int64]
    allocated_now: int
    reserved_now: int

    @property
    def peak(self) -> int:
        """Number of events after which allocated memory was largest."""
        return int(self.allocated.argmax())

    @property
    def last_failure(self) -> int | None:
        """Index of the event of the last failed allocation; None without one."""
        place = self.events.actions.tobytes().rfind(AllocatorAction.OOM)
        return place if place >= 0 else None

    def held_after(self, number: int) -> list[HeldBlock]:
        """Blocks allocated after the first `number` events."""
        alive = {
            block.address: HeldBlock(block.address, block.size, block.stack, None)
            for segment in self.segments
            for block in segment.blocks
            if block.is_allocated
        }
        events = self.events
        for place in range(len(events.actions) - 1, number - 1, -1):
            action, address = events.actions[place], events.addresses[place]
            if action == AllocatorAction.ALLOC:
                alive.pop(address, None)
            elif action == AllocatorAction.FREE_REQUESTED:
                alive[address] = HeldBlock(address, events.sizes[place], NO_STACK, None, place)
        born = self._births(number)
        return [
            replace(held, stack=events.stacks[born[held.address]] or held.stack, born=born[held.address])
            if held.address in born
            else held
            for held in alive.values()
        ]

    def _births(self, number: int) -> dict[int, int]:
        """By address, the last of the first `number` events that allocated it, if no free followed."""
        events, born = self.events, dict[int, int]()
        for place in range(number):
            if events.actions[place] == AllocatorAction.ALLOC:
                born[events.addresses[place]] = place
            elif events.actions[place] == AllocatorAction.FREE_REQUESTED:
                born.pop(events.addresses[place], None)
        return born

    def places_of(self, times_us: Sequence[int]) -> list[int]:
        """Number of events at each time; without times before the recording."""
        times = self.events.times_us
        return [bisect_right(times, one) for one in times_us if times and times[0] < one]

    def timeline(self) -> list[tuple[int, int, int]]:
        """Some hundred points (us, allocated, reserved), each the maximum of allocated memory in a stretch of time."""
        times = self.events.times_us
        if not times:
            return []
        edges = np.unique(np.linspace(0, len(times), min(_MAX_POINTS, len(times)) + 1).astype(np.int64))
        chosen = [begin + int(self.allocated[begin + 1 : end + 1].argmax()) for begin, end in pairwise(edges.tolist())]
        return [(times[place], int(self.allocated[place + 1]), int(self.reserved[place + 1])) for place in chosen]


def history_of(snapshot: MemorySnapshot, device: int) -> History:
    """History of one GPU in a snapshot."""
    segments = [segment for segment in snapshot.segments if segment.device == device]
    allocated_now = sum(block.size for segment in segments for block in segment.blocks if block.is_allocated)
    reserved_now = sum(segment.size for segment in segments)
    events = snapshot.events.get(device, AllocatorEvents())
    actions = np.frombuffer(events.actions, dtype=np.uint8) if events.actions else np.zeros(0, dtype=np.uint8)
    sizes = _sizes(events, segments)
    allocated = np.zeros(len(actions), dtype=np.int64)
    allocated[actions == AllocatorAction.ALLOC] = sizes[actions == AllocatorAction.ALLOC]
    allocated[actions == AllocatorAction.FREE_REQUESTED] = -sizes[actions == AllocatorAction.FREE_REQUESTED]
    reserved = np.zeros(len(actions), dtype=np.int64)
    for action, sign in _RESERVED_SIGNS.items():
        reserved[actions == action] = sign * sizes[actions == action]
    return History(
        device,
        segments,
        events,
        _levels_before(allocated, allocated_now),
        _levels_before(reserved, reserved_now),
        allocated_now,
        reserved_now,
    )


def _sizes(events: AllocatorEvents, segments: Sequence[MemorySegment]) -> NDArray[np.int64]:
    """Size of each event; of a block that still exists its own, which is larger if the rest was too small to split."""
    sizes = np.array(events.sizes, dtype=np.int64)
    newest = {
        events.addresses[place]: place for place, action in enumerate(events.actions) if action == AllocatorAction.ALLOC
    }
    for segment in segments:
        for block in segment.blocks:
            if block.is_allocated and block.address in newest:
                sizes[newest[block.address]] = block.size
    return sizes


def _levels_before(changes: NDArray[np.int64], now: int) -> NDArray[np.int64]:
    """Level before the first change and after each, such that the last one is `now`."""
    levels = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(changes)])
    return levels + (now - int(levels[-1]))


_MIN_STEPS = 4
_MIN_SHARE_OF_STEPS = 0.75
"""Share of the steps that must keep memory; in fewer it is a change and not a leak."""
_MIN_BYTES = 1 << 10


def growth_of(history: History, step_ends_us: Sequence[int], stacks: Sequence[tuple[StackFrame, ...]]) -> Growth | None:
    """Memory that each step keeps; None if none grows, or with fewer than five steps."""
    ends = history.places_of(step_ends_us)
    levels = [int(history.allocated[place]) for place in ends]
    differences = [later - earlier for earlier, later in pairwise(levels)]
    if len(differences) < _MIN_STEPS:
        return None
    growing = sum(difference >= _MIN_BYTES for difference in differences)
    kept = int(median(differences))
    if growing < _MIN_SHARE_OF_STEPS * len(differences) or kept < _MIN_BYTES:
        return None
    found = _growing_stack(history, ends)
    if found is None:
        return None
    stack, held = found
    return Growth(kept, len(differences), stack_lines(stacks[stack]), held)


def _growing_stack(history: History, ends: Sequence[int]) -> tuple[int, int] | None:
    """Stack whose blocks from most steps are still held, and the bytes it holds after the last step.

    None if everything held is from few steps: then a step allocates more than the one before, as with longer sequences,
    and keeps nothing.
    """
    steps: dict[int, set[int]] = defaultdict(set)
    recorded: dict[int, int] = defaultdict(int)
    sizes: dict[int, int] = defaultdict(int)
    for held in history.held_after(ends[-1]):
        sizes[held.stack] += held.size
        if held.born is not None:
            steps[held.stack].add(bisect_right(ends, held.born))
            recorded[held.stack] += held.size
    lasting = [stack for stack in recorded if len(steps[stack]) >= _MIN_SHARE_OF_STEPS * (len(ends) - 1)]
    if not lasting:
        return None
    stack = max(lasting, key=lambda one: recorded[one])
    return stack, sizes[stack]
