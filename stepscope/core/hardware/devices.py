"""Identity of a GPU or MIG instance, across sources that name it differently.

NVML names an instance by its own UUID; dcgm-exporter by the whole GPU's UUID and the instance's number beside it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from stepscope.core.metrics.readings import GPU, Collection, Labels, ReadingSelection

OLD_MIG_UUID = re.compile(r"MIG-(GPU-[0-9a-fA-F-]+)/(\d+)/(\d+)")
"""UUID of a MIG device in drivers before R470: UUID of its GPU, GPU instance, compute instance."""
_UP = GPU + "up"
_Place = tuple[str, str]
"""UUID of the whole GPU (its index without one), and the id of the GPU instance, empty of the whole GPU."""


@dataclass(frozen=True, slots=True, order=True)
class Device:
    """A GPU or MIG instance, as one source names it. What is not known, and what a whole GPU does not have, is empty.

    Attributes:
        uuid: of the GPU, or of the MIG instance where the source knows that; empty of a GPU that has hung since before
            it reported its UUID.
        index: NVML's index of the GPU.
        instance: NVML's id of the GPU instance.
        compute_instance: NVML's id of the compute instance in it.
        profile: of the MIG instance, "1g.10gb".
        pci_bus_id: only of a GPU of which nothing else is known: an error in the kernel log names no more.
    """

    uuid: str = ""
    index: str = ""
    instance: str = ""
    compute_instance: str = ""
    profile: str = ""
    pci_bus_id: str = ""

    @property
    def key(self) -> str:
        """Unique key on its machine: the UUID, else the index, else the place on the bus.

        A MIG instance that only a dcgm-exporter reports carries its GPU's UUID: its number is appended.
        """
        if self.instance and self.uuid.startswith("GPU-"):
            return f"{self.uuid}/{self.instance}"
        return self.uuid or (f"gpu {self.index}" if self.index else self.pci_bus_id)

    @property
    def name(self) -> str:
        """Short name for people: the GPU's index, followed by the ids of a MIG instance: "1/7/0"."""
        return "/".join(filter(None, (self.index, self.instance, self.compute_instance)))

    def __hash__(self) -> int:
        return hash(self.uuid or self.index)  # devices are keys a thousand times a second: texts know their hash

    def __str__(self) -> str:
        """Index and UUID for log lines: "GPU 0 (GPU-5f0c...)"."""
        return f"GPU {self.index or '?'}" + (f" ({self.uuid})" if self.uuid else "")

    def without_instance(self) -> Device:
        """The whole GPU, of an instance that is named by its GPU's UUID."""
        return Device(self.uuid, self.index, pci_bus_id=self.pci_bus_id)

    def labels(self) -> Labels:
        """Labels of its series, without the empty ones, sorted."""
        pairs = (
            ("compute_instance", self.compute_instance),
            ("gpu", self.index),
            ("gpu_instance", self.instance),
            ("mig_profile", self.profile),
            ("pci_bus_id", self.pci_bus_id),
            ("uuid", self.uuid),
        )
        return tuple([pair for pair in pairs if pair[1]])


def cuda_version_text(number: int) -> str:
    """Hardware identity: the CUDA version that a GPU's driver reports as a number, as text: "12.4" of 12040."""
    return f"{number // 1000}.{number % 1000 // 10}"


def device_in(labels: Mapping[str, str]) -> Device:
    """Hardware identity: the GPU or MIG instance that labels name; `Device()` where they name none."""
    uuid, index = labels.get("uuid", ""), labels.get("gpu", "")
    return Device(
        uuid,
        index,
        labels.get("gpu_instance", ""),
        labels.get("compute_instance", ""),
        labels.get("mig_profile", ""),
        "" if uuid or index else labels.get("pci_bus_id", ""),
    )


@lru_cache(maxsize=4096)  # the same labels come every second
def device_of(labels: Labels) -> Device | None:
    """Hardware identity: the GPU that a reading's labels name, None of others; of a process the whole GPU."""
    device = device_in(dict(labels))
    if not (device.uuid or device.index):
        return None
    return device.without_instance() if any(name == "pid" for name, _ in labels) else device


def _whole_gpu(metric: str, labels: Labels) -> tuple[Device, str] | None:
    """The whole GPU with a UUID that a reading says the state of."""
    gpu = device_of(labels) if metric == _UP else None
    return (gpu, metric) if gpu is not None and gpu.uuid and not gpu.instance else None


_ANSWERING = ReadingSelection(_whole_gpu)


class DeviceJoin:
    """Devices of all sources of one round, each named as the first source that reports it names it.

    The GPU instance of a whole GPU is the same device, whether a source names it by its own UUID or by its GPU's. A
    source's index counts within that source alone: each may number GPUs in its own way.
    """

    def __init__(self) -> None:
        self._by_place: dict[_Place, Device] = {}
        self._places: dict[Device, _Place] = {}

    def source(self, collection: Collection) -> Callable[[Device], Device]:
        """Lookup of the first name of one source's devices. Sources are added in the order of their trust."""
        uuids: dict[str, str] = {}
        for gpu, _, _, _ in _ANSWERING.of(collection.readings):
            uuids[gpu.index] = gpu.uuid
        names: dict[Device, Device] = {}

        def first(device: Device) -> Device:
            if device not in names:
                names[device] = device if device in self._places else self._first(device, uuids)
            return names[device]

        return first

    def gpu_of(self, device: Device) -> str:
        """UUID of the whole GPU that a device is, or is a part of; its index where it has none."""
        return self._places[device][0]

    def whole(self, device: Device) -> Device | None:
        """The whole GPU that a device is, or is a part of."""
        return self._by_place.get((self.gpu_of(device), ""))

    def _first(self, device: Device, uuids: Mapping[str, str]) -> Device:
        if device.instance and not device.uuid.startswith("GPU-"):
            place = uuids.get(device.index, device.index), device.instance
        else:
            place = device.uuid or device.index, device.instance
        first = self._by_place.setdefault(place, device)
        self._places.setdefault(first, place)
        return first
