"""Step detection: which optimizer's update ends a step of an unmodified script."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

MOST_UPDATES_WITHOUT = 50
"""Updates of one other optimizer after which the counted one is thought to be done with. Generators are trained once
in 5 updates of their critic, or, at the very beginning, in 100; those are counted by the critic, which comes first."""

MOST_PATIENCE = 1000
"""The same where those thought to be done came back, as where actor and critic update 80 times each in turn."""


class StepCycle:
    """Detects the steps of an unmodified script: one a turn, at the update of the optimizer that updated first.

    When that one is gone, or has long been idle, the next that updates takes its place. Where the idle one comes back,
    the turns are longer than was thought, so that the place changes once and not twice each turn.
    """

    def __init__(self) -> None:
        self._counted = 0  # the id of none
        self._is_there: Callable[[], object] = bool  # falsy once the counted one is gone
        self._updates_without: dict[int, int] = {}
        self._patience = MOST_UPDATES_WITHOUT
        self._num_updates = 0
        self._left_at: dict[int, int] = {}

    def counts(self, optimizer: Any) -> bool:
        return id(optimizer) == self._counted

    def ends_with(self, optimizer: Any) -> bool:
        """Whether the update that this optimizer has just made ends a step."""
        self._num_updates += 1
        if id(optimizer) != self._counted:
            if id(optimizer) in self._left_at:
                self._came_back(id(optimizer))
            updates = self._updates_without.get(id(optimizer), 0) + 1
            self._updates_without[id(optimizer)] = updates
            if self._is_there():
                if updates < self._patience:
                    return False
                self._left_at[self._counted] = self._num_updates - updates
            self._counted, self._is_there = id(optimizer), _liveness(optimizer)
        if self._updates_without:
            self._updates_without.clear()
        return True

    def _came_back(self, optimizer: int) -> None:
        absence = self._num_updates - self._left_at.pop(optimizer)
        self._patience = min(max(self._patience, 2 * absence), MOST_PATIENCE)


def _liveness(optimizer: Any) -> Callable[[], object]:
    """What tells whether it is still there; of one that cannot be referred to weakly, always."""
    try:
        return weakref.ref(optimizer)
    except TypeError:
        return object
