"""NVML collector: all GPUs of this machine, with a fast poll and a slow poll for each."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from stepscope.collectors.nvml.binding import (
    LIBRARY_NOT_FOUND,
    DriverUnusableError,
    GpuUnusableError,
    Nvml,
    load,
    reason_of_error,
    reason_of_missing_library,
)
from stepscope.collectors.nvml.gpu import Gpu, PollPart, unusable_gpu_collection
from stepscope.collectors.nvml.gpu_readings import GpuReadings
from stepscope.collectors.nvml.identity import identify
from stepscope.collectors.nvml.mig import compute_instances
from stepscope.core.metrics.readings import Collection, Labels, Missing, labels_of

SLOW_POLL_SECONDS = 10.0
"""Between two readings of what changes slowly. Each costs the driver some ms; DCGM reads all every 30 s."""


@dataclass(frozen=True, slots=True)
class GpuTarget:
    """A GPU to read.

    Attributes:
        key: where it sits; stays its own while others come and go, as NVML's index does not.
        labels: what its readings carry.
    """

    key: str
    labels: Labels


@dataclass(frozen=True, slots=True)
class GpuNames:
    """What others call a GPU and its parts.

    Attributes:
        minor: number of its file in /dev; empty where the driver does not tell.
        is_split: whether MIG is on, though it may have no instance.
        instances: UUID of each MIG device, and the id of the GPU instance that it is in.
    """

    minor: str
    is_split: bool
    instances: tuple[tuple[str, str], ...]


class NvmlCollector:
    """All GPUs of this machine.

    NVML is initialised once and for all: programs that did it every time hung after some hours (NVIDIA/go-nvml#152).
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
        self._nvml: Nvml = None
        self._gpus: dict[str, Gpu] = {}
        self._labels: dict[str, Labels] = {}
        self._slow_poll_due: dict[str, float] = {}
        self._last: dict[str, dict[PollPart, Collection]] = {}

    def count(self) -> int:
        """How many GPUs the driver knows now.

        Raises:
            DriverUnusableError: no GPU can be asked.
        """
        nvml = self._session()
        try:
            return int(nvml.nvmlDeviceGetCount())
        except Exception as error:
            raise DriverUnusableError(*reason_of_error(nvml, error)) from error

    def target(self, index: int) -> GpuTarget | Missing:
        """The GPU of this index, or why it does not tell which it is.

        Raises:
            DriverUnusableError: no GPU can be asked.
        """
        nvml = self._session()
        try:
            identity = identify(nvml, self._ask(nvml.nvmlDeviceGetHandleByIndex, index), index)
        except GpuUnusableError as error:
            return Missing("", labels_of(gpu=index), error.reason, error.detail)
        self._labels[identity.pci_bus_id] = identity.labels
        return GpuTarget(identity.pci_bus_id, identity.labels)

    def names(self, key: str) -> GpuNames:
        """What others call a GPU, beside its index and UUID.

        Args:
            key: of its target.

        Raises:
            DriverUnusableError, GpuUnusableError: it does not answer.
        """
        nvml = self._session()
        handle = self._ask(nvml.nvmlDeviceGetHandleByPciBusId, key.encode())
        facts = dict(identify(nvml, handle, self._ask(nvml.nvmlDeviceGetIndex, handle)).facts)
        is_split, instances = compute_instances(nvml, handle)
        return GpuNames(
            facts.get("minor_number", ""), is_split, tuple((one.uuid, str(one.gpu_instance)) for one in instances)
        )

    def sweep(self, key: str) -> dict[PollPart, Collection]:
        """Read what is due of one GPU.

        Args:
            key: of its target.

        Raises:
            DriverUnusableError: no GPU can be asked any more.
        """
        nvml = self._session()
        time_ns = self._wall_clock_ns()
        gpu = self._gpus.get(key)
        try:
            gpu = gpu or self._open(nvml, key)
        except GpuUnusableError as error:
            self._forget(key)
            return {
                PollPart.FAST: unusable_gpu_collection(GpuReadings(self._labels.get(key, ()), time_ns), error),
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
            said = Collection.joined(parts.values())
            return {PollPart.FAST: said, PollPart.SLOW: Collection()}
        return parts

    def is_usable(self, key: str) -> bool:
        """Whether a GPU that was swept answered to the end."""
        return key in self._gpus

    def nvlink_ends(self, key: str) -> dict[str, int]:
        """Active NVLinks of a GPU by where they end, see `nvlinks.nvlink_ends`.

        Args:
            key: of its target.

        Raises:
            DriverUnusableError, GpuUnusableError: it does not answer.
        """
        return (self._gpus.get(key) or self._open(self._session(), key)).nvlink_ends()

    def collect(self) -> Collection:
        """Read all GPUs once, also those that were there earlier; what is not due stays as it was read."""
        try:
            found = [self.target(index) for index in range(self.count())]
            for key in self._labels.keys() - {target.key for target in found if isinstance(target, GpuTarget)}:
                self._forget(key)
            for key in self._labels:
                self._last.setdefault(key, {}).update(self.sweep(key))
        except DriverUnusableError as error:
            self.close()
            return Collection(missing=(Missing("", (), error.reason, error.detail),))
        indices = {dict(labels)["gpu"] for labels in self._labels.values()}
        nameless = [lost for lost in found if isinstance(lost, Missing) and dict(lost.labels)["gpu"] not in indices]
        parts = [part for last in self._last.values() for part in last.values()]
        return Collection.joined([*parts, Collection(missing=tuple(nameless))])

    def close(self) -> None:
        """Forget everything; the next call starts anew."""
        self._gpus, self._slow_poll_due, self._last = {}, {}, {}
        nvml, self._nvml = self._nvml, None
        if nvml is not None:
            try:
                nvml.nvmlShutdown()
            except nvml.NVMLError:
                return  # a driver that went away needs no farewell

    def _session(self) -> Nvml:
        if self._nvml is None:
            nvml = load()
            try:
                nvml.nvmlInit()
            except nvml.NVMLError as error:
                if error.value == LIBRARY_NOT_FOUND:
                    raise DriverUnusableError(*reason_of_missing_library()) from error
                raise DriverUnusableError(*reason_of_error(nvml, error)) from error
            self._nvml = nvml
        return self._nvml

    def _open(self, nvml: Nvml, key: str) -> Gpu:
        handle = self._ask(nvml.nvmlDeviceGetHandleByPciBusId, key.encode())
        index = self._ask(nvml.nvmlDeviceGetIndex, handle)
        gpu = Gpu(nvml, handle, identify(nvml, handle, index))
        self._gpus[key] = gpu
        self._labels[key] = gpu.identity.labels
        return gpu

    def _ask(self, call: Callable[..., Any], argument: Any) -> Any:
        """The answer, or why the GPU has none, whatever error it is."""
        try:
            return call(argument)
        except Exception as error:
            raise GpuUnusableError(*reason_of_error(self._nvml, error)) from error

    def _forget(self, key: str) -> None:
        """Ask for its handle anew next time; its samples are not given back: the call might hang."""
        self._gpus.pop(key, None)
        self._slow_poll_due.pop(key, None)
