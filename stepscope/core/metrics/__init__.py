"""Metrics: definition (name, unit, kind, DCGM's field), catalogues by subject, and readings."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class MetricKind(StrEnum):
    """Whether a value stands for now (gauge) or for all that was since a start (counter)."""

    GAUGE = "gauge"
    COUNTER = "counter"


class Unit(StrEnum):
    """Base units of Prometheus; the value is what the metric's name must end with (before `_total`)."""

    WATTS = "watts"
    JOULES = "joules"
    HERTZ = "hertz"
    BYTES = "bytes"
    BYTES_PER_SECOND = "bytes_per_second"
    CELSIUS = "celsius"
    SECONDS = "seconds"
    RATIO = "ratio"
    NONE = ""  # counts, states, ids


@dataclass(frozen=True, slots=True)
class Dcgm:
    """A field of DCGM that tells the same.

    Attributes:
        name: as dcgm-exporter's pages call it up to DCGM 4.5.
        new_name: as DCGM 4.6 and newer call it; the same where it was not renamed.
        scale: our value = its value x scale.
    """

    name: str
    new_name: str
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class Metric:
    """One row of a catalogue.

    Attributes:
        name: Prometheus name, whole.
        kind: gauge or counter.
        unit: of the value.
        help: one sentence.
        dcgm: DCGM's field, where there is one.
        labels: names of labels beside those that say which GPU.
    """

    name: str
    kind: MetricKind
    unit: Unit
    help: str
    dcgm: Dcgm | None = None
    labels: tuple[str, ...] = ()
