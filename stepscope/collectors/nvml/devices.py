"""Devices of NVML: the identity of a GPU (index, UUID, PCI address, name, versions), and its MIG instances.

Memory and counters belong to a GPU instance; several compute instances in one share them, so they are reported once.
The whole GPU's utilization is not available while MIG is on; that of the instances is (GPM).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from stepscope.collectors.nvml.binding import GpuReadings, GpuUnusableError, Handle, Nvml, reason_of_error, text
from stepscope.collectors.nvml.gpm import GpmSampler
from stepscope.collectors.nvml.queries import MEMORY, QueryTable
from stepscope.core.hardware.devices import cuda_version_text
from stepscope.core.metrics.readings import Collection, Labels, labels_of

_ARCHITECTURES = {
    2: "kepler",
    3: "maxwell",
    4: "pascal",
    5: "volta",
    6: "turing",
    7: "ampere",
    8: "ada",
    9: "hopper",
    10: "blackwell",
    13: "rubin",
}


@dataclass(frozen=True, slots=True)
class GpuIdentity:
    """Names of a GPU.

    Attributes:
        index: NVML's.
        uuid: "GPU-...", never changes.
        pci_bus_id: "00000000:0F:00.0".
        facts: labels of its info metric: name, architecture, serial, ...
    """

    index: int
    uuid: str
    pci_bus_id: str
    facts: Labels

    @property
    def labels(self) -> Labels:
        """Labels of all its readings."""
        return labels_of(gpu=self.index, uuid=self.uuid)


def identify(nvml: Nvml, handle: Handle, index: int) -> GpuIdentity:
    """Ask a GPU for its names.

    Raises:
        DriverUnusableError, GpuUnusableError: it does not answer, or has no UUID or PCI bus id.
    """
    try:
        uuid = text(nvml.nvmlDeviceGetUUID(handle))
        pci_bus_id = text(nvml.nvmlDeviceGetPciInfo_v3(handle).busId)
    except nvml.NVMLError as error:
        raise GpuUnusableError(*reason_of_error(nvml, error)) from error
    facts = {"pci_bus_id": pci_bus_id}
    for name, function in (
        ("name", "nvmlDeviceGetName"),
        ("architecture", "nvmlDeviceGetArchitecture"),
        ("minor_number", "nvmlDeviceGetMinorNumber"),
        ("serial", "nvmlDeviceGetSerial"),
        ("vbios", "nvmlDeviceGetVbiosVersion"),
    ):
        facts[name] = ""  # an empty label counts as absent
        try:
            answer = getattr(nvml, function)(handle)
        except Exception as error:
            reason_of_error(nvml, error)
            continue
        facts[name] = _ARCHITECTURES.get(answer, "unknown") if name == "architecture" else text(answer)
    facts["driver"], facts["cuda"] = system_versions(nvml)
    return GpuIdentity(index, uuid, pci_bus_id, labels_of(**facts))


def system_versions(nvml: Nvml) -> tuple[str, str]:
    """Version of the driver, and the newest CUDA version that it can run; empty where they are not reported."""
    texts = []
    for function in ("nvmlSystemGetDriverVersion", "nvmlSystemGetCudaDriverVersion_v2"):
        try:
            texts.append(text(getattr(nvml, function)()))
        except Exception as error:
            reason_of_error(nvml, error)
            texts.append("")
    driver, cuda = texts
    return driver, cuda_version_text(int(cuda)) if cuda else ""


@dataclass(frozen=True, slots=True)
class ComputeInstance:
    """One MIG device, as CUDA calls a compute instance.

    Attributes:
        handle: NVML's.
        uuid: "MIG-...".
        gpu_instance, compute_instance: NVML's ids.
        profile: "1g.10gb".
    """

    handle: Any
    uuid: str
    gpu_instance: int
    compute_instance: int
    profile: str


class _GpuInstance:
    """One GPU instance."""

    def __init__(self, nvml: Nvml, parent: Handle, identity: GpuIdentity, members: list[ComputeInstance]) -> None:
        first = members[0]
        self.key = _key_of(members)
        self.handle = first.handle
        if len(members) == 1:
            self.labels = labels_of(
                gpu=identity.index,
                uuid=first.uuid,
                gpu_instance=first.gpu_instance,
                compute_instance=first.compute_instance,
                mig_profile=first.profile,
            )
        else:
            self.labels = labels_of(gpu=identity.index, uuid=identity.uuid, gpu_instance=first.gpu_instance)
        self.gpm = GpmSampler(nvml, parent, first.gpu_instance)
        self.memory = QueryTable((MEMORY,))


class MigInstances:
    """GPU instances of one GPU.

    Attributes:
        is_on: whether MIG was on at the last `update`, though the GPU may have no instance.
    """

    def __init__(self, nvml: Nvml, handle: Handle, identity: GpuIdentity) -> None:
        self._nvml = nvml
        self._handle = handle
        self._identity = identity
        self._instances: list[_GpuInstance] = []
        self.is_on = False

    def update(self) -> None:
        """Find the instances again; known ones keep their GPM samples."""
        groups: dict[int, list[ComputeInstance]] = {}
        self.is_on, found = compute_instances(self._nvml, self._handle, was_on=self.is_on)
        for member in found:
            groups.setdefault(member.gpu_instance, []).append(member)
        known = {instance.key: instance for instance in self._instances}
        self._instances = []
        for members in groups.values():
            instance = known.pop(_key_of(members), None)
            self._instances.append(instance or _GpuInstance(self._nvml, self._handle, self._identity, members))
        for gone in known.values():
            gone.gpm.close()

    def read(self, time_ns: int) -> Collection:
        """Memory and GPM counters of all instances."""
        parts = []
        for instance in self._instances:
            into = GpuReadings(instance.labels, time_ns)
            instance.memory.read(self._nvml, instance.handle, into)
            instance.gpm.read(into)
            parts.append(into.collection())
        return Collection.joined(parts)


def compute_instances(nvml: Nvml, parent: Handle, *, was_on: bool = False) -> tuple[bool, list[ComputeInstance]]:
    """Whether MIG is on, though the GPU may have no instance, and its MIG devices.

    Args:
        was_on: result where the GPU does not report it.
    """
    is_on, members = was_on, []
    try:
        current, _ = nvml.nvmlDeviceGetMigMode(parent)
        is_on = bool(current)
        max_devices = nvml.nvmlDeviceGetMaxMigDeviceCount(parent) if current else 0
    except Exception as error:
        reason_of_error(nvml, error)
        return is_on, []
    for index in range(max_devices):
        try:
            handle = nvml.nvmlDeviceGetMigDeviceHandleByIndex(parent, index)
            name = text(nvml.nvmlDeviceGetName(handle))
            members.append(
                ComputeInstance(
                    handle,
                    text(nvml.nvmlDeviceGetUUID(handle)),
                    nvml.nvmlDeviceGetGpuInstanceId(handle),
                    nvml.nvmlDeviceGetComputeInstanceId(handle),
                    name.partition("MIG ")[2],
                )
            )
        except Exception as error:
            reason_of_error(nvml, error)  # there are gaps between the instances
    return is_on, members


def _key_of(members: list[ComputeInstance]) -> tuple[str, ...]:
    return tuple(member.uuid for member in members)
