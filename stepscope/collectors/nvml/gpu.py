"""One GPU: its fast and its slow poll, its processes, XID events and NVLinks."""

from __future__ import annotations

from contextlib import suppress
from enum import StrEnum
from typing import Any

from stepscope.collectors.nvml import binding, queries
from stepscope.collectors.nvml.devices import GpmSampler, GpuIdentity, MigInstances
from stepscope.collectors.nvml.nvlinks import MAX_NVLINKS, Nvlinks
from stepscope.collectors.readings_builder import NoValue
from stepscope.core.metrics.readings import GPU, Collection, Finding, Labels, MissingReason, labels_of, with_labels


class PollPart(StrEnum):
    """Readings of a GPU that are polled together through NVML."""

    FAST = "fast"  # activity, power, clocks, memory
    SLOW = "slow"  # limits, links, memory errors, processes


_POLLS_UNTIL_ASKED_AGAIN = 6
"""Slow polls, of ten seconds each: what was not supported is then asked again, as ECC or a service of the driver may be
on since."""
NVSWITCH = "switch"
_LINK_TO_GPU, _LINK_TO_SWITCH = 0, 2
"""nvmlIntNvLinkDeviceType_t."""


class NvmlGpu:
    """One GPU and its MIG instances, read through NVML; `is_usable`: whether it may be asked again.

    Args:
        handles: labels of all GPUs by the address of their handle; its own is added.
    """

    def __init__(
        self, nvml: binding.Nvml, handle: binding.Handle, identity: GpuIdentity, handles: dict[int | None, Labels]
    ) -> None:
        handles[_address(handle)] = identity.labels
        self.identity = identity
        self.is_usable = True
        self._labels = identity.labels
        self._nvml = nvml
        self._handle = handle
        self._slow_polls = 0
        self._reset_queries()
        self._gpm = GpmSampler(nvml, handle)
        self._processes = ProcessReader(nvml, handle)
        self._events = XidListener(nvml, handle, handles)
        self._mig = MigInstances(nvml, handle, identity)

    def _reset_queries(self) -> None:
        """Query everything again, also what was not supported."""
        self._ask_again()
        self._nvlinks = Nvlinks()

    def _ask_again(self) -> None:
        """The same without NVLinks, which take 0.3 ms a link and counter, and have none in a GPU without."""
        self._fast_queries = queries.QueryTable(queries.FAST_POLL_QUERIES)
        self._fast_fields = queries.FieldBatch(queries.FAST_POLL_FIELDS)
        self._slow_queries = queries.QueryTable(queries.SLOW_POLL_QUERIES)
        self._slow_fields = queries.FieldBatch(queries.SLOW_POLL_FIELDS)

    def read(self, part: PollPart, time_ns: int) -> Collection:
        """Read a part once; of a GPU that turns out to be lost, what it still reported and why there is no more."""
        into = binding.GpuReadings(self._labels, time_ns)
        try:
            instances = self._read_fast(into) if part is PollPart.FAST else self._read_slow(into)
        except binding.GpuUnusableError as error:
            self.is_usable = False
            with suppress(binding.GpuUnusableError):  # nobody listens from here on, and its XID may have just come
                self._events.read(into, is_split=self._mig.is_on)
            return Collection.joined((into.collection(), unusable_gpu_collection(into, error)))
        return Collection.joined((into.collection(), instances))

    def _read_fast(self, into: binding.GpuReadings) -> Collection:
        self._events.read(into, is_split=self._mig.is_on)  # first: a GPU that was just lost has an XID
        self._fast_queries.read(self._nvml, self._handle, into)
        self._fast_fields.read(self._nvml, self._handle, into)
        self._gpm.read(into)
        self._unified_memory(into)
        instances = self._mig.read(into.time_ns)
        into.add("up", 1)
        return instances

    def _read_slow(self, into: binding.GpuReadings) -> Collection:
        was_split = self._mig.is_on
        self._mig.update()
        if self._mig.is_on != was_split:  # without a reset from Hopper on; with MIG the whole GPU has no utilisation
            self._reset_queries()
        elif self._slow_polls and self._slow_polls % _POLLS_UNTIL_ASKED_AGAIN == 0:
            self._ask_again()
        self._slow_polls += 1
        into.add("info", 1, **dict(self.identity.facts))
        self._slow_queries.read(self._nvml, self._handle, into)
        self._slow_fields.read(self._nvml, self._handle, into)
        self._nvlinks.read(self._nvml, self._handle, into)
        self._processes.read(into, is_split=self._mig.is_on)
        return Collection()

    def _unified_memory(self, into: binding.GpuReadings) -> None:
        """A GPU that shares the host's memory (GB10) reports none: only that of its processes is known."""
        used = GPU + "memory_used_bytes"
        unsupported = {missing.metric for missing in into.missing if missing.reason is MissingReason.NOT_SUPPORTED} >= {
            used,
            GPU + "memory_total_bytes",
        }
        if unsupported and self._processes.memory_bytes is not None:
            into.missing = [missing for missing in into.missing if missing.metric != used]
            into.add_raw("memory_used_bytes", self._processes.memory_bytes)
            into.add("memory_unified", 1)

    def nvlink_ends(self) -> dict[str, int]:
        """Number of active links by where they end: the PCI address of a GPU, or an NVSwitch (`NVSWITCH`).

        Links to other devices, and those whose end the driver does not report, are left out.
        """
        ends: dict[str, int] = {}
        for link in range(MAX_NVLINKS):
            try:
                if not self._nvml.nvmlDeviceGetNvLinkState(self._handle, link):
                    continue
                kind = self._nvml.nvmlDeviceGetNvLinkRemoteDeviceType(self._handle, link)
                if kind == _LINK_TO_SWITCH:
                    end = NVSWITCH
                elif kind == _LINK_TO_GPU:
                    end = binding.nvml_text(self._nvml.nvmlDeviceGetNvLinkRemotePciInfo(self._handle, link).busId)
                else:
                    continue
            except Exception as error:
                binding.nvml_reason_of_error(self._nvml, error)
                continue
            ends[end] = ends.get(end, 0) + 1
        return ends


