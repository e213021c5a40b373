"""Which number has a GPU? The first source's that tells of it: another source may count in its own way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from stepscope.agent.source_state import SourceState
from stepscope.core.gpu_metrics import GPU
from stepscope.core.readings import Collection, Labels, with_labels

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
        self._latest: tuple[Collection, Collection, Collection] | None = None

    def state(self) -> SourceState:
        """As it is now; the same as long as neither source has told anything new. From any thread."""
        state, first = self._state(), self._first().collection
        latest = self._latest
        if latest is None or latest[0] is not state.collection or latest[1] is not first:
            latest = self._latest = state.collection, first, _renumbered(state.collection, _numbers(first))
        return replace(state, collection=latest[2])


def _numbers(collection: Collection) -> _Numbers:
    """By UUID."""
    told = (dict(reading.labels) for reading in collection.readings if reading.metric == _UP)
    return {one["uuid"]: one["gpu"] for one in told if one.get("uuid") and "gpu" in one and "gpu_instance" not in one}


def _renumbered(collection: Collection, numbers: _Numbers) -> Collection:
    if all(numbers.get(uuid, number) == number for uuid, number in _numbers(collection).items()):
        return collection
    known: dict[Labels, Labels] = {}

    def labels(old: Labels) -> Labels:
        if old not in known:
            told = dict(old)
            number = numbers.get(told.get("uuid", ""))
            known[old] = old if number is None or "gpu" not in told else with_labels(old, gpu=number)
        return known[old]

    return Collection(
        tuple([replace(one, labels=labels(one.labels)) for one in collection.readings]),
        tuple([replace(one, labels=labels(one.labels)) for one in collection.missing]),
        tuple([replace(one, labels=labels(one.labels)) for one in collection.findings]),
    )
