"""GPUs as the host sees them: on the PCI bus, their NUMA node, the processes that use them, and CPU affinity.

A training process that may only run on CPUs of another NUMA node than its GPU's pays for the link between sockets with
each copy to and from the GPU and each kernel launch.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from stepscope.collectors.host.files import Files, not_in_file
from stepscope.collectors.host.machine import format_cpu_list, parse_cpu_list
from stepscope.collectors.readings_builder import NoValue, ReadingsBuilder
from stepscope.core.metrics.readings import GPU, HOST, PROCESS, Collection, MissingReason


@dataclass(frozen=True, slots=True)
class GpuPlace:
    """Place of a GPU on the PCI bus.

    Attributes:
        uuid: of the whole GPU.
        pci_bus_id: as NVML writes it: "00000000:0F:00.0".
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
    """GPUs and their processes in a collection; a process on a MIG instance is one of its GPU."""
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


_PCI_ADDRESS = re.compile(r"([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7])", re.ASCII)
_PCI_FOLDER = "sys/bus/pci/devices"


def sysfs_address(pci_bus_id: str) -> str | None:
    """Name under /sys/bus/pci/devices of NVML's 00000000:0F:00.0; None where that is not an address."""
    match = _PCI_ADDRESS.fullmatch(pci_bus_id)
    return f"{int(match[1], 16):04x}:{match[2].lower()}" if match else None


def local_cpus(files: Files, place: GpuPlace) -> frozenset[int] | NoValue:
    """CPUs next to a GPU."""
    path = _attribute_path(place, "local_cpulist")
    text = path if isinstance(path, NoValue) else files.read(path)
    if isinstance(text, NoValue):
        return text
    cpus = parse_cpu_list(text)
    return cpus or NoValue(MissingReason.UNREADABLE, f"/{path}: {text.strip()[:40]!r} names no CPUs")


def read_gpu_node(files: Files, into: ReadingsBuilder, place: GpuPlace) -> None:
    """Read the NUMA node of a GPU."""
    path = _attribute_path(place, "numa_node")
    node = path if isinstance(path, NoValue) else files.number(path)
    if isinstance(node, NoValue) and node.reason is MissingReason.UNREADABLE:  # -1
        node = NoValue(MissingReason.NOT_SUPPORTED, f"/{path}: the firmware reports no node")
    into.add(HOST + "gpu_numa_node", node, uuid=place.uuid, pci_bus_id=place.pci_bus_id)


def _attribute_path(place: GpuPlace, attribute: str) -> str | NoValue:
    address = sysfs_address(place.pci_bus_id)
    if address is None:
        return NoValue(MissingReason.NOT_SUPPORTED, f"{place.pci_bus_id!r} is not a PCI address")
    return f"{_PCI_FOLDER}/{address}/{attribute}"


def read_affinity(
    files: Files, into: ReadingsBuilder, pid: int, status: dict[str, str], places: list[GpuPlace]
) -> None:
    """Compare the CPUs on which a process may run, by its /proc/<pid>/status, with those next to its GPUs."""
    metric = PROCESS + "gpu_local_cpus"
    allowed = parse_cpu_list(status.get("Cpus_allowed_list", ""))
    if not allowed:
        into.add(PROCESS + "allowed_cpus", not_in_file(f"proc/{pid}/status", "Cpus_allowed_list"), pid=pid)
        return
    into.add(PROCESS + "allowed_cpus", len(allowed), pid=pid)
    if len(allowed) == 1:
        cpu = format_cpu_list(allowed)
        message = f"process {pid} may run on CPU {cpu} only: the threads of its data loader and of autograd share it"
        into.note("single_cpu", message, pid=pid)
    for place in places:
        local = local_cpus(files, place)
        if isinstance(local, NoValue):
            into.add(metric, local, pid=pid, uuid=place.uuid)
            continue
        near = allowed & local
        into.add(metric, len(near), pid=pid, uuid=place.uuid)
        if not near:
            message = (
                f"process {pid} may run on CPUs {format_cpu_list(allowed)}, none of which is next to its GPU "
                f"({place.pci_bus_id}): bind it to CPUs {format_cpu_list(local)}"
            )
            into.note("remote_affinity", message, pid=pid, uuid=place.uuid)


_NVIDIA, _DISPLAY_CLASSES = "0x10de", ("0x0300", "0x0302")


def count_gpus_on_bus(files: Files) -> int:
    """Number of NVIDIA GPUs on the PCI bus; 0 where it cannot be read."""
    names = files.names(_PCI_FOLDER)
    return sum(
        _attribute(files, name, "vendor").strip() == _NVIDIA
        and _attribute(files, name, "class").startswith(_DISPLAY_CLASSES)
        for name in ([] if isinstance(names, NoValue) else names)
    )


def _attribute(files: Files, name: str, what: str) -> str:
    text = files.read(f"{_PCI_FOLDER}/{name}/{what}")
    return "" if isinstance(text, NoValue) else text
