"""Who holds a GPU, how much of its memory, and how much of its time?"""

from __future__ import annotations

from typing import Any

from stepscope.collectors.nvml.binding import Handle, Nvml, reason_of
from stepscope.collectors.nvml.gathering import Gathering
from stepscope.core.readings import Labels, MissingReason

_KINDS = (
    ("compute", "nvmlDeviceGetComputeRunningProcesses_v3"),
    ("graphics", "nvmlDeviceGetGraphicsRunningProcesses_v3"),
    ("mps", "nvmlDeviceGetMPSComputeRunningProcesses_v3"),
)
_MOST = 128
"""Processes told of a GPU, those with the most memory; more are counted only."""
_NO_INSTANCE = 2**32 - 1
_PERCENT = 0.01
_NO_SAMPLES = (0, 6)
"""NVML answers NOT_FOUND, or a success that the binding takes for an error (NVMLError of the code SUCCESS)."""


class ProcessReader:
    """Processes of one GPU; a process in two lists is told once, as both.

    Attributes:
        memory_bytes: what all processes held at the last reading; None before, and where it is not known of each.
    """

    def __init__(self, nvml: Nvml, handle: Handle) -> None:
        self._nvml = nvml
        self._handle = handle
        self._seen_us = 0
        self.memory_bytes: int | None = None

    def read(self, into: Gathering) -> None:
        """Tell all processes.

        Raises:
            DriverUnusableError, GpuUnusableError: there is no use in asking for more.
        """
        kinds: dict[int, list[str]] = {}
        found: dict[int, Any] = {}
        for kind, function in _KINDS:
            try:
                processes = getattr(self._nvml, function)(self._handle)
            except Exception as error:
                reason, detail = reason_of(self._nvml, error)
                if kind == "compute" or reason is not MissingReason.NOT_SUPPORTED:
                    into.miss("processes", reason, detail, (("kind", kind),))
                continue
            into.add("processes", len(processes), further=(("kind", kind),))
            for process in processes:
                kinds.setdefault(process.pid, []).append(kind)
                found[process.pid] = process
        held = [process.usedGpuMemory for process in found.values()]
        self.memory_bytes = None if None in held else sum(held)
        by_memory = sorted(found.values(), key=lambda process: (-(process.usedGpuMemory or 0), process.pid))
        for process in by_memory[:_MOST]:
            self._tell(process, "+".join(kinds[process.pid]), into)
        if len(by_memory) > _MOST:
            into.note("processes_left_out", f"{len(by_memory)} processes hold the GPU; the {_MOST} largest are told")
        self._utilization(into, {process.pid for process in by_memory[:_MOST]})

    def _tell(self, process: Any, kind: str, into: Gathering) -> None:
        further: Labels = (("kind", kind), ("pid", str(process.pid)))
        if process.gpuInstanceId != _NO_INSTANCE:
            further += (("gpu_instance", str(process.gpuInstanceId)),)
        if process.usedGpuMemory is None:
            into.miss("process_memory_bytes", MissingReason.NOT_SUPPORTED, "the driver does not tell it here", further)
        else:
            into.add("process_memory_bytes", process.usedGpuMemory, further=further)

    def _utilization(self, into: Gathering, pids: set[int]) -> None:
        """Each process's newest sample since the last reading; there is none of a process that did not run."""
        try:
            samples = self._nvml.nvmlDeviceGetProcessUtilization(self._handle, self._seen_us)
        except Exception as error:
            if getattr(error, "value", None) in _NO_SAMPLES:
                return
            reason, detail = reason_of(self._nvml, error)
            into.miss("process_sm_utilization_ratio", reason, detail)
            return
        newest: dict[int, Any] = {}
        for sample in samples:
            if sample.pid not in newest or sample.timeStamp > newest[sample.pid].timeStamp:
                newest[sample.pid] = sample
            self._seen_us = max(self._seen_us, sample.timeStamp)
        for pid in sorted(pids & newest.keys()):
            into.add("process_sm_utilization_ratio", newest[pid].smUtil, _PERCENT, (("pid", str(pid)),))
