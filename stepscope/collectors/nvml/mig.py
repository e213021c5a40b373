"""MIG instances of a GPU: which there are, their memory and their GPM counters.

Memory and counters belong to a GPU instance; several compute instances in one share them, so they are reported once.
The whole GPU's utilization is not available while MIG is on; that of the instances is (GPM).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from stepscope.collectors.nvml.binding import Handle, Nvml, reason_of_error, text
from stepscope.collectors.nvml.gpm import GpmSampler
from stepscope.collectors.nvml.gpu_readings import GpuReadings
from stepscope.collectors.nvml.identity import GpuIdentity
from stepscope.collectors.nvml.queries import MEMORY, QueryTable
from stepscope.core.metrics.readings import Collection, labels_of


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
        self.key = tuple(members)
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
        known = {_identity_of(instance.key): instance for instance in self._instances}
        self._instances = []
        for members in groups.values():
            instance = known.pop(_identity_of(tuple(members)), None)
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


def _identity_of(members: tuple[ComputeInstance, ...]) -> tuple[str, ...]:
    return tuple(member.uuid for member in members)
