"""Text formats of Prometheus and OpenMetrics: metric families, series and labels.

Prometheus refuses a whole page for one duplicate series or one invalid name: such readings are left out and counted.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stepscope.core.metrics import DefaultSeries, Metric, MetricKind
from stepscope.core.metrics.agent import AGENT_METRICS, FLEET_METRICS, HEALTH_METRICS, JOB_METRICS, TRAINING_METRICS
from stepscope.core.metrics.gpu import FABRIC_METRICS, GPU_METRICS
from stepscope.core.metrics.host import HOST_METRICS
from stepscope.core.metrics.readings import Labels, ReadingSelection

CATALOGUE: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        *AGENT_METRICS,
        *GPU_METRICS,
        *JOB_METRICS,
        *FLEET_METRICS,
        *TRAINING_METRICS,
        *FABRIC_METRICS,
        *HOST_METRICS,
        *HEALTH_METRICS,
    )
}
"""All metrics by name, in the order of the page."""

FULL_SELECTION: Mapping[str, DefaultSeries] = dict.fromkeys(CATALOGUE, DefaultSeries.ALL)
"""Selection of every series of every metric; see `exporter.selection`."""

_LABEL_NAME = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*")
_NONE = DefaultSeries.NONE
_SUFFIX = {"counter": "_total", "info": "_info"}
_MAX_PLAIN_DIGITS = 6
_MAX_LABEL_SETS = 20_000


@dataclass(frozen=True, slots=True)
class MetricSeries:
    """All series of one name on the metrics page; `kind` is "gauge", "counter", "info" or "unknown"."""

    name: str
    kind: str
    help: str
    unit: str
    values: dict[Labels, float] = field(default_factory=dict)

    @property
    def family_name(self) -> str:
        """Name of the family in OpenMetrics: without the suffix of its kind."""
        return self.name.removesuffix(_SUFFIX.get(self.kind, ""))

    def family(self) -> Any:
        """The family for prometheus-client, which nothing else here needs."""
        from prometheus_client.core import Metric as Family
        from prometheus_client.core import Sample

        family = Family(self.family_name, self.help, self.kind, self.unit)
        for labels, value in self.values.items():
            family.samples.append(Sample(self.name, {name: _unicode(text) for name, text in labels}, value))
        return family


def exported_readings(selection: Mapping[str, DefaultSeries]) -> ReadingSelection[Labels, str]:
    """Readings of metrics that may be on the page, and of unknown ones, which are counted there."""
    return ReadingSelection(lambda metric, labels: (labels, metric) if selection.get(metric) is not _NONE else None)


class LabelTexts:
    """Prometheus labels as both text formats write them, cached: the same labels come in every page."""

    def __init__(self) -> None:
        self._texts: dict[Labels, str | None] = {}

    def text(self, labels: Labels) -> str | None:
        """`{gpu="0",uuid="GPU-..."}`, empty without labels; None if the name of a label is not valid."""
        try:
            return self._texts[labels]
        except KeyError:
            pass
        if len(self._texts) >= _MAX_LABEL_SETS:
            self._texts.clear()
        if any(_LABEL_NAME.fullmatch(name) is None for name, _ in labels):
            text = None
        else:
            pairs = ",".join(f'{name}="{_escaped(_unicode(value))}"' for name, value in labels)
            text = f"{{{pairs}}}" if pairs else ""
        self._texts[labels] = text
        return text


class MetricFamilies:
    """The series of one metrics page. Of a series that comes twice the first stays.

    Args:
        selection: which series of each metric are on the page, by name.

    Attributes:
        dropped: number of readings left out, by collector and reason: `unknown_metric`, `unknown_label`, `duplicate`;
            the page adds `stale` and `told_before`.
    """

    def __init__(self, texts: LabelTexts, selection: Mapping[str, DefaultSeries] = FULL_SELECTION) -> None:
        self.dropped: Counter[tuple[str, str]] = Counter()
        self._selection = selection
        self._texts = texts
        self._series: dict[str, MetricSeries] = {}

    def add(self, collector: str, name: str, labels: Labels, value: float) -> None:
        selected = self._selection.get(name)
        if selected is None:
            self.dropped[collector, "unknown_metric"] += 1
            return
        if selected is _NONE or (selected is DefaultSeries.NONZERO and not value):
            return
        series = self._series.get(name)
        if series is None:
            series = self._series[name] = _series_of(CATALOGUE[name])
        if labels in series.values:
            self.dropped[collector, "duplicate"] += 1
        elif self._texts.text(labels) is None:
            self.dropped[collector, "unknown_label"] += 1
        else:
            series.values[labels] = value

    def add_readings(
        self, collector: str, readings: Iterable[tuple[Labels, Sequence[str], Sequence[float], int]]
    ) -> None:
        """Add the readings of one collector, as `exported_readings` selects them."""
        for labels, names, values, _ in readings:
            for name, value in zip(names, values, strict=True):
                self.add(collector, name, labels, value)

    def in_order(self) -> list[MetricSeries]:
        """Series with a value, in the catalogue's order."""
        return [series for name in CATALOGUE if (series := self._series.get(name)) is not None and series.values]


def number_text(value: float) -> str:
    """A finite number as both text formats write it: with an exponent from a million on, as Go does."""
    text = repr(float(value))
    point = text.find(".")
    if point <= _MAX_PLAIN_DIGITS or value < 0:
        return text
    digits = f"{text[0]}.{text[1:point]}{text[point + 1 :]}".rstrip("0.")
    return f"{digits}e+{point - 1:02d}"


def exposition_text(all_series: Iterable[MetricSeries], texts: LabelTexts, *, is_openmetrics: bool) -> str:
    """The metrics page in Prometheus' text format 0.0.4, or OpenMetrics' 1.0 without its end."""
    lines = []
    for series in all_series:
        if is_openmetrics:
            name = series.family_name
            lines.append(f"# HELP {name} {_escaped(series.help)}\n# TYPE {name} {series.kind}\n")
            if series.unit:
                lines.append(f"# UNIT {name} {series.unit}\n")
        else:
            name, kind = series.name, {"info": "gauge", "unknown": "untyped"}.get(series.kind, series.kind)
            text = series.help.replace("\\", r"\\").replace("\n", r"\n")
            lines.append(f"# HELP {name} {text}\n# TYPE {name} {kind}\n")
        name = series.name
        lines += [f"{name}{texts.text(labels)} {number_text(value)}\n" for labels, value in series.values.items()]
    return "".join(lines)


def _series_of(metric: Metric) -> MetricSeries:
    if metric.kind is MetricKind.COUNTER:
        return MetricSeries(metric.name, "counter", metric.help, metric.unit.value)
    if metric.name.endswith("_info"):
        return MetricSeries(metric.name, "info", metric.help, "")
    return MetricSeries(metric.name, "gauge", metric.help, metric.unit.value)


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _unicode(text: str) -> str:
    """The text with question marks for what is not Unicode: a command's name may be any bytes."""
    return text if text.isascii() else text.encode(errors="replace").decode()
