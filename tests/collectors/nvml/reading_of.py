"""Lookup of one metric in a collection."""

from __future__ import annotations

from stepscope.collectors.nvml.collector import GpuTarget, NvmlCollector
from stepscope.core.metrics.readings import GPU, Collection, MissingReason


def value_of(collection: Collection, name: str, /, **labels: object) -> float | None:
    """The only reading of the metric that has these labels; None where there is none."""
    found = [
        reading.value
        for reading in collection.readings
        if reading.metric == GPU + name
        and all(dict(reading.labels).get(label) == str(value) for label, value in labels.items())
    ]
    assert len(found) <= 1, f"{name} is told {len(found)} times"
    return found[0] if found else None


def missing_of(collection: Collection, name: str, /, **labels: object) -> tuple[MissingReason, str] | None:
    """Why the metric ("" for the whole GPU) has no value; None where that is not said."""
    found = [
        (missing.reason, missing.detail)
        for missing in collection.missing
        if missing.metric == (GPU + name if name else "")
        and all(dict(missing.labels).get(label) == str(value) for label, value in labels.items())
    ]
    assert len(found) <= 1, f"{name} is missed {len(found)} times"
    return found[0] if found else None


def key_of(collector: NvmlCollector, index: int = 0) -> str:
    """Of the GPU of this index."""
    target = collector.target(index)
    assert isinstance(target, GpuTarget)
    return target.key