def unusable_gpu_collection(labelled: binding.GpuReadings, error: binding.GpuUnusableError) -> Collection:
    """Readings of a GPU that does not answer NVML."""
    into = binding.GpuReadings(labelled.labels, labelled.time_ns)
    into.add("up", 0, reason=error.reason)
    into.add("", NoValue(error.reason, error.detail))
    return into.collection()


_PROCESS_LISTS = (
    ("compute", "nvmlDeviceGetComputeRunningProcesses_v3"),
    ("graphics", "nvmlDeviceGetGraphicsRunningProcesses_v3"),
    ("mps", "nvmlDeviceGetMPSComputeRunningProcesses_v3"),
)
_MAX_PROCESSES = 128
"""Processes of a GPU with readings of their own, those with the most memory; others are only counted."""
_NO_INSTANCE = 2**32 - 1
_MEMORY_UNKNOWN = 2**64 - 1
_PERCENT = 0.01
_MEMORY_NOT_REPORTED = NoValue(MissingReason.NOT_SUPPORTED, "the driver does not report it here")


class ProcessReader:
    """Processes of one GPU by NVML; a process in two of its lists is reported once, with both kinds.

    Attributes:
        memory_bytes: of all processes at the last reading; None before, and where one process's is not known.
    """

    def __init__(self, nvml: binding.Nvml, handle: binding.Handle) -> None:
        self._nvml = nvml
        self._handle = handle
        self._seen_us = 0
        self.memory_bytes: int | None = None

    def read(self, into: binding.GpuReadings, *, is_split: bool) -> None:
        """Add the processes; of a GPU that is not split, an instance that a process is said to be in is none."""
        kinds: dict[int, list[str]] = {}
        found: dict[int, Any] = {}
        for kind, function in _PROCESS_LISTS:
            try:
                processes = getattr(self._nvml, function)(self._handle)
            except Exception as error:
                why = binding.nvml_reason_of_error(self._nvml, error)
                if kind == "compute" or why.reason is not MissingReason.NOT_SUPPORTED:
                    into.add("processes", why, kind=kind)
                continue
            into.add_raw("processes", len(processes), kind=kind)
            for process in processes:
                kinds.setdefault(process.pid, []).append(kind)
                found[process.pid] = process
        held = [_memory_of(process) for process in found.values()]
        self.memory_bytes = None if None in held else sum(one for one in held if one is not None)
        by_memory = sorted(found.values(), key=lambda process: (-(_memory_of(process) or 0), process.pid))
        for process in by_memory[:_MAX_PROCESSES]:
            self._add_process(process, "+".join(kinds[process.pid]), into, is_split=is_split)
        if len(by_memory) > _MAX_PROCESSES:
            into.note(
                "processes_left_out",
                f"{len(by_memory)} processes hold the GPU; the {_MAX_PROCESSES} largest are reported",
            )
        self._utilization(into, {process.pid for process in by_memory[:_MAX_PROCESSES]})

    def _add_process(self, process: Any, kind: str, into: binding.GpuReadings, *, is_split: bool) -> None:
        further = {"kind": kind, "pid": process.pid}
        if is_split and process.gpuInstanceId != _NO_INSTANCE:
            further["gpu_instance"] = process.gpuInstanceId
        if _memory_of(process) is None:
            into.add("process_memory_bytes", _MEMORY_NOT_REPORTED, **further)
        else:
            into.add_raw("process_memory_bytes", process.usedGpuMemory, **further)

    def _utilization(self, into: binding.GpuReadings, pids: set[int]) -> None:
        """Newest sample of each process since the last reading; a process that did not run has none."""
        try:
            samples = self._nvml.nvmlDeviceGetProcessUtilization(self._handle, self._seen_us)
        except Exception as error:
            if getattr(error, "value", None) == binding.NOT_FOUND:  # no process ran since
                return
            into.add("process_sm_utilization_ratio", binding.nvml_reason_of_error(self._nvml, error))
            return
        newest: dict[int, Any] = {}
        for sample in samples:
            if sample.pid not in newest or sample.timeStamp > newest[sample.pid].timeStamp:
                newest[sample.pid] = sample
            self._seen_us = max(self._seen_us, sample.timeStamp)
        for pid in sorted(pids & newest.keys()):
            into.add_raw("process_sm_utilization_ratio", newest[pid].smUtil, _PERCENT, pid=pid)


