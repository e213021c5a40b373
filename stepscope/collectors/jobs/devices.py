"""GPUs and MIG instances with the processes that hold them, and lookup of a device by a scheduler's name for it.

A GPU that is split into MIG instances is not a device itself. Slurm, CUDA, the kubelet and device plugins name devices
differently, and a number is ambiguous: Slurm's and those of device files are minor numbers, NVML's index has another
order on some machines (PrincetonUniversity/jobstats#34), and CUDA's are relative to what a process may see.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from stepscope.core.hardware.devices import OLD_MIG_UUID, Device, DeviceJoin, device_in, device_of
from stepscope.core.metrics.readings import GPU, Collection, Labels, Reading, ReadingSelection

_ACTIVITY = tuple(GPU + name for name in ("utilization_ratio", "graphics_engine_active_ratio", "sm_active_ratio"))
_PROCESS_MEMORY, _PROCESS_SM_TIME = GPU + "process_memory_bytes", GPU + "process_sm_utilization_ratio"
_UP, _INFO, _MIG_ENABLED, _WORKLOAD = (GPU + name for name in ("up", "info", "mig_enabled", "workload_info"))
_USED, _TOTAL = GPU + "memory_used_bytes", GPU + "memory_total_bytes"
_READ = frozenset({*_ACTIVITY, _PROCESS_MEMORY, _PROCESS_SM_TIME, _UP, _INFO, _MIG_ENABLED, _WORKLOAD, _USED, _TOTAL})
_WORKING_KINDS = frozenset({"compute", "mps"})
"""Of NVML's lists of processes. Graphics processes have no job."""


@dataclass(slots=True)
class DeviceHolder:
    """A process that holds a GPU or MIG instance.

    Attributes:
        memory_bytes: None if the driver does not report it.
        sm_ratio: share of time in which its kernels ran lately; None if not known.
        is_mps: it runs through the multi-process service.
    """

    memory_bytes: float | None = None
    sm_ratio: float | None = None
    is_mps: bool = False


@dataclass(slots=True)
class DeviceUsage:
    """A GPU or MIG instance, with the processes that hold it and its activity.

    Attributes:
        gpu_uuid: of the whole GPU; its index without one.
        minor: minor number of its file in /dev; empty if not known.
        activity: share of time in which kernels ran there, the highest of all counters; None without one.
        memory_ratio: used share of its memory; None if not known.
        workloads: jobs and pods by dcgm-exporter, labels of `stepscope_gpu_workload_info`.
    """

    device: Device
    gpu_uuid: str
    minor: str = ""
    answers: bool = True
    activity: float | None = None
    memory_ratio: float | None = None
    holders: dict[int, DeviceHolder] = field(default_factory=dict)
    workloads: list[dict[str, str]] = field(default_factory=list)


def device_usages_of(collections: Iterable[Collection]) -> list[DeviceUsage]:
    """Collector of jobs: all GPUs and MIG instances with the processes that hold them, in the order of their index.

    Args:
        collections: of the sources of GPUs. The first that reports a device names it; the others add to it.
    """
    survey = _Survey()
    for collection in collections:
        survey.add(collection)
    return survey.devices()


def _labels_and_metric(metric: str, labels: Labels) -> tuple[Labels, str] | None:
    is_used = metric in _READ or ((named := device_of(labels)) is not None and named.instance)
    return (labels, metric) if is_used else None


_USED_HERE = ReadingSelection(_labels_and_metric)


