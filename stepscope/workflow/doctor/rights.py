"""May this process see profiling counters and the kernel's log?"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from stepscope.core.doctor import DoctorLine, DoctorState
from stepscope.workflow.doctor.machine import Machine

_ADMIN_ONLY = re.compile(r"^\s*(?:RmProfilingAdminOnly|RestrictProfilingToAdminUsers)\s*:\s*(\d+)", re.MULTILINE)
_OK, _WARN = DoctorState.OK, DoctorState.WARN


def look_at_rights(machine: Machine) -> Iterator[DoctorLine]:
    """Profiling counters, where there is a driver, and the kernel's log."""
    parameters = machine.text("proc/driver/nvidia/params")
    if parameters is not None:
        yield _profiling(parameters, may_profile=machine.may_profile)
    try:
        os.close(os.open(machine.path("dev/kmsg"), os.O_RDONLY | os.O_NONBLOCK))
        yield DoctorLine("kernel log", _OK, "can be read: XIDs that NVML does not tell are seen")
    except OSError as error:
        found = f"cannot be read ({error.strerror}): XIDs that NVML does not tell go unseen"
        advice = "run the agent as root or with CAP_SYSLOG; give a container /dev/kmsg"
        yield DoctorLine("kernel log", _WARN, found, advice)


def _profiling(parameters: str, *, may_profile: bool) -> DoctorLine:
    told = _ADMIN_ONLY.search(parameters)
    if told is None or told[1] == "0":
        return DoctorLine("profiling permission", _OK, "everybody may read the GPU's performance counters")
    if may_profile:
        return DoctorLine("profiling permission", _OK, "for administrators only, of which this process is one")
    found = "performance counters are for administrators only: CUPTI's and DCGM's fail, traces and GPM do not"
    advice = "options nvidia NVreg_RestrictProfilingToAdminUsers=0 in /etc/modprobe.d, then reload the driver"
    return DoctorLine("profiling permission", _WARN, found, advice)
