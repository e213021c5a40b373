"""NVML collector: all GPUs of this machine, with a fast poll and a slow poll for each."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from stepscope.collectors.nvml import binding
from stepscope.collectors.nvml.devices import compute_instances, identify_gpu
from stepscope.collectors.nvml.gpu import NvmlGpu, PollPart, unusable_gpu_collection
from stepscope.collectors.readings_builder import NoValue
from stepscope.core.metrics.readings import Collection, Labels, Missing, labels_of

SLOW_POLL_SECONDS = 10.0
"""Interval of the slow poll, which costs the driver some ms. DCGM reads everything every 30 s."""


@dataclass(frozen=True, slots=True)
class GpuTarget:
    """A GPU to read through NVML.

    Attributes:
        key: its PCI bus id, which stays the same while other GPUs come and go; NVML's index does not.
    """

    key: str
    labels: Labels


@dataclass(frozen=True, slots=True)
class GpuNames:
    """Other names that NVML has of a GPU and its MIG devices.

    Attributes:
        minor: number of its file in /dev; empty where the driver does not report it.
        is_split: whether MIG is on, though it may have no instance.
        instances: UUID of each MIG device, and the id of the GPU instance that it is in.
    """

    minor: str
    is_split: bool
    instances: tuple[tuple[str, str], ...]


class NvmlCollector:
    """NVML's collector of all GPUs of this machine.

    NVML is initialised once: programs that did so at each reading hung after some hours (NVIDIA/go-nvml#152).
    """

    def __init__(
        self,
        *,
        slow_poll_seconds: float = SLOW_POLL_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        wall_clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._slow_poll_seconds = slow_poll_seconds
        self._clock = clock
        self._wall_clock_ns = wall_clock_ns
        self._nvml: binding.Nvml = None
        self._gpus: dict[str, NvmlGpu] = {}
        self._labels: dict[str, Labels] = {}
        self._handles: dict[int | None, Labels] = {}
        self._slow_poll_due: dict[str, float] = {}
        self._last: dict[str, dict[PollPart, Collection]] = {}

    def count(self) -> int:
        nvml = self._session()
        try:
            return int(nvml.nvmlDeviceGetCount())
        except Exception as error:
            raise binding.DriverUnusableError(*binding.nvml_reason_of_error(nvml, error)) from error

    def target(self, index: int) -> GpuTarget | Missing:
        """The GPU of this index, or why it cannot be identified."""
        nvml = self._session()
        try:
            identity = identify_gpu(nvml, self._ask(nvml.nvmlDeviceGetHandleByIndex, index), index)
        except binding.GpuUnusableError as error:
            return Missing("", labels_of(gpu=index), error.reason, error.detail)
        self._labels[identity.pci_bus_id] = identity.labels
        return GpuTarget(identity.pci_bus_id, identity.labels)

    def names(self, key: str) -> GpuNames:
        """Names of the GPU with the key of a `GpuTarget`, beside its index and UUID."""
        nvml = self._session()
        handle = self._ask(nvml.nvmlDeviceGetHandleByPciBusId, key.encode())
        facts = dict(identify_gpu(nvml, handle, self._ask(nvml.nvmlDeviceGetIndex, handle)).facts)
        is_split, instances = compute_instances(nvml, handle)
        return GpuNames(
            facts.get("minor_number", ""), is_split, tuple((one.uuid, str(one.gpu_instance)) for one in instances)
        )

    def sweep(self, key: str) -> dict[PollPart, Collection]:
        """Read the polls that are due of the GPU with the key of a `GpuTarget`."""
        nvml = self._session()
        time_ns = self._wall_clock_ns()
        gpu = self._gpus.get(key)
        try:
            gpu = gpu or self._open(nvml, key)
        except binding.GpuUnusableError as error:
            self._forget(key)
            return {
                PollPart.FAST: unusable_gpu_collection(binding.GpuReadings(self._labels.get(key, ()), time_ns), error),
                PollPart.SLOW: Collection(),
            }
        parts = {}
        now = self._clock()
        if now >= self._slow_poll_due.get(key, now):
            parts[PollPart.SLOW] = gpu.read(PollPart.SLOW, time_ns)
            self._slow_poll_due[key] = now + self._slow_poll_seconds
        if gpu.is_usable:
            parts[PollPart.FAST] = gpu.read(PollPart.FAST, time_ns)
        if not gpu.is_usable:
            self._forget(key)
            return {PollPart.FAST: Collection.joined(parts.values()), PollPart.SLOW: Collection()}
        return parts

    def is_usable(self, key: str) -> bool:
        """Whether a GPU that was swept answered to the end."""
        return key in self._gpus

    def nvlink_ends(self, key: str) -> dict[str, int]:
        """Active NVLinks of the GPU with the key of a `GpuTarget`, by where they end; see `NvmlGpu.nvlink_ends`."""
        return (self._gpus.get(key) or self._open(self._session(), key)).nvlink_ends()

    def collect(self) -> Collection:
        """Read all GPUs once, also those that are gone; a poll that is not due gives its last readings."""
        try:
            found = [self.target(index) for index in range(self.count())]
            for key in self._labels.keys() - {target.key for target in found if isinstance(target, GpuTarget)}:
                self._forget(key)
            for key in self._labels:
                self._last.setdefault(key, {}).update(self.sweep(key))
        except binding.DriverUnusableError as error:
            self.close()
            return NoValue(error.reason, error.detail).of_all()
        indices = {dict(labels)["gpu"] for labels in self._labels.values()}
        nameless = [lost for lost in found if isinstance(lost, Missing) and dict(lost.labels)["gpu"] not in indices]
        parts = [part for last in self._last.values() for part in last.values()]
        return Collection.joined([*parts, Collection(missing=tuple(nameless))])

    def close(self) -> None:
        """Shut NVML down; the next call initialises it again."""
        self._gpus, self._slow_poll_due, self._last = {}, {}, {}
        self._handles.clear()
        nvml, self._nvml = self._nvml, None
        if nvml is not None:
            try:
                nvml.nvmlShutdown()
            except nvml.NVMLError:
                return  # the driver is gone

    def _session(self) -> binding.Nvml:
        if self._nvml is None:
            nvml = binding.nvml_library()
            try:
                nvml.nvmlInit()
            except nvml.NVMLError as error:
                if error.value == binding.LIBRARY_NOT_FOUND:
                    raise binding.DriverUnusableError(*binding.reason_of_missing_library()) from error
                raise binding.DriverUnusableError(*binding.nvml_reason_of_error(nvml, error)) from error
            self._nvml = nvml
        return self._nvml

    def _open(self, nvml: binding.Nvml, key: str) -> NvmlGpu:
        handle = self._ask(nvml.nvmlDeviceGetHandleByPciBusId, key.encode())
        index = self._ask(nvml.nvmlDeviceGetIndex, handle)
        gpu = NvmlGpu(nvml, handle, identify_gpu(nvml, handle, index), self._handles)
        self._gpus[key] = gpu
        self._labels[key] = gpu.identity.labels
        return gpu

    def _ask(self, call: Callable[..., Any], argument: Any) -> Any:
        """The answer of a call; any error makes the GPU unusable."""
        try:
            return call(argument)
        except Exception as error:
            raise binding.GpuUnusableError(*binding.nvml_reason_of_error(self._nvml, error)) from error

    def _forget(self, key: str) -> None:
        """Get a new handle next time; its GPM samples are not freed, because the call might hang."""
        self._gpus.pop(key, None)
        self._slow_poll_due.pop(key, None)