class _Survey:
    """Devices found in the sources so far; GPUs by `DeviceJoin.gpu_of`."""

    def __init__(self) -> None:
        self._join = DeviceJoin()
        self._found: dict[Device, DeviceUsage] = {}
        self._minors: dict[str, str] = {}
        self._split: set[str] = set()
        self._memory: dict[tuple[Device, str], float] = {}

    def add(self, collection: Collection) -> None:
        """Add one source: first its devices, then the processes that hold them."""
        first = self._join.source(collection)
        by_labels: dict[Labels, list[Reading]] = {}
        for whose, metrics, values, time_ns in _USED_HERE.of(collection.readings):
            by_labels.setdefault(whose, []).extend(
                [Reading(metric, value, whose, time_ns) for metric, value in zip(metrics, values, strict=True)]
            )
        of_devices, of_processes = [], []
        for pairs, readings in by_labels.items():
            labels = dict(pairs)
            if "pid" in labels:
                of_processes += [(reading, labels) for reading in readings]
            elif labels.get("gpu"):
                device = first(device_in(labels))
                of_devices.append((device, readings, labels))
        for device, readings, labels in of_devices:
            self._find(device, readings, labels)
        for missing in collection.missing:  # a process whose memory is not known holds the device all the same
            if missing.metric == _PROCESS_MEMORY:
                labels = dict(missing.labels)
                self._hold(first(device_in(labels)), labels, None)
        for reading, labels in of_processes:
            if reading.metric == _PROCESS_MEMORY:
                self._hold(first(device_in(labels)), labels, reading.value)
        for reading, labels in of_processes:
            if reading.metric == _PROCESS_SM_TIME:
                self._ran(self._join.gpu_of(first(device_in(labels))), int(labels["pid"]), reading.value)
        for device, readings, labels in of_devices:
            if (usage := self._found.get(device)) is not None:
                self._fill(usage, readings, labels)

    def _find(self, device: Device, readings: Sequence[Reading], labels: Mapping[str, str]) -> None:
        gpu = self._join.gpu_of(device)
        for reading in readings:
            if reading.metric == _INFO:
                self._minors.setdefault(gpu, labels.get("minor_number", ""))
            elif reading.metric == _MIG_ENABLED and reading.value:
                self._split.add(gpu)
            elif reading.metric == _UP:
                self._found.setdefault(device, DeviceUsage(device, gpu, answers=reading.value > 0))
        if device.instance:
            self._found.setdefault(device, DeviceUsage(device, gpu))
            self._split.add(gpu)

    def _hold(self, device: Device, labels: Mapping[str, str], memory_bytes: float | None) -> None:
        kinds = set(labels.get("kind", "").split("+"))
        usage = self._found.get(device)
        if usage is not None and kinds & _WORKING_KINDS:
            holder = usage.holders.setdefault(int(labels["pid"]), DeviceHolder())
            holder.is_mps |= "mps" in kinds
            holder.memory_bytes = memory_bytes

    def _ran(self, gpu: str, pid: int, ratio: float) -> None:
        """NVML does not report the instance in which a process's kernels ran: it is the one that the process holds."""
        for usage in self._found.values():
            if usage.gpu_uuid == gpu and pid in usage.holders:
                usage.holders[pid].sm_ratio = ratio

    def _fill(self, usage: DeviceUsage, readings: Sequence[Reading], labels: dict[str, str]) -> None:
        for reading in readings:
            if reading.metric in _ACTIVITY:
                usage.activity = max(reading.value, usage.activity or 0.0)
            elif reading.metric in (_USED, _TOTAL):
                self._memory.setdefault((usage.device, reading.metric), reading.value)
            elif reading.metric == _WORKLOAD:
                usage.workloads.append(labels)

    def devices(self) -> list[DeviceUsage]:
        """All but the GPUs that are split."""
        for device, usage in self._found.items():
            whole = self._found.get(self._join.whole(device) or device, usage)
            usage.minor = self._minors.get(usage.gpu_uuid, "")
            usage.answers = usage.answers and whole.answers
            used, total = self._memory.get((device, _USED)), self._memory.get((device, _TOTAL))
            usage.memory_ratio = used / total if used is not None and total else None
        kept = [one for one in self._found.values() if one.device.instance or one.gpu_uuid not in self._split]
        return sorted(kept, key=lambda one: (_sort_number(one.device.index), _sort_number(one.device.instance)))


def _sort_number(word: str) -> int:
    return int(word) if word.isdecimal() else -1


_SHARE_SUFFIX = re.compile(r"::\d+$")
"""Suffix of NVIDIA's device plugin for a shared device."""
_GKE_NAME = re.compile(r"nvidia(\d+)(?:/gi(\d+))?(/vgpu\d+)?")
_DRA_GPU_NAME = re.compile(r"gpu-(\d+)")
_NUMBER_RANGE = re.compile(r"(\d{1,3})(?:-(\d{1,3}))?", re.ASCII)


