"""Devices of NVML: identity of a GPU (index, UUID, PCI address, versions), its MIG instances, and GPM counters.

Memory and counters belong to a GPU instance; several compute instances in one share them, so they are reported once.
The whole GPU's utilization is not available while MIG is on; that of the instances is.

GPU Performance Monitoring (GPM) shows how busy the parts of a Hopper or newer GPU are, also while a profiler runs. A
value is the average between two samples. NVML gives percentages where DCGM gives ratios, MiB/s where DCGM gives
bytes/s, and received before transmitted for NVLink alone (60 and 61), transmitted before received for PCIe (20, 21).
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from stepscope.collectors.nvml import binding
from stepscope.collectors.nvml.library import gpm_request
from stepscope.collectors.nvml.queries import MEMORY, QueryTable
from stepscope.collectors.readings_builder import NoValue
from stepscope.core.hardware.devices import cuda_version_text
from stepscope.core.metrics.readings import Collection, Labels, MissingReason, labels_of

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
    """Names of a GPU by NVML.

    Attributes:
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
        return labels_of(gpu=self.index, uuid=self.uuid)


def identify_gpu(nvml: binding.Nvml, handle: binding.Handle, index: int) -> GpuIdentity:
    """Ask NVML for the names of a GPU.

    Raises:
        DriverUnusableError, GpuUnusableError: it does not answer, or has no UUID or PCI bus id.
    """
    try:
        uuid = binding.nvml_text(nvml.nvmlDeviceGetUUID(handle))
        pci_bus_id = binding.nvml_text(nvml.nvmlDeviceGetPciInfo_v3(handle).busId)
    except nvml.NVMLError as error:
        raise binding.GpuUnusableError(*binding.nvml_reason_of_error(nvml, error)) from error
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
            binding.nvml_reason_of_error(nvml, error)
            continue
        facts[name] = _ARCHITECTURES.get(answer, "unknown") if name == "architecture" else binding.nvml_text(answer)
    facts["driver"], facts["cuda"] = system_versions(nvml)
    return GpuIdentity(index, uuid, pci_bus_id, labels_of(**facts))


def system_versions(nvml: binding.Nvml) -> tuple[str, str]:
    """NVML's version of the driver, and the newest CUDA version that it can run; empty where they are not reported."""
    texts = []
    for function in ("nvmlSystemGetDriverVersion", "nvmlSystemGetCudaDriverVersion_v2"):
        try:
            texts.append(binding.nvml_text(getattr(nvml, function)()))
        except Exception as error:
            binding.nvml_reason_of_error(nvml, error)
            texts.append("")
    driver, cuda = texts
    return driver, cuda_version_text(int(cuda)) if cuda else ""


@dataclass(frozen=True, slots=True)
class ComputeInstance:
    """One MIG device of NVML, as CUDA calls a compute instance.

    Attributes:
        uuid: "MIG-...".
        profile: "1g.10gb".
    """

    handle: Any
    uuid: str
    gpu_instance: int
    compute_instance: int
    profile: str


class _GpuInstance:
    """One GPU instance."""

    def __init__(
        self, nvml: binding.Nvml, parent: binding.Handle, identity: GpuIdentity, members: list[ComputeInstance]
    ) -> None:
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
    """GPU instances (MIG) of one GPU, read through NVML.

    Attributes:
        is_on: whether MIG was on at the last `update`, though the GPU may have no instance.
    """

    def __init__(self, nvml: binding.Nvml, handle: binding.Handle, identity: GpuIdentity) -> None:
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
        parts = []
        for instance in self._instances:
            into = binding.GpuReadings(instance.labels, time_ns)
            instance.memory.read(self._nvml, instance.handle, into)
            instance.gpm.read(into)
            parts.append(into.collection())
        return Collection.joined(parts)


def compute_instances(
    nvml: binding.Nvml, parent: binding.Handle, *, was_on: bool = False
) -> tuple[bool, list[ComputeInstance]]:
    """Whether NVML says that MIG is on, though the GPU may have no instance, and its MIG devices.

    Args:
        was_on: result where the GPU does not report it.
    """
    is_on, members = was_on, []
    try:
        current, _ = nvml.nvmlDeviceGetMigMode(parent)
        is_on = bool(current)
        max_devices = nvml.nvmlDeviceGetMaxMigDeviceCount(parent) if current else 0
    except Exception as error:
        binding.nvml_reason_of_error(nvml, error)
        return is_on, []
    for index in range(max_devices):
        try:
            handle = nvml.nvmlDeviceGetMigDeviceHandleByIndex(parent, index)
            name = binding.nvml_text(nvml.nvmlDeviceGetName(handle))
            members.append(
                ComputeInstance(
                    handle,
                    binding.nvml_text(nvml.nvmlDeviceGetUUID(handle)),
                    nvml.nvmlDeviceGetGpuInstanceId(handle),
                    nvml.nvmlDeviceGetComputeInstanceId(handle),
                    name.partition("MIG ")[2],
                )
            )
        except Exception as error:
            binding.nvml_reason_of_error(nvml, error)  # there are gaps between the instances
    return is_on, members


def _key_of(members: list[ComputeInstance]) -> tuple[str, ...]:
    return tuple(member.uuid for member in members)


