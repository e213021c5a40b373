"""Which XID errors came since the last look? NVML tells of each once, and only of those after the first look."""

from __future__ import annotations

import ctypes
from typing import Any

from stepscope.collectors.nvml.binding import TIMEOUT, Handle, Nvml, reason_of, text
from stepscope.collectors.nvml.gathering import Gathering
from stepscope.core.readings import Finding, Labels, MissingReason, labels_of, with_labels

_XID = 8
"""nvmlEventTypeXidCriticalError."""
_MOST = 64
"""Events told in one look, so that a storm (17,657 a second in NVIDIA/NVSentinel#1748) ends."""
_NO_INSTANCE = 2**32 - 1


class XidListener:
    """XIDs of one GPU. Each becomes a finding "xid"."""

    def __init__(self, nvml: Nvml, handle: Handle) -> None:
        """
        Raises:
            DriverUnusableError, GpuUnusableError: there is no use in asking for more.
        """
        self._nvml = nvml
        self._handle = handle
        self._why_not: tuple[MissingReason, str] | None = None
        self._set: Any = None
        try:
            self._set = nvml.nvmlEventSetCreate()
            nvml.nvmlDeviceRegisterEvents(handle, _XID, self._set)
        except Exception as error:
            self._why_not = reason_of(nvml, error)

    def read(self, into: Gathering) -> None:
        """Tell what came.

        Raises:
            DriverUnusableError, GpuUnusableError: there is no use in asking for more.
        """
        if self._why_not is not None:
            into.miss("xid_errors_total", *self._why_not)
            return
        for _ in range(_MOST):
            try:
                event = self._nvml.nvmlEventSetWait_v2(self._set, 0)
            except Exception as error:
                if getattr(error, "value", None) != TIMEOUT:
                    into.miss("xid_errors_total", *reason_of(self._nvml, error))
                return
            if event.eventType == _XID:
                labels = with_labels(self._whose(event, into), xid=event.eventData)
                if event.gpuInstanceId != _NO_INSTANCE:
                    labels = with_labels(labels, gpu_instance=event.gpuInstanceId)
                into.findings.append(Finding("xid", f"XID {event.eventData}", labels, into.time_ns))
        into.note("xid_storm", f"more than {_MOST} XIDs came at once; the rest is told next time")

    def _whose(self, event: Any, into: Gathering) -> Labels:
        """Labels of the GPU that the event is of, whichever set it came to."""
        if ctypes.cast(event.device, ctypes.c_void_p).value == ctypes.cast(self._handle, ctypes.c_void_p).value:
            return into.labels
        try:
            uuid = self._nvml.nvmlDeviceGetUUID(event.device)
            index = self._nvml.nvmlDeviceGetIndex(event.device)
        except Exception as error:
            reason_of(self._nvml, error)
            return ()
        return labels_of(gpu=index, uuid=text(uuid))
