"""Processes as the kernel sees them, and GPUs on the PCI bus: their NUMA node, the processes that use them, affinity.

A training process that may only run on CPUs of another NUMA node than its GPU's pays for the link between sockets with
each copy to and from the GPU and each kernel launch.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from stepscope.collectors.host.files import Fields, Files, not_in_file
from stepscope.collectors.host.machine import parse_cpu_list
from stepscope.collectors.readings_builder import NoValue, ReadingsBuilder
from stepscope.core.metrics.readings import GPU, HOST, PROCESS, Collection, MissingReason, ReadingSelection
from stepscope.core.text.numbers import format_cpu_list

_SWITCHES = {"voluntary_ctxt_switches": "voluntary", "nonvoluntary_ctxt_switches": "involuntary"}
_IO = {"read_bytes": "read_bytes_total", "write_bytes": "written_bytes_total"}


@dataclass(frozen=True, slots=True)
class ProcessStat:
    """Content of /proc/<pid>/stat.

    Attributes:
        command: its name, at most 15 characters.
        user_ticks, system_ticks: CPU time of all its threads.
        start_ticks: when it began, since boot.
    """

    command: str
    parent: int
    group: int
    num_major_faults: int
    user_ticks: int
    system_ticks: int
    num_threads: int
    start_ticks: int


_STAT_FIELDS = (1, 2, 9, 11, 12, 17, 19)
"""Places of the numbers in /proc/<pid>/stat, counted from 0 behind the command."""


def parse_process_stat(text: str) -> ProcessStat | None:
    """Read /proc/<pid>/stat, None where it is something else. A command may hold blanks and brackets."""
    before, bracket, after = text.rpartition(")")
    words = after.split()
    _, opening, command = before.partition("(")
    if not bracket or not opening:
        return None
    try:
        return ProcessStat(command, *(int(words[field]) for field in _STAT_FIELDS))
    except (ValueError, IndexError):
        return None


def parse_fields(text: str) -> dict[str, str]:
    """Read /proc/<pid>/status or io: texts by name."""
    pairs = (line.partition(":") for line in text.splitlines())
    return {name.strip(): value.strip() for name, colon, value in pairs if colon}


def parse_run_delay(text: str) -> float | None:
    """Seconds that a thread waited for a CPU, of its schedstat; None where it is something else."""
    words = text.split()
    return int(words[1]) / 1_000_000_000 if len(words) == 3 and words[1].isascii() and words[1].isdecimal() else None


def read_process(
    files: Files, into: ReadingsBuilder, pid: int, *, ticks_per_second: float, cgroup: str
) -> dict[str, str] | None:
    """Read the metrics of one process of the host; its pid is that in the PID namespace of the files.

    Returns:
        Fields of /proc/<pid>/status, None where the process is not there.
    """
    stat = files.parse(f"proc/{pid}/stat", parse_process_stat)
    if stat is None or isinstance(stat, NoValue):
        detail = f"no process {pid} here: it ended, or is in another PID namespace (containers: hostPID)"
        into.add(PROCESS + "info", NoValue(MissingReason.GONE, detail), pid=pid)
        return None
    into.add(PROCESS + "info", 1, pid=pid, command=stat.command, cgroup=cgroup)
    into.add(PROCESS + "cpu_seconds_total", stat.user_ticks / ticks_per_second, pid=pid, mode="user")
    into.add(PROCESS + "cpu_seconds_total", stat.system_ticks / ticks_per_second, pid=pid, mode="system")
    into.add(PROCESS + "major_page_faults_total", stat.num_major_faults, pid=pid)
    into.add(PROCESS + "threads", stat.num_threads, pid=pid)
    path = f"proc/{pid}/schedstat"
    delay = files.parse(path, parse_run_delay)
    into.add(
        PROCESS + "run_queue_seconds_total", not_in_file(path, "three numbers") if delay is None else delay, pid=pid
    )
    io = files.fields(f"proc/{pid}/io", _parse_number_fields)
    for field, metric in _IO.items():
        into.add(PROCESS + metric, io[field], pid=pid)
    return _read_status(files, into, pid)


def _parse_number_fields(text: str) -> dict[str, int]:
    return {name: int(value) for name, value in parse_fields(text).items() if value.isdecimal()}


def _read_status(files: Files, into: ReadingsBuilder, pid: int) -> dict[str, str]:
    path = f"proc/{pid}/status"
    resident, switches = PROCESS + "resident_memory_bytes", PROCESS + "context_switches_total"
    text = files.read(path)
    if isinstance(text, NoValue):
        into.miss([resident, switches], text, pid=pid)
        return {}
    fields, numbers = parse_fields(text), Fields(path, _parse_number_fields(text))
    size = fields.get("VmRSS", "").removesuffix(" kB").strip()
    into.add(resident, int(size) * 1024 if size.isdecimal() else not_in_file(path, "VmRSS: it is ending"), pid=pid)
    for field, kind in _SWITCHES.items():
        into.add(switches, numbers[field], pid=pid, kind=kind)
    return fields


def process_state(pid: int, *, proc: Path = Path("/proc")) -> str:
    """State of a process of the host as the letter that ps shows (R, S, D, T, ...); empty when ended, or a zombie."""
    try:
        letter = (proc / str(pid) / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""
    return "" if letter in "ZX" else letter


@dataclass(frozen=True, slots=True)
class GpuPlace:
    """Place of a GPU on the host's PCI bus; its id as NVML writes it: "00000000:0F:00.0"."""

    uuid: str
    pci_bus_id: str


