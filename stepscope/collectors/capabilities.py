"""Capabilities report: which metrics are collected for each GPU, which are missing, and why."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from stepscope.core.hardware.devices import device_in
from stepscope.core.metrics.readings import Collection, Labels, Missing, MissingReason


@dataclass(frozen=True, slots=True)
class Gap:
    """Metrics that are missing for one reason.

    Attributes:
        reason, detail: as of a `Missing`.
        metrics: their names, sorted; empty where the whole GPU is missing.
    """

    reason: MissingReason
    detail: str
    metrics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What can be had of one GPU or MIG instance.

    Attributes:
        labels: which it is; empty for what concerns the whole machine.
        collected: names of metrics with a value, sorted.
        gaps: what has none.
    """

    labels: Labels
    collected: tuple[str, ...]
    gaps: tuple[Gap, ...]


def capabilities_of(collection: Collection) -> list[Capabilities]:
    """The report, GPU by GPU, in the order of their labels.

    Args:
        collection: of at least two rounds of collecting, as some values need two samples. A metric that has values
            with some further labels (a link, a process) is collected.
    """
    collected: dict[Labels, set[str]] = {}
    missing: dict[Labels, list[Missing]] = {}
    for reading in collection.readings:
        collected.setdefault(_device_labels(reading.labels), set()).add(reading.metric)
    for absent in collection.missing:
        missing.setdefault(_device_labels(absent.labels), []).append(absent)
    return [
        Capabilities(
            labels,
            tuple(sorted(collected.get(labels, ()))),
            _gaps(absent for absent in missing.get(labels, ()) if absent.metric not in collected.get(labels, ())),
        )
        for labels in sorted(collected.keys() | missing.keys(), key=_order)
    ]


def _device_labels(labels: Labels) -> Labels:
    device = device_in(dict(labels))
    return device.labels() if device.uuid or device.index else ()


def _order(labels: Labels) -> tuple[int, Labels]:
    index = dict(labels).get("gpu", "")
    return int(index) if index.isdecimal() else -1, labels


def _gaps(missing: Iterable[Missing]) -> tuple[Gap, ...]:
    groups: dict[tuple[MissingReason, str], set[str]] = {}
    for absent in missing:
        groups.setdefault((absent.reason, absent.detail), set()).add(absent.metric)
    return tuple(Gap(reason, detail, tuple(sorted(names - {""}))) for (reason, detail), names in groups.items())
