"""GPUs as the host sees them: on the PCI bus, their NUMA node, the processes that use them, and CPU affinity.

A training process that may only run on CPUs of another NUMA node than its GPU's pays for the link between sockets with
each copy to and from the GPU and each kernel launch.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from stepscope.collectors.host.files import Files, HostReadings, Unread
from stepscope.collectors.host.machine import cpu_list, parse_cpu_list
from stepscope.core.metrics.gpu import GPU
from stepscope.core.metrics.host import HOST, PROCESS
from stepscope.core.metrics.readings import Collection, MissingReason


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


_PCI_ADDRESS = re.compile(r"([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7])", re.ASCII)
_NUMA_NODE = HOST + "gpu_numa_node"


def sysfs_address(pci_bus_id: str) -> str | None:
    """The name under /sys/bus/pci/devices of what NVML calls 00000000:0F:00.0; None where it is no address."""
    match = _PCI_ADDRESS.fullmatch(pci_bus_id)
    return f"{int(match[1], 16):04x}:{match[2].lower()}" if match else None


def local_cpus(files: Files, place: GpuPlace) -> frozenset[int] | Unread:
    """CPUs next to a GPU."""
    address = sysfs_address(place.pci_bus_id)
    if address is None:
        return Unread(MissingReason.NOT_SUPPORTED, f"{place.pci_bus_id!r} is no PCI address")
    path = f"sys/bus/pci/devices/{address}/local_cpulist"
    text = files.read(path)
    if isinstance(text, Unread):
        return text
    cpus = parse_cpu_list(text)
    return cpus or Unread(MissingReason.UNREADABLE, f"/{path}: {text.strip()[:40]!r} names no CPUs")


def read_gpu_node(files: Files, into: HostReadings, place: GpuPlace) -> None:
    """Read the NUMA node of a GPU."""
    labels = {"uuid": place.uuid, "pci_bus_id": place.pci_bus_id}
    address = sysfs_address(place.pci_bus_id)
    if address is None:
        why = Unread(MissingReason.NOT_SUPPORTED, f"{place.pci_bus_id!r} is no PCI address")
        into.miss([_NUMA_NODE], why, **labels)
        return
    path = f"sys/bus/pci/devices/{address}/numa_node"
    text = files.read(path)
    if isinstance(text, Unread):
        into.miss([_NUMA_NODE], text, **labels)
    elif text.strip().isdecimal():
        into.add(_NUMA_NODE, int(text), **labels)
    else:  # -1
        into.miss([_NUMA_NODE], Unread(MissingReason.NOT_SUPPORTED, f"/{path}: the firmware tells no node"), **labels)


def read_affinity(files: Files, into: HostReadings, pid: int, status: dict[str, str], places: list[GpuPlace]) -> None:
    """Hold the CPUs of a process against those next to its GPUs.

    Args:
        files: of the machine.
        into: where it goes.
        pid: of the process.
        status: fields of its /proc/<pid>/status.
        places: of its GPUs.
    """
    metric = PROCESS + "gpu_local_cpus"
    allowed = parse_cpu_list(status.get("Cpus_allowed_list", ""))
    if not allowed:
        into.miss_line(PROCESS + "allowed_cpus", f"proc/{pid}/status", "Cpus_allowed_list", pid=pid)
        return
    into.add(PROCESS + "allowed_cpus", len(allowed), pid=pid)
    if len(allowed) == 1:
        message = f"process {pid} may run on CPU {cpu_list(allowed)} only: its loader's and autograd's threads share it"
        into.note("single_cpu", message, pid=pid)
    for place in places:
        local = local_cpus(files, place)
        if isinstance(local, Unread):
            into.miss([metric], local, pid=pid, uuid=place.uuid)
            continue
        near = allowed & local
        into.add(metric, len(near), pid=pid, uuid=place.uuid)
        if not near:
            message = (
                f"process {pid} may run on CPUs {cpu_list(allowed)}, none of which is next to its GPU "
                f"({place.pci_bus_id}): bind it to CPUs {cpu_list(local)}"
            )
            into.note("remote_affinity", message, pid=pid, uuid=place.uuid)


_NVIDIA, _DISPLAY_CLASSES = "0x10de", ("0x0300", "0x0302")
_PCI_FOLDER = "sys/bus/pci/devices"


def count_gpus_on_bus(files: Files) -> int:
    """Their number; 0 where the bus cannot be looked at."""
    names = files.names(_PCI_FOLDER)
    return sum(
        _attribute(files, name, "vendor").strip() == _NVIDIA
        and _attribute(files, name, "class").startswith(_DISPLAY_CLASSES)
        for name in ([] if isinstance(names, Unread) else names)
    )


def _attribute(files: Files, name: str, what: str) -> str:
    text = files.read(f"{_PCI_FOLDER}/{name}/{what}")
    return "" if isinstance(text, Unread) else text