@dataclass(frozen=True, slots=True)
class GpuUsers:
    """The host's GPUs and their processes, by id."""

    places: tuple[GpuPlace, ...] = ()
    processes: tuple[tuple[int, tuple[GpuPlace, ...]], ...] = ()


_INFO, _OF_PROCESS = GPU + "info", GPU + "process_"


_GPUS = ReadingSelection(lambda metric, labels: (labels, metric) if metric == _INFO else None)
_PROCESSES = ReadingSelection(lambda metric, labels: (labels, metric) if metric.startswith(_OF_PROCESS) else None)


def gpu_users_of(collection: Collection) -> GpuUsers:
    """Host: the GPUs in a collection, and the host's processes on each; one on a MIG instance is one of its GPU."""
    by_index: dict[str, GpuPlace] = {}
    for pairs, _, _, _ in _GPUS.of(collection.readings):
        labels = dict(pairs)
        if labels.get("uuid") and labels.get("pci_bus_id"):
            by_index[labels.get("gpu", labels["uuid"])] = GpuPlace(labels["uuid"], labels["pci_bus_id"])
    processes: dict[int, list[GpuPlace]] = {}
    for pairs, _, _, _ in _PROCESSES.of(collection.readings):
        labels = dict(pairs)
        if not labels.get("pid", "").isdecimal():
            continue
        places = processes.setdefault(int(labels["pid"]), [])
        place = by_index.get(labels.get("gpu", labels.get("uuid", "")))
        if place is not None and place not in places:
            places.append(place)
    return GpuUsers(tuple(by_index.values()), tuple((pid, tuple(places)) for pid, places in sorted(processes.items())))


_PCI_ADDRESS = re.compile(r"([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7])", re.ASCII)
_PCI_FOLDER = "sys/bus/pci/devices"


def sysfs_address(pci_bus_id: str) -> str | None:
    """Name in the host's /sys/bus/pci/devices of NVML's 00000000:0F:00.0; None where that is not an address."""
    match = _PCI_ADDRESS.fullmatch(pci_bus_id)
    return f"{int(match[1], 16):04x}:{match[2].lower()}" if match else None


def local_cpus(files: Files, place: GpuPlace) -> frozenset[int] | NoValue:
    """CPUs of the host next to a GPU."""
    path = _attribute_path(place, "local_cpulist")
    text = path if isinstance(path, NoValue) else files.read(path)
    if isinstance(text, NoValue):
        return text
    cpus = parse_cpu_list(text)
    return cpus or NoValue(MissingReason.UNREADABLE, f"/{path}: {text.strip()[:40]!r} names no CPUs")


def read_gpu_node(files: Files, into: ReadingsBuilder, place: GpuPlace) -> None:
    """Read the NUMA node of a GPU of the host."""
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
    """Number of NVIDIA GPUs on the host's PCI bus; 0 where it cannot be read."""
    names = files.names(_PCI_FOLDER)
    return sum(
        _attribute(files, name, "vendor").strip() == _NVIDIA
        and _attribute(files, name, "class").startswith(_DISPLAY_CLASSES)
        for name in ([] if isinstance(names, NoValue) else names)
    )


def _attribute(files: Files, name: str, what: str) -> str:
    text = files.read(f"{_PCI_FOLDER}/{name}/{what}")
    return "" if isinstance(text, NoValue) else text
