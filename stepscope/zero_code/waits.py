"""Which of a loop's waits for batches were training's, and how long was the evaluation between two updates?

Nothing but the order of things tells: the batch that came last before an update trained the model, a loader that runs
through from its first batch to its last between two updates evaluates it, and so does one that is asked under
`torch.no_grad()`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class _Asked:
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


class Waits:
    """The waits since the last update, by loader."""

    def __init__(self) -> None:
        self._asked: dict[int, _Asked] = {}
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
        """The loader had no more batches."""
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
        return data_wait_ns, _covered_ns(evaluations)

    def _ask(self, loader: int, started_ns: int, ended_ns: int) -> _Asked:
        asked = self._asked.get(loader)
        if asked is None:
            asked = self._asked[loader] = _Asked(started_ns)
        asked.last_ns = ended_ns
        asked.wait_ns += ended_ns - started_ns
        return asked


def _evaluates(asked: _Asked) -> bool:
    return asked.num_batches > 0 and (asked.ran_through or not asked.learns)


def _covered_ns(asked: list[_Asked]) -> int:
    """How long one or more of these were gone through."""
    covered = end_ns = 0
    for one in sorted(asked, key=lambda one: one.first_ns):
        covered += max(0, one.last_ns - max(one.first_ns, end_ns))
        end_ns = max(end_ns, one.last_ns)
    return covered
