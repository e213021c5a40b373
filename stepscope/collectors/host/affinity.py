"""May a training process run next to its GPU, or only on CPUs of another NUMA node?

Copies to and from the GPU, and each kernel's launch, cross the link between sockets otherwise.
"""

from __future__ import annotations

import re

from stepscope.collectors.host.cpu_sets import cpu_list, parse_cpu_list
from stepscope.collectors.host.files import Files, Unread
from stepscope.collectors.host.gathering import Gathering
from stepscope.collectors.host.gpu_users import GpuPlace
from stepscope.core.host_metrics import HOST, PROCESS
from stepscope.core.readings import MissingReason

_ADDRESS = re.compile(r"([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7])", re.ASCII)
_NODE = HOST + "gpu_numa_node"


def sysfs_address(pci_bus_id: str) -> str | None:
    """The name under /sys/bus/pci/devices of what NVML calls 00000000:0F:00.0; None where it is no address."""
    match = _ADDRESS.fullmatch(pci_bus_id)
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


def read_gpu_node(files: Files, into: Gathering, place: GpuPlace) -> None:
    """Read the NUMA node of a GPU."""
    labels = {"uuid": place.uuid, "pci_bus_id": place.pci_bus_id}
    address = sysfs_address(place.pci_bus_id)
    if address is None:
        why = Unread(MissingReason.NOT_SUPPORTED, f"{place.pci_bus_id!r} is no PCI address")
        into.miss([_NODE], why, **labels)
        return
    path = f"sys/bus/pci/devices/{address}/numa_node"
    text = files.read(path)
    if isinstance(text, Unread):
        into.miss([_NODE], text, **labels)
    elif text.strip().isdecimal():
        into.add(_NODE, int(text), **labels)
    else:  # -1
        into.miss([_NODE], Unread(MissingReason.NOT_SUPPORTED, f"/{path}: the firmware tells no node"), **labels)


def read_affinity(files: Files, into: Gathering, pid: int, status: dict[str, str], places: list[GpuPlace]) -> None:
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
