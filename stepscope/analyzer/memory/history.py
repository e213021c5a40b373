"""How much was allocated when, and by whom? The recorded events, reckoned back from the snapshot's end.

A snapshot says exactly what is held at its end; events before it say what changed. So nothing need be known of what was
allocated before the recording began.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from stepscope.core.memory_snapshot import NO_STACK, Action, Events, MemorySnapshot, Segment

_MOST_POINTS = 400
_RESERVED_SIGNS = {
    Action.SEGMENT_ALLOC: 1,
    Action.SEGMENT_MAP: 1,
    Action.SEGMENT_FREE: -1,
    Action.SEGMENT_UNMAP: -1,
}


@dataclass(frozen=True, slots=True)
class Held:
    """A block that was allocated at a moment.

    Attributes:
        stack: of its allocation; NO_STACK where that was before the recording, or without one.
        born: number of the event that allocated it; None: before the recording.
        died: number of the event that freed it; None: none is recorded.
    """

    address: int
    size: int
    stack: int
    born: int | None
    died: int | None = None


@dataclass(frozen=True, slots=True)
class History:
    """One GPU's time.

    Attributes:
        allocated, reserved: after each event, bytes; one more at the beginning.
        allocated_now, reserved_now: at the end, from the segments.
    """

    device: int
    segments: Sequence[Segment]
    events: Events
    allocated: NDArray[np.int64]
    reserved: NDArray[np.int64]
    allocated_now: int
    reserved_now: int

    @property
    def peak(self) -> int:
        """Number of events after which most was allocated."""
        return int(self.allocated.argmax())

    @property
    def last_failure(self) -> int | None:
        """Number of the event of the last allocation that found no room; None without one."""
        place = self.events.actions.tobytes().rfind(Action.OOM)
        return place if place >= 0 else None

    def held_after(self, number: int) -> list[Held]:
        """What was allocated after so many events."""
        alive = {
            block.address: Held(block.address, block.size, block.stack, None)
            for segment in self.segments
            for block in segment.blocks
            if block.is_allocated
        }
        events = self.events
        for place in range(len(events.actions) - 1, number - 1, -1):
            action, address = events.actions[place], events.addresses[place]
            if action == Action.ALLOC:
                alive.pop(address, None)
            elif action == Action.FREE_REQUESTED:
                alive[address] = Held(address, events.sizes[place], NO_STACK, None, place)
        born = self._births(number)
        return [
            replace(held, stack=events.stacks[born[held.address]], born=born[held.address])
            if held.address in born
            else held
            for held in alive.values()
        ]

    def _births(self, number: int) -> dict[int, int]:
        """Of each address, the last event before that allocated it and that no free followed."""
        events, born = self.events, dict[int, int]()
        for place in range(number):
            if events.actions[place] == Action.ALLOC:
                born[events.addresses[place]] = place
            elif events.actions[place] == Action.FREE_REQUESTED:
                born.pop(events.addresses[place], None)
        return born

    def places_of(self, times_us: Sequence[int]) -> list[int]:
        """How many events had happened at these times; without those before the recording."""
        times = self.events.times_us
        return [bisect_right(times, one) for one in times_us if times and times[0] < one]

    def timeline(self) -> list[tuple[int, int, int]]:
        """Some hundred points (us, allocated, reserved): of each stretch of time the one with most allocated."""
        times = self.events.times_us
        if not times:
            return []
        edges = np.unique(np.linspace(0, len(times), min(_MOST_POINTS, len(times)) + 1).astype(np.int64))
        chosen = [begin + int(self.allocated[begin + 1 : end + 1].argmax()) for begin, end in pairwise(edges.tolist())]
        return [(times[place], int(self.allocated[place + 1]), int(self.reserved[place + 1])) for place in chosen]


def history_of(snapshot: MemorySnapshot, device: int) -> History:
    """One GPU's part of a snapshot."""
    segments = [segment for segment in snapshot.segments if segment.device == device]
    allocated_now = sum(block.size for segment in segments for block in segment.blocks if block.is_allocated)
    reserved_now = sum(segment.size for segment in segments)
    events = snapshot.events.get(device, Events())
    actions = np.frombuffer(events.actions, dtype=np.uint8) if events.actions else np.zeros(0, dtype=np.uint8)
    sizes = _sizes(events, segments)
    allocated = np.zeros(len(actions), dtype=np.int64)
    allocated[actions == Action.ALLOC] = sizes[actions == Action.ALLOC]
    allocated[actions == Action.FREE_REQUESTED] = -sizes[actions == Action.FREE_REQUESTED]
    reserved = np.zeros(len(actions), dtype=np.int64)
    for action, sign in _RESERVED_SIGNS.items():
        reserved[actions == action] = sign * sizes[actions == action]
    return History(
        device,
        segments,
        events,
        _reckoned_back(allocated, allocated_now),
        _reckoned_back(reserved, reserved_now),
        allocated_now,
        reserved_now,
    )


def _sizes(events: Events, segments: Sequence[Segment]) -> NDArray[np.int64]:
    """Of each event; of a block that is still there its own, which is larger where the rest was too small to split."""
    sizes = np.array(events.sizes, dtype=np.int64)
    newest = {events.addresses[place]: place for place, action in enumerate(events.actions) if action == Action.ALLOC}
    for segment in segments:
        for block in segment.blocks:
            if block.is_allocated and block.address in newest:
                sizes[newest[block.address]] = block.size
    return sizes


def _reckoned_back(changes: NDArray[np.int64], now: int) -> NDArray[np.int64]:
    """The level before the first change and after each, such that the last one is `now`."""
    levels = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(changes)])
    return levels + (now - int(levels[-1]))
