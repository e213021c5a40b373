"""Which optimizer's update ends a step of training, where there are several?"""

from __future__ import annotations

import weakref
from typing import Any

MOST_UPDATES_WITHOUT = 50
"""Updates of one other optimizer after which the counted one is thought to be done with. Generators are trained once
in 5 updates of their critic, or, at the very beginning, in 100; those are counted by the critic, which comes first."""


class Cycle:
    """Counts one step a turn of the training loop: at the update of the optimizer that updated first.

    When that one is gone, or has long been idle, the next that updates takes its place.
    """

    def __init__(self) -> None:
        self._counted: weakref.ref[Any] | None = None
        self._updates_without: dict[int, int] = {}

    def counts(self, optimizer: Any) -> bool:
        """Whether steps are counted by this optimizer."""
        return self._counted is not None and self._counted() is optimizer

    def ends_with(self, optimizer: Any) -> bool:
        """Whether the update that this optimizer has just made ends a step."""
        counted = None if self._counted is None else self._counted()
        if optimizer is not counted:
            updates = self._updates_without.get(id(optimizer), 0) + 1
            self._updates_without[id(optimizer)] = updates
            if counted is not None and updates < MOST_UPDATES_WITHOUT:
                return False
            self._counted = weakref.ref(optimizer)
        if self._updates_without:
            self._updates_without.clear()
        return True
