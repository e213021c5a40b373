"""Which processes on GPUs belong to jobs, and why can others not be told?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stepscope.collectors.jobs.devices import Device
from stepscope.collectors.jobs.plain import is_service
from stepscope.collectors.jobs.processes import Process, Processes
from stepscope.core.counting import counted
from stepscope.core.gpu_metrics import GPU
from stepscope.core.job_metrics import JOB
from stepscope.core.readings import Missing, MissingReason


class RunningProcesses:
    """Those of the last look are remembered: a GPU's list of processes is some seconds old."""

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self._met: frozenset[int] = frozenset()

    def on(self, devices: Sequence[Device]) -> dict[int, Process]:
        """Processes by id. Those that ended since they were listed, and services, hold the devices no more."""
        listed = {pid for device in devices for pid in device.holders}
        found = {pid: process for pid in listed if (process := self._processes.read(pid)) is not None}
        ended = (self._met & listed) - found.keys()
        self._met = frozenset(found) | ended
        services = {pid for pid, process in found.items() if is_service(process)}
        for device in devices:
            for pid in ended | services:
                device.holders.pop(pid, None)
        return {pid: process for pid, process in found.items() if pid not in services}


def what_is_hidden(devices: Iterable[Device], running: dict[int, Process]) -> list[Missing]:
    """Processes of other PID namespaces, and environments that may not be read."""
    missing = []
    for device in devices:
        hidden = sorted(device.holders.keys() - running.keys())
        if hidden:
            detail = f"process {hidden[0]} is not in this PID namespace (containers: hostPID)"
            missing.append(Missing(GPU + "job_info", device.labels, MissingReason.NO_PERMISSION, detail))
    closed = sum(process.variables is None for process in running.values())
    if closed:
        detail = f"the environment of {counted(closed, 'process')} may not be read: it takes root or CAP_SYS_PTRACE"
        missing.append(Missing(JOB + "info", (), MissingReason.NO_PERMISSION, detail))
    return missing
