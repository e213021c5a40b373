"""Which memory snapshots did the caller of `profile` ask for?"""

from __future__ import annotations

from dataclasses import dataclass

_HISTORY = "+history"


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """What is written of the GPU's memory.

    Attributes:
        when_out: when the memory runs out.
        every: at each so many steps; None for never.
        history: with the stacks of the allocations before.
    """

    when_out: bool = True
    every: int | None = None
    history: bool = False


def memory_plan(memory: str | int) -> MemoryPlan:
    """From "off", "oom" or a number of steps, the latter two also with "+history" behind.

    Raises:
        ValueError: it is none of these.
    """
    what = str(memory).strip().lower()
    history = what.endswith(_HISTORY)
    what = what.removesuffix(_HISTORY)
    if what == "off" and not history:
        return MemoryPlan(when_out=False)
    if what == "oom":
        return MemoryPlan(history=history)
    if what.isascii() and what.isdigit() and int(what) > 0:
        return MemoryPlan(every=int(what), history=history)
    raise ValueError(f'memory is "off", "oom", a number of steps, or one of the latter with "+history", not {memory!r}')
