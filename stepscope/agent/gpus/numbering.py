"""GPU indices: the first source that knows a GPU gives it its number, other sources are renumbered to it.

Until the first source has answered, or was given up, the others wait. A number is remembered while the first source is
silent, and is given to no other GPU.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

from stepscope.agent.polling import SourceState
from stepscope.core.metrics.gpu import GPU
from stepscope.core.metrics.readings import Collection, Labels, MissingReason, with_labels

_UP = GPU + "up"
_Numbers = dict[str, str]


class Renumbered:
    """A source of GPUs as others see it, with the label `gpu` as a source before it has it; joined by `uuid`.

    Args:
        state: of the source, now.
        first: of the source whose numbers count.
    """

    def __init__(self, state: Callable[[], SourceState], first: Callable[[], SourceState]) -> None:
        self._state, self._first = state, first
        self._known: _Numbers = {}
        self._latest: tuple[Collection, Collection, Collection] | None = None

    def state(self) -> SourceState:
        """As it is now; the same as long as neither source has told anything new. From any thread."""
        state, of_first = self._state(), self._first()
        if of_first.reason is MissingReason.NOT_YET and not self._known and state.collection.readings:
            return SourceState(state.name, reason=MissingReason.NOT_YET, detail=f"{of_first.name} has not answered yet")
        first, latest = of_first.collection, self._latest
        if latest is None or latest[0] is not state.collection or latest[1] is not first:
            self._known = {**self._known, **_numbers(first)}
            latest = self._latest = state.collection, first, _renumbered(state.collection, self._known)
        return replace(state, collection=latest[2])


def _numbers(collection: Collection) -> _Numbers:
    """By UUID."""
    told = (dict(reading.labels) for reading in collection.readings if reading.metric == _UP)
    return {one["uuid"]: one["gpu"] for one in told if one.get("uuid") and "gpu" in one and "gpu_instance" not in one}


def _with_strangers(numbers: _Numbers, own: _Numbers) -> _Numbers:
    """Also for GPUs that the first source does not know: their own number, or a free one where another GPU has it."""
    given = dict(numbers)
    for uuid in sorted(own.keys() - numbers.keys()):
        taken = set(given.values())
        free = (str(number) for number in itertools.count(len(given)) if str(number) not in taken)
        given[uuid] = own[uuid] if own[uuid] not in taken else next(free)
    return given


def _renumbered(collection: Collection, known: _Numbers) -> Collection:
    own = _numbers(collection)
    numbers = _with_strangers(known, own)
    if all(numbers[uuid] == number for uuid, number in own.items()):
        return collection
    made: dict[Labels, Labels] = {}

    def labels(old: Labels) -> Labels:
        if old not in made:
            told = dict(old)
            number = numbers.get(told.get("uuid", ""))
            made[old] = old if number is None or "gpu" not in told else with_labels(old, gpu=number)
        return made[old]

    return Collection(
        tuple([replace(one, labels=labels(one.labels)) for one in collection.readings]),
        tuple([replace(one, labels=labels(one.labels)) for one in collection.missing]),
        tuple([replace(one, labels=labels(one.labels)) for one in collection.findings]),
    )
