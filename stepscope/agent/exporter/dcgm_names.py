"""Series under dcgm-exporter's names, so that dashboards made for it work."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from stepscope.agent.exporter.exposition import Series
from stepscope.core.metrics import MetricKind
from stepscope.core.metrics.gpu import BY_NAME
from stepscope.core.metrics.readings import GPU, GPU_LABELS, Labels, Reading

_OURS = frozenset(GPU_LABELS)


class DcgmNames(StrEnum):
    """Which names of DCGM's fields."""

    OLD = "old"  # up to DCGM 4.5, as most dashboards have them
    NEW = "new"  # from DCGM 4.6 on


def dcgm_series(readings: Iterable[Reading], names: DcgmNames, *, hostname: str) -> list[Series]:
    """Series under DCGM's names, sorted by name.

    Args:
        readings: of GPUs; those without a field of DCGM are left out.
        names: which names of the fields.
        hostname: label `Hostname`.
    """
    readings = tuple(readings)
    infos = _Infos(dict(reading.labels) for reading in readings if reading.metric == GPU + "info")
    by_name: dict[str, Series] = {}
    translated: dict[Labels, Labels] = {}
    for reading in readings:
        metric = BY_NAME.get(reading.metric)
        if metric is None or metric.dcgm is None:
            continue
        labels = translated.get(reading.labels)
        if labels is None:
            if any(name not in _OURS for name, _ in reading.labels):
                continue  # of a link or process: DCGM's page has no such series of this field
            labels = translated[reading.labels] = _labels(dict(reading.labels), infos, hostname)
        name = metric.dcgm.name if names is DcgmNames.OLD else metric.dcgm.new_name
        series = by_name.get(name)
        if series is None:
            # a counter's name must end with _total, and DCGM's do not
            kind = "gauge" if metric.kind is MetricKind.GAUGE else "unknown"
            series = by_name[name] = Series(name, kind, metric.help, "")
        value = reading.value if metric.dcgm.scale == 1.0 else round(reading.value / metric.dcgm.scale, 6)
        series.values.setdefault(labels, value)
    return [by_name[name] for name in sorted(by_name)]


class _Infos:
    """Labels of the info metric of each GPU, of the first source that reports it."""

    def __init__(self, infos: Iterable[dict[str, str]]) -> None:
        self._by_uuid: dict[str, dict[str, str]] = {}
        self._by_index: dict[str, dict[str, str]] = {}
        for info in infos:
            if "gpu" in info:
                self._by_uuid.setdefault(info.get("uuid", ""), info)
                self._by_index.setdefault(info["gpu"], info)

    def of(self, labels: dict[str, str]) -> dict[str, str]:
        """Info of the whole GPU; empty if not known. NVML, the first source, names an instance by its own UUID."""
        uuid = labels.get("uuid", "")
        is_of_instance = "gpu_instance" in labels and not uuid.startswith("GPU-")
        if uuid and not is_of_instance:
            return self._by_uuid.get(uuid, {})
        return self._by_index.get(labels.get("gpu", ""), {})


def _labels(ours: dict[str, str], infos: _Infos, hostname: str) -> Labels:
    info = infos.of(ours)
    index = info.get("gpu", ours.get("gpu", ""))
    labels = {
        "gpu": index,
        "UUID": info.get("uuid", ours.get("uuid", "")),
        "pci_bus_id": info.get("pci_bus_id", ""),
        "device": f"nvidia{info.get('minor_number', index)}",
        "modelName": info.get("name", ""),
        "GPU_I_PROFILE": ours.get("mig_profile", ""),
        "GPU_I_ID": ours.get("gpu_instance", ""),
        "Hostname": hostname,
    }
    return tuple(sorted((name, value) for name, value in labels.items() if value))
