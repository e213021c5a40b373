"""Which readings of a GPU did another source tell before? Told twice, sums count them twice and joins fail."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stepscope.core.gpu_metrics import GPU
from stepscope.core.gpu_places import GpuPlaces
from stepscope.core.readings import GPU_LABELS, Collection, Labels, Reading

_UP, _INFO = GPU + "up", GPU + "info"
_FACTS = frozenset({_UP, _INFO})
"""Their further labels say what a GPU is, or how: they do not make another series of it."""
_WHOSE = frozenset(GPU_LABELS)


def without_doubles(collections: Sequence[Collection]) -> list[tuple[Sequence[Reading], int]]:
    """The readings of each source that none before it told of the same GPU or instance, and how many it did.

    Args:
        collections: of the sources, in the order of their trust.
    """
    of_gpus = [any(reading.metric == _UP for reading in one.readings) for one in collections]
    if sum(of_gpus) < 2:
        return [(one.readings, 0) for one in collections]
    told: set[tuple[object, ...]] = set()
    kept: list[tuple[Sequence[Reading], int]] = []
    for collection, is_of_gpus in zip(collections, of_gpus, strict=True):
        if not is_of_gpus:
            kept.append((collection.readings, 0))
            continue
        places = GpuPlaces(reading for reading in collection.readings if reading.metric == _UP)
        names: dict[Labels, tuple[object, ...]] = {}
        own, new = [], set()
        for reading in collection.readings:
            name = names.get(reading.labels)
            if name is None:
                name = names[reading.labels] = _name(places, reading.labels)
            key = (reading.metric, name[0] if reading.metric in _FACTS else name)
            if key not in told:
                own.append(reading)
                new.add(key)
        told |= new
        kept.append((own, len(collection.readings) - len(own)))
    return kept


def _name(places: GpuPlaces, labels: Labels) -> tuple[object, ...]:
    """Of what is told: the GPU or instance, and what else tells series of one metric apart."""
    known: Mapping[str, str] = dict(labels)
    return places.place(known), tuple(pair for pair in labels if pair[0] not in _WHOSE)
