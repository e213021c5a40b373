"""Step detection: which optimizer's update ends a step, and which DataLoader waits belong to training.

Waits are distinguished by order alone: the batch that came last before an update trained the model; a loader that runs
through from its first to its last batch between two updates evaluates it, and so does one read under
`torch.no_grad()`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
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


@dataclass(slots=True)
class _LoaderUse:
    """One loader between two updates. Times are ns."""

    first_ns: int
    last_ns: int = 0
    wait_ns: int = 0
    num_batches: int = 0
    learns: bool = True
    began: bool = False
    is_exhausted: bool = False

    @property
    def ran_through(self) -> bool:
        return self.began and self.is_exhausted


class LoaderWaits:
    """Waits of an unmodified script for its DataLoaders since the last update, by loader."""

    def __init__(self) -> None:
        self._asked: dict[int, _LoaderUse] = {}
        self._trains: int | None = None
        self._only_trains: frozenset[int | None] = frozenset()
        self._asked_before: frozenset[int | None] = frozenset()

    def began(self, loader: int, started_ns: int, ended_ns: int) -> None:
        """An iteration over the loader began; starting its workers took this long."""
        asked = self._ask(loader, started_ns, ended_ns)
        asked.began = True
        asked.is_exhausted = False

    def gave(self, loader: int, started_ns: int, ended_ns: int, *, learns: bool) -> None:
        """The loader gave a batch. `learns`: gradients were recorded when it was asked."""
        asked = self._ask(loader, started_ns, ended_ns)
        asked.num_batches += 1
        asked.learns &= learns
        asked.is_exhausted = False
        if len(self._asked) > 1:
            self._asked[loader] = self._asked.pop(loader)  # the last one asked comes last

    def ran_out(self, loader: int, started_ns: int, ended_ns: int) -> None:
        self._ask(loader, started_ns, ended_ns).is_exhausted = True

    def update(self) -> tuple[int, int]:
        """An update was made: the waits for training's batches since the one before, and the evaluations' time, ns."""
        if len(self._asked) == 1 and self._trains in self._asked:  # nearly always; the rest costs microseconds
            (only,) = self._asked.values()
            if only.num_batches and only.learns and not only.ran_through:
                self._asked_before = self._only_trains
                self._asked = {}
                return only.wait_ns, 0
        if not self._asked:
            return 0, 0
        gave = {loader: asked for loader, asked in self._asked.items() if asked.num_batches and asked.learns}
        lasting = [loader for loader, asked in gave.items() if not asked.ran_through]
        if lasting:
            self._trains = lasting[-1]
        elif gave and self._trains is None:
            self._trains = next(reversed(gave))
        also = self._asked_before.intersection(lasting)
        trains = {self._trains} | also
        data_wait_ns = sum(asked.wait_ns for loader, asked in self._asked.items() if loader in trains)
        evaluations = [asked for loader, asked in self._asked.items() if loader not in trains and _evaluates(asked)]
        self._asked_before = frozenset(gave)
        self._only_trains = frozenset((self._trains,))
        self._asked = {}
        # How long one or more of these were gone through.
        covered = end_ns = 0
        for one in sorted(evaluations, key=lambda one: one.first_ns):
            covered += max(0, one.last_ns - max(one.first_ns, end_ns))
            end_ns = max(end_ns, one.last_ns)
        return data_wait_ns, covered

    def _ask(self, loader: int, started_ns: int, ended_ns: int) -> _LoaderUse:
        asked = self._asked.get(loader)
        if asked is None:
            asked = self._asked[loader] = _LoaderUse(started_ns)
        asked.last_ns = ended_ns
        asked.wait_ns += ended_ns - started_ns
        return asked


def _evaluates(asked: _LoaderUse) -> bool:
    return asked.num_batches > 0 and (asked.ran_through or not asked.learns)
