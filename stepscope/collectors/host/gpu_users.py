"""Which processes use which GPUs, and where do these sit? From what a GPU collector saw."""

from __future__ import annotations

from dataclasses import dataclass

from stepscope.core.gpu_metrics import GPU
from stepscope.core.readings import Collection


@dataclass(frozen=True, slots=True)
class GpuPlace:
    """Where a GPU sits.

    Attributes:
        uuid: of the whole GPU.
        pci_bus_id: as NVML has it: "00000000:0F:00.0".
    """

    uuid: str
    pci_bus_id: str


@dataclass(frozen=True, slots=True)
class GpuUsers:
    """GPUs and their processes.

    Attributes:
        places: of all GPUs.
        processes: the GPUs of each process, by its id.
    """

    places: tuple[GpuPlace, ...] = ()
    processes: tuple[tuple[int, tuple[GpuPlace, ...]], ...] = ()


def gpu_users_of(collection: Collection) -> GpuUsers:
    """GPUs and processes of a collection; those of a MIG instance are its GPU's."""
    by_index: dict[str, GpuPlace] = {}
    for reading in collection.readings:
        labels = dict(reading.labels)
        if reading.metric == GPU + "info" and labels.get("uuid") and labels.get("pci_bus_id"):
            by_index[labels.get("gpu", labels["uuid"])] = GpuPlace(labels["uuid"], labels["pci_bus_id"])
    processes: dict[int, list[GpuPlace]] = {}
    for reading in collection.readings:
        labels = dict(reading.labels)
        if not reading.metric.startswith(GPU + "process_") or not labels.get("pid", "").isdecimal():
            continue
        places = processes.setdefault(int(labels["pid"]), [])
        place = by_index.get(labels.get("gpu", labels.get("uuid", "")))
        if place is not None and place not in places:
            places.append(place)
    return GpuUsers(tuple(by_index.values()), tuple((pid, tuple(places)) for pid, places in sorted(processes.items())))
