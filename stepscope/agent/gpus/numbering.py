"""GPU indices: the first source that knows a GPU gives it its index, other sources are renumbered to it.

Until the first source has answered, or was given up, the others wait. An index is remembered while the first source is
silent, and is given to no other GPU.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

from stepscope.agent.polling import SourceState
from stepscope.core.hardware.devices import device_of
from stepscope.core.metrics.readings import GPU, Collection, Labels, MissingReason, with_labels

_UP = GPU + "up"
_Indices = dict[str, str]
"""By UUID of the GPU."""


class Renumbered:
    """A source of GPUs with the label `gpu` as a source before it has it, joined by `uuid`.

    Args:
        state: state of the source, now.
        first: state of the source whose indices count.
    """

    def __init__(self, state: Callable[[], SourceState], first: Callable[[], SourceState]) -> None:
        self._state, self._first = state, first
        self._known: _Indices = {}
        self._latest: tuple[Collection, Collection, Collection] | None = None

    def state(self) -> SourceState:
        """The state now; its collection is the same object until one of the sources collects again. Thread-safe."""
        state, of_first = self._state(), self._first()
        if of_first.reason is MissingReason.NOT_YET and not self._known and state.collection.readings:
            return SourceState(state.name, reason=MissingReason.NOT_YET, detail=f"{of_first.name} has not answered yet")
        first, latest = of_first.collection, self._latest
        if latest is None or latest[0] is not state.collection or latest[1] is not first:
            self._known = {**self._known, **_indices(first)}
            latest = self._latest = state.collection, first, _renumbered(state.collection, self._known)
        return replace(state, collection=latest[2])


def _indices(collection: Collection) -> _Indices:
    gpus = (device_of(reading.labels) for reading in collection.readings if reading.metric == _UP)
    return {gpu.uuid: gpu.index for gpu in gpus if gpu and gpu.uuid and gpu.index and not gpu.instance}


def _with_unknown(indices: _Indices, own: _Indices) -> _Indices:
    """Also GPUs that the first source does not know: their own index, or a free one if another GPU has it."""
    given = dict(indices)
    for uuid in sorted(own.keys() - indices.keys()):
        taken = set(given.values())
        free = (str(index) for index in itertools.count(len(given)) if str(index) not in taken)
        given[uuid] = own[uuid] if own[uuid] not in taken else next(free)
    return given


def _renumbered(collection: Collection, known: _Indices) -> Collection:
    own = _indices(collection)
    indices = _with_unknown(known, own)
    if all(indices[uuid] == index for uuid, index in own.items()):
        return collection
    renumbered: dict[Labels, Labels] = {}

    def labels(old: Labels) -> Labels:
        if old not in renumbered:
            by_name = dict(old)
            index = indices.get(by_name.get("uuid", ""))
            renumbered[old] = old if index is None or "gpu" not in by_name else with_labels(old, gpu=index)
        return renumbered[old]

    return Collection(
        tuple([replace(one, labels=labels(one.labels)) for one in collection.readings]),
        tuple([replace(one, labels=labels(one.labels)) for one in collection.missing]),
        tuple([replace(one, labels=labels(one.labels)) for one in collection.findings]),
    )