_PERCENT, _MIB = 0.01, 1048576.0

GPM_METRICS: tuple[tuple[int, str, float], ...] = (
    (1, "graphics_engine_active_ratio", _PERCENT),
    (2, "sm_active_ratio", _PERCENT),
    (3, "sm_occupancy_ratio", _PERCENT),
    (4, "integer_active_ratio", _PERCENT),
    (5, "tensor_active_ratio", _PERCENT),
    (6, "tensor_dfma_active_ratio", _PERCENT),
    (7, "tensor_hmma_active_ratio", _PERCENT),
    (9, "tensor_imma_active_ratio", _PERCENT),
    (10, "dram_active_ratio", _PERCENT),
    (11, "fp64_active_ratio", _PERCENT),
    (12, "fp32_active_ratio", _PERCENT),
    (13, "fp16_active_ratio", _PERCENT),
    (20, "pcie_transmit_bytes_per_second", _MIB),
    (21, "pcie_receive_bytes_per_second", _MIB),
    (60, "nvlink_receive_bytes_per_second", _MIB),
    (61, "nvlink_transmit_bytes_per_second", _MIB),
)
"""NVML's id, our name, scale to base units."""
_METRIC_NAMES = tuple(name for _, name, _ in GPM_METRICS)

_MIN_INTERVAL_SECONDS = 0.1
"""Samples closer than this are not compared: the counters update every few ms, so the values would be coarse."""

_NO_GPM = "this GPU has no GPM counters (Hopper and newer do); DCGM's profiling module may have them"
_NEEDS_TWO_SAMPLES = NoValue(MissingReason.NOT_YET, "it takes two samples")


class GpmSampler:
    """Averages of NVML's GPM counters of a GPU or MIG instance between two samples."""

    def __init__(self, nvml: binding.Nvml, handle: binding.Handle, gpu_instance: int | None = None) -> None:
        """`handle` is the whole GPU's, also for a MIG instance."""
        self._nvml = nvml
        self._handle = handle
        self._gpu_instance = gpu_instance
        self._wanted = list(GPM_METRICS)
        self._unsupported: list[str] = []
        self._why_not = self._support()
        self._samples: list[Any] = []
        self._taken: list[float] = []
        self._request: Any = None

    def _support(self) -> NoValue | None:
        try:
            supported = self._nvml.nvmlGpmQueryDeviceSupport(self._handle).isSupportedDevice
        except Exception as error:
            reason, detail = binding.nvml_reason_of_error(self._nvml, error)
            return NoValue(reason, detail or _NO_GPM)
        return None if supported else NoValue(MissingReason.NOT_SUPPORTED, _NO_GPM)

    def read(self, into: binding.GpuReadings) -> None:
        """Take a sample and add the averages since the last one."""
        if self._why_not is not None:
            into.miss(_METRIC_NAMES, self._why_not)
            return
        try:
            if not self._sample():
                into.miss(_METRIC_NAMES, _NEEDS_TWO_SAMPLES)
                return
            if self._request is None:  # 19 KB, allocated once
                self._request = gpm_request([number for number, _, _ in self._wanted])
            self._request.sample1, self._request.sample2 = self._samples
            request = self._request
            self._nvml.nvmlGpmMetricsGet(request)
        except Exception as error:
            into.miss(_METRIC_NAMES, binding.nvml_reason_of_error(self._nvml, error))
            return
        self._add_metrics(request, into)

    def _sample(self) -> bool:
        """Take a sample; whether there are now two, far enough apart."""
        now = time.monotonic()
        if not self._samples:
            self._samples = [self._nvml.nvmlGpmSampleAlloc() for _ in range(2)]
        if len(self._taken) == 2 and now - self._taken[1] >= _MIN_INTERVAL_SECONDS:
            self._samples.reverse()
            self._taken.pop(0)
        if len(self._taken) == 2:
            self._taken.pop()  # too close to the first to be compared later: taken again
        newest = self._samples[len(self._taken)]
        if self._gpu_instance is None:
            self._nvml.nvmlGpmSampleGet(self._handle, newest)
        else:
            self._nvml.nvmlGpmMigSampleGet(self._handle, self._gpu_instance, newest)
        self._taken.append(now)
        return len(self._taken) == 2 and self._taken[1] - self._taken[0] >= _MIN_INTERVAL_SECONDS

    def _add_metrics(self, request: Any, into: binding.GpuReadings) -> None:
        dropped = []
        for (code, value), entry in zip(request.values(), self._wanted, strict=True):
            _, name, scale = entry
            if code == 0:
                into.add_raw(name, value, scale)
            elif code == binding.NOT_SUPPORTED:
                dropped.append(entry)
            else:
                into.add(name, binding.nvml_reason_of_code(code))
        if dropped:
            self._wanted = [entry for entry in self._wanted if entry not in dropped]
            self._unsupported += [name for _, name, _ in dropped]
            self._request = None
        into.miss(self._unsupported, NoValue(MissingReason.NOT_SUPPORTED))

    def close(self) -> None:
        """Free the samples. Never called for a GPU that hangs: its process ends."""
        for sample in self._samples:
            self._nvml.nvmlGpmSampleFree(sample)
        self._samples, self._taken = [], []