def find_by_uuid(devices: Sequence[DeviceUsage], name: str) -> DeviceUsage | None:
    """The device of a UUID as jobs have it: "GPU-...", also its beginning, as CUDA allows; "MIG-...", old ones too."""
    old = OLD_MIG_UUID.fullmatch(name)
    if old:
        return next((one for one in devices if one.gpu_uuid == old[1] and one.device.instance == old[2]), None)
    if not name.startswith(("GPU-", "MIG-")) or len(name) <= len("GPU-"):
        return None
    exact = next((one for one in devices if one.device.uuid == name), None)
    if exact is not None:
        return exact
    like = [one for one in devices if one.device.uuid.startswith(name)]
    return like[0] if len(like) == 1 else None


def find_by_minor(devices: Sequence[DeviceUsage], number: str) -> DeviceUsage | None:
    """The GPU that a scheduler's minor number names; None if it is split: the number does not name an instance."""
    return _single(one for one in devices if one.minor == number and not one.device.instance)


def find_by_number(devices: Sequence[DeviceUsage], number: str) -> DeviceUsage | None:
    """The GPU that a scheduler's number names, where minor number and NVML's index mean the same one."""
    device = find_by_minor(devices, number)
    return device if device is not None and device.device.index == number else None


def parse_device_list(text: str) -> list[str]:
    """Numbers and other names of Slurm's "0,2-3,GPU-..."; none of "NoDevFiles", its word for no device files."""
    names: list[str] = []
    for word in text.split(","):
        match = _NUMBER_RANGE.fullmatch(word.strip())
        if match is not None:
            names += map(str, range(int(match[1]), int(match[2] or match[1]) + 1))
        elif word.strip() and word.strip() != "NoDevFiles":
            names.append(word.strip())
    return names


def is_gpu_name(name: str) -> bool:
    """Whether a name is one of NVIDIA's or GKE's Kubernetes device plugin for a GPU or an instance."""
    return name.startswith(("GPU-", "MIG-")) or _GKE_NAME.fullmatch(name) is not None


def devices_visible_to_cuda(devices: Sequence[DeviceUsage], text: str) -> list[DeviceUsage]:
    """Devices that CUDA_VISIBLE_DEVICES names by UUID, as Slurm 25.11 sets it (SlinkyProject/slurm-operator#112).

    Numbers there count the devices visible to the process in CUDA's order: they name no device of the machine.
    """
    return [device for name in text.split(",") if (device := find_by_uuid(devices, name.strip())) is not None]


def plugin_device(devices: Sequence[DeviceUsage], name: str) -> tuple[DeviceUsage | None, bool]:
    """The device of a Kubernetes device plugin's name, and whether the plugin gave a share of it.

    NVIDIA's own: UUIDs, with "::0" behind shares. GKE's: "nvidia0", "nvidia0/gi1", "nvidia0/vgpu2".
    """
    gke = _GKE_NAME.fullmatch(name)
    if gke:
        minor, instance, share = gke[1], gke[2] or "", bool(gke[3])
        return _single(one for one in devices if one.minor == minor and one.device.instance == instance), share
    bare = _SHARE_SUFFIX.sub("", name)
    return find_by_uuid(devices, bare), bare != name


def dra_device(devices: Sequence[DeviceUsage], name: str) -> DeviceUsage | None:
    """The device of a name of NVIDIA's DRA driver (Kubernetes): "gpu-0" is a whole GPU, by minor number.

    Names of MIG instances ("gpu-0-mig-1g10gb-19-0") hold the requested place on the GPU, not an id: they are found if
    the GPU has a single instance of the profile.
    """
    whole = _DRA_GPU_NAME.fullmatch(name)
    if whole:
        return find_by_minor(devices, whole[1])
    gpu, mig, rest = name.partition("-mig-")
    number = _DRA_GPU_NAME.fullmatch(gpu)
    if not mig or not number:
        return None
    profile = rest.rsplit("-", 2)[0]
    return _single(
        one for one in devices if one.minor == number[1] and profile and one.device.profile.replace(".", "") == profile
    )


def _single(devices: Iterable[DeviceUsage]) -> DeviceUsage | None:
    found = list(devices)
    return found[0] if len(found) == 1 else None
