"""Metrics: definition (name, unit, kind, DCGM's field), catalogues by subject, and readings."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class MetricKind(StrEnum):
    """Prometheus type of a metric: a value of now (gauge), or a total since some start (counter)."""

    GAUGE = "gauge"
    COUNTER = "counter"


class Unit(StrEnum):
    """Unit of a metric, one of Prometheus' base units; the value is the end of the metric's name (before `_total`)."""

    WATTS = "watts"
    JOULES = "joules"
    HERTZ = "hertz"
    BYTES = "bytes"
    BYTES_PER_SECOND = "bytes_per_second"
    CELSIUS = "celsius"
    SECONDS = "seconds"
    RATIO = "ratio"
    NONE = ""  # counts, states, ids


class DefaultSeries(StrEnum):
    """Which series of a metric are on the agent's page unless its settings select others."""

    NONE = "none"
    ALL = "all"
    NONZERO = "nonzero"
    """Those whose value is not 0: of a state or a kind only what holds. For metrics with one series per state."""


@dataclass(frozen=True, slots=True)
class DcgmField:
    """DCGM's field with the same meaning as a metric.

    Attributes:
        name: in dcgm-exporter's pages up to DCGM 4.5.
        new_name: in those of DCGM 4.6 and newer; the same where it was not renamed.
        scale: our value = its value x scale.
    """

    name: str
    new_name: str
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class Metric:
    """Definition of a metric: one row of a catalogue.

    Attributes:
        name: whole Prometheus name.
        help: text of the HELP line.
        dcgm: DCGM's field, where there is one.
        labels: names of labels beside those that identify the GPU.
        default: series that the agent exports by default.
    """

    name: str
    kind: MetricKind
    unit: Unit
    help: str
    dcgm: DcgmField | None = None
    labels: tuple[str, ...] = ()
    default: DefaultSeries = DefaultSeries.NONE


@dataclass(frozen=True, slots=True)
class MetricGroup:
    """Definition of metrics that share a name prefix and the names of some labels."""

    prefix: str
    labels: tuple[str, ...] = ()

    def metric(
        self,
        name: str,
        text: str,
        *labels: str,
        dcgm: DcgmField | None = None,
        default: DefaultSeries = DefaultSeries.NONE,
    ) -> Metric:
        """One metric of the group. Its kind and unit follow from its name: "energy_joules_total", "power_watts".

        Args:
            name: without the prefix, ending with the unit; a counter's with `_total` behind it.
            text: of the HELP line.
            labels: beside those of the group.
        """
        base = name.removesuffix("_total")
        kind = MetricKind.GAUGE if base == name else MetricKind.COUNTER
        unit = next((unit for unit in _LONGEST_UNITS_FIRST if base.endswith(f"_{unit}")), Unit.NONE)
        return Metric(self.prefix + name, kind, unit, text, dcgm, (*self.labels, *labels), default)


_LONGEST_UNITS_FIRST = sorted(set(Unit) - {Unit.NONE}, key=len, reverse=True)
