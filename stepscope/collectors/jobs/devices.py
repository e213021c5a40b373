"""Which GPUs and MIG instances are there, who holds them, and do kernels run there? From what GPU collectors saw.

What a process holds is its GPU's, or its instance's; a GPU that is split is no device itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from stepscope.core.gpu_metrics import GPU
from stepscope.core.jobs import device_of
from stepscope.core.readings import Collection, Labels

_ACTIVITY = tuple(GPU + name for name in ("utilization_ratio", "graphics_engine_active_ratio", "sm_active_ratio"))
_MEMORY, _SM_TIME = GPU + "process_memory_bytes", GPU + "process_sm_utilization_ratio"
_WORKS = frozenset({"compute", "mps"})
"""Of NVML's lists of processes. One that only draws has no job."""


@dataclass(slots=True)
class Holder:
    """A process that holds a device.

    Attributes:
        memory_bytes: None where the driver does not tell.
        sm_ratio: share of time in which its kernels ran lately; None where nothing is told of it.
        is_mps: whether it works through the multi-process service.
    """

    memory_bytes: float | None = None
    sm_ratio: float | None = None
    is_mps: bool = False


@dataclass(slots=True)
class Device:
    """A GPU or MIG instance.

    Attributes:
        labels: as its readings have them.
        gpu_uuid: of the whole GPU; empty where it is not known.
        gpu: NVML's index.
        minor: number of its file in /dev; empty where it is not known.
        answers: whether it does.
        activity: share of time in which kernels ran there, the highest that any counter tells; None where none does.
        memory_ratio: used share of its memory.
        holders: processes by id.
        workloads: who has it by dcgm-exporter, labels of `stepscope_gpu_workload_info`.
    """

    labels: Labels
    gpu_uuid: str = ""
    gpu: str = ""
    minor: str = ""
    answers: bool = True
    activity: float | None = None
    memory_ratio: float | None = None
    holders: dict[int, Holder] = field(default_factory=dict)
    workloads: list[dict[str, str]] = field(default_factory=list)

    @property
    def uuid(self) -> str:
        """Of the GPU, or of the MIG instance where it has one."""
        return dict(self.labels).get("uuid", "")

    @property
    def gpu_instance(self) -> str:
        """NVML's id; empty of a whole GPU."""
        return dict(self.labels).get("gpu_instance", "")

    @property
    def mig_profile(self) -> str:
        """ "1g.10gb"; empty of a whole GPU, and where it is not known."""
        return dict(self.labels).get("mig_profile", "")


_Place = tuple[str, str]
"""NVML's index and GPU instance."""


def devices_of(collections: Iterable[Collection]) -> list[Device]:
    """All devices, in the order of their index.

    Args:
        collections: of the sources of GPUs. The first that tells of a device names it; the others add to it.
    """
    found: dict[_Place, Device] = {}
    facts: dict[str, dict[str, str]] = {}
    split: set[str] = set()
    used: dict[_Place, dict[str, float]] = {}
    for collection in collections:
        _find(collection, found, facts, split)
        _fill(collection, found, used)
    for (gpu, instance), device in found.items():
        device.gpu, device.gpu_uuid = gpu, facts.get(gpu, {}).get("uuid", "")
        device.minor = facts.get(gpu, {}).get("minor_number", "")
        whole = found.get((gpu, ""))
        device.answers = device.answers and (whole is None or whole.answers)
        memory = used.get((gpu, instance), {})
        if memory.get("total"):
            device.memory_ratio = memory.get("used", 0.0) / memory["total"]
    whole_gpus = split | {gpu for gpu, instance in found if instance}
    kept = {place: device for place, device in found.items() if place[1] or place[0] not in whole_gpus}
    return [kept[place] for place in sorted(kept, key=_order)]


def _find(
    collection: Collection, found: dict[_Place, Device], facts: dict[str, dict[str, str]], split: set[str]
) -> None:
    """Which devices there are."""
    here: dict[_Place, Device] = {}
    for reading in collection.readings:
        if not reading.metric.startswith(GPU):
            continue
        labels = dict(reading.labels)
        gpu, instance = labels.get("gpu", ""), labels.get("gpu_instance", "")
        if not gpu:
            continue
        if not instance and labels.get("uuid"):
            facts.setdefault(gpu, {}).setdefault("uuid", labels["uuid"])
        if reading.metric == GPU + "info":
            facts.setdefault(gpu, {}).setdefault("minor_number", labels.get("minor_number", ""))
        elif reading.metric == GPU + "mig_enabled" and reading.value:
            split.add(gpu)
        elif reading.metric == GPU + "up":
            here.setdefault((gpu, ""), Device(device_of(reading.labels))).answers = reading.value > 0
        elif instance and "pid" not in labels:
            here.setdefault((gpu, instance), Device(device_of(reading.labels)))
    for place, device in here.items():
        found.setdefault(place, device)


def _fill(collection: Collection, found: dict[_Place, Device], used: dict[_Place, dict[str, float]]) -> None:
    """What is told of them."""
    for reading in collection.readings:
        metric = reading.metric
        if not metric.startswith(GPU):
            continue
        labels = dict(reading.labels)
        place = labels.get("gpu", ""), labels.get("gpu_instance", "")
        device = found.get(place)
        if device is None:
            continue
        if metric in _ACTIVITY:
            device.activity = max(reading.value, device.activity or 0.0)
        elif metric == _MEMORY:
            if _WORKS & set(labels.get("kind", "").split("+")):
                holder = _holder(device, labels)
                holder.memory_bytes = reading.value
        elif metric == _SM_TIME:
            _sm_time(found, place[0], labels, reading.value)
        elif metric == GPU + "memory_used_bytes":
            used.setdefault(place, {}).setdefault("used", reading.value)
        elif metric == GPU + "memory_total_bytes":
            used.setdefault(place, {}).setdefault("total", reading.value)
        elif metric == GPU + "workload_info":
            device.workloads.append(labels)
    for missing in collection.missing:  # a process whose memory is not told holds the device all the same
        labels = dict(missing.labels)
        device = found.get((labels.get("gpu", ""), labels.get("gpu_instance", "")))
        if missing.metric == _MEMORY and device is not None and _WORKS & set(labels.get("kind", "").split("+")):
            _holder(device, labels)


def _holder(device: Device, labels: dict[str, str]) -> Holder:
    holder = device.holders.setdefault(int(labels["pid"]), Holder())
    holder.is_mps |= "mps" in labels.get("kind", "").split("+")
    return holder


def _sm_time(found: dict[_Place, Device], gpu: str, labels: dict[str, str], value: float) -> None:
    """NVML does not say in which instance a process's kernels ran: it is the one that the process holds."""
    pid = int(labels["pid"])
    for (other, _), device in found.items():
        if other == gpu and pid in device.holders:
            device.holders[pid].sm_ratio = value


def _order(place: _Place) -> tuple[int, int]:
    return tuple(int(word) if word.isdecimal() else -1 for word in place)  # type: ignore[return-value]