def _memory_of(process: Any) -> int | None:
    """Bytes that a process holds; None where the driver does not report them."""
    return None if process.usedGpuMemory == _MEMORY_UNKNOWN else int(process.usedGpuMemory)


_XID_EVENT = 8
"""nvmlEventTypeXidCriticalError."""
_MAX_EVENTS = 64
"""Events of one reading, so that a storm (17,657 a second in NVIDIA/NVSentinel#1748) ends."""


def _address(handle: binding.Handle) -> int | None:
    address: int | None = handle.value
    return address


class XidListener:
    """XIDs of one GPU by NVML's events. Each becomes a finding "xid"."""

    def __init__(self, nvml: binding.Nvml, handle: binding.Handle, handles: dict[int | None, Labels]) -> None:
        self._handles = handles
        self._nvml = nvml
        self._handle = handle
        self._why_not: NoValue | None = None
        self._set: Any = None
        try:
            self._set = nvml.nvmlEventSetCreate()
            nvml.nvmlDeviceRegisterEvents(handle, _XID_EVENT, self._set)
        except Exception as error:
            self._why_not = binding.nvml_reason_of_error(nvml, error)

    def read(self, into: binding.GpuReadings, *, is_split: bool) -> None:
        """Add the events that came since the last reading; without MIG an event is of no instance."""
        if self._why_not is not None:
            into.add("xid_errors_total", self._why_not)
            return
        for _ in range(_MAX_EVENTS):
            try:
                event = self._nvml.nvmlEventSetWait_v2(self._set, 0)
            except Exception as error:
                if getattr(error, "value", None) != binding.TIMEOUT:
                    into.add("xid_errors_total", binding.nvml_reason_of_error(self._nvml, error))
                return
            if event.eventType == _XID_EVENT:
                labels = with_labels(self._gpu_labels(event, into), xid=event.eventData)
                if is_split and event.gpuInstanceId != _NO_INSTANCE:
                    labels = with_labels(labels, gpu_instance=event.gpuInstanceId)
                into.findings.append(Finding("xid", f"XID {event.eventData}", labels, into.time_ns))
        into.note("xid_storm", f"more than {_MAX_EVENTS} XIDs came at once; the rest follows at the next reading")

    def _gpu_labels(self, event: Any, into: binding.GpuReadings) -> Labels:
        """Labels of the GPU that an event is about: a set may also get events of other GPUs, which may be lost."""
        known = self._handles.get(_address(event.device))
        if known is not None:
            return known
        try:
            uuid = self._nvml.nvmlDeviceGetUUID(event.device)
            index = self._nvml.nvmlDeviceGetIndex(event.device)
            return labels_of(gpu=index, uuid=binding.nvml_text(uuid))
        except Exception as error:
            try:
                binding.nvml_reason_of_error(self._nvml, error)
            except binding.GpuUnusableError:
                into.note("xid_unattributed", f"XID {event.eventData} came of a GPU that does not answer")
        return ()
