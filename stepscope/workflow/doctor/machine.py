"""The examined machine, and checks of its limits, permissions, container and clock.

Files, environment, permissions and limits of this process are read through `Machine`; tests make their own.
"""

from __future__ import annotations

import ctypes
import os
import re
import resource
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from stepscope.collectors.host.cgroups import read_cgroups
from stepscope.collectors.host.files import Files
from stepscope.collectors.readings_builder import NoValue, ReadingsBuilder
from stepscope.core.documents.machine_checks import DoctorLine, DoctorState
from stepscope.core.metrics.readings import CGROUP
from stepscope.core.text.numbers import counted, form

_ADMIN, _PERFMON = 21, 38
"""Capabilities for which the driver grants profiling counters (CAP_SYS_ADMIN, CAP_PERFMON)."""
_LIMITS = {"memlock": resource.RLIMIT_MEMLOCK, "nofile": resource.RLIMIT_NOFILE}

UNLIMITED = resource.RLIM_INFINITY


@dataclass(frozen=True, slots=True)
class Machine:
    """One machine as doctor's process on it sees it.

    Attributes:
        files: below "/".
        environment: of the process.
        limits: soft limits: "memlock" in bytes, "nofile".
        num_cpus: that the process may run on.
        may_profile: whether it has the capabilities for profiling counters.
    """

    files: Files = field(default_factory=Files)
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    limits: Mapping[str, int] = field(
        default_factory=lambda: {name: resource.getrlimit(number)[0] for name, number in _LIMITS.items()}
    )
    num_cpus: int = field(default_factory=lambda: len(os.sched_getaffinity(0)))
    may_profile: bool = field(default_factory=lambda: _has_capability(Files(), _ADMIN, _PERFMON))

    def text(self, path: str) -> str | None:
        """The text of a file; None where it cannot be read."""
        text = self.files.read(path)
        return None if isinstance(text, NoValue) else text

    def names(self, path: str) -> list[str]:
        """Names in a folder; empty where it does not exist."""
        names = self.files.names(path)
        return [] if isinstance(names, NoValue) else names

    def path(self, path: str) -> Path:
        """Path of a file."""
        return self.files.root / path


def _has_capability(files: Files, *wanted: int) -> bool:
    status = files.read("proc/self/status")
    if isinstance(status, NoValue):
        return False
    line = next((line for line in status.splitlines() if line.startswith("CapEff:")), "CapEff: 0")
    return any(int(line.split()[1], 16) >> number & 1 for number in wanted)


_MIB, _GIB = 1024**2, 1024**3
_TINY_SHM, _SMALL_SHM = 256 * _MIB, _GIB
"""Docker gives 64 MiB: one batch of images fills it, and NCCL needs some tens of MiB for each rank."""
_FEW_FILES = 4096
"""Each loader worker and each rank's sockets need dozens: PyTorch's tensors in shared memory are files too."""
_OK, _WARN, _FAIL = DoctorState.OK, DoctorState.WARN, DoctorState.FAIL


def look_at_limits(machine: Machine) -> Iterator[DoctorLine]:
    """Doctor's check of shared memory, open files, locked memory and CPUs."""
    try:
        status = os.statvfs(machine.path("dev/shm"))
        yield judge_shared_memory(status.f_blocks * status.f_frsize, status.f_bavail * status.f_frsize)
    except OSError as error:
        yield DoctorLine("/dev/shm", _FAIL, f"is not there ({error.strerror})", "mount a tmpfs there")
    files = machine.limits["nofile"]
    if files != UNLIMITED and files < _FEW_FILES:
        advice = "ulimit -n 65536, or LimitNOFILE= of the service: loader workers and ranks open many"
        yield DoctorLine("open files", _WARN, f"{files} at most", advice)
    else:
        yield DoctorLine("open files", _OK, "no limit" if files == UNLIMITED else f"{files} at most")
    yield judge_locked_memory(machine.limits["memlock"], has_rdma=bool(machine.names("sys/class/infiniband")))
    yield judge_cpus(machine.num_cpus, _cgroup_cpus(machine))


def judge_shared_memory(total: int, free: int) -> DoctorLine:
    """Doctor's check of the size of /dev/shm, by which loader workers and NCCL pass data, in bytes."""
    found = f"{free / _GIB:.1f} of {total / _GIB:.1f} GiB are free"
    advice = "docker run --ipc=host or --shm-size=16g; in Kubernetes an emptyDir of medium Memory at /dev/shm"
    if total < _TINY_SHM:
        return DoctorLine("/dev/shm", _FAIL, f"{total / _MIB:.0f} MiB: loader workers die of it (bus error)", advice)
    if total < _SMALL_SHM:
        return DoctorLine("/dev/shm", _WARN, found, advice)
    if free < _TINY_SHM:
        return DoctorLine("/dev/shm", _WARN, found, "jobs that died have left files there: look and remove them")
    return DoctorLine("/dev/shm", _OK, found)


def judge_locked_memory(limit: int, *, has_rdma: bool) -> DoctorLine:
    """Doctor's check of the limit of locked memory, in which RDMA pins its buffers, in bytes."""
    if limit == UNLIMITED:
        return DoctorLine("locked memory", _OK, "no limit")
    found = f"{limit / _MIB:.0f} MiB at most"
    if not has_rdma:
        return DoctorLine("locked memory", _OK, f"{found}, and no RDMA device here that needs more")
    advice = "ulimit -l unlimited, LimitMEMLOCK=infinity of the service: InfiniBand pins its buffers"
    return DoctorLine("locked memory", _FAIL, found, advice)


def judge_cpus(num_cpus: int, limit: float | None) -> DoctorLine:
    """Doctor's check of this process's cores by the limit of its cgroups."""
    if limit is None or limit >= num_cpus:
        return DoctorLine("CPU", _OK, f"{counted(num_cpus, 'core')}, no lower limit by a cgroup")
    found = f"{limit:g} {form(limit, 'CPU')} by the cgroup, {counted(num_cpus, 'core')} in sight"
    advice = (
        f"start at most {max(1, int(limit))} "
        f"{form(max(1, int(limit)), 'loader worker or thread', 'loader workers and threads')}: "
        "more are stopped, not run"
    )
    return DoctorLine("CPU", _WARN, found, advice)


def _cgroup_cpus(machine: Machine) -> float | None:
    into = ReadingsBuilder(time.time_ns())
    read_cgroups(machine.files, into, [os.getpid()])
    limits = [one.value for one in into.collection().readings if one.metric == CGROUP + "cpu_limit_cpus"]
    return min(limits, default=None)


_ADMIN_ONLY = re.compile(r"^\s*(?:RmProfilingAdminOnly|RestrictProfilingToAdminUsers)\s*:\s*(\d+)", re.MULTILINE)


def look_at_rights(machine: Machine) -> Iterator[DoctorLine]:
    """Doctor's check of access to profiling counters, where there is a driver, and to the kernel log."""
    parameters = machine.text("proc/driver/nvidia/params")
    if parameters is not None:
        yield _profiling(parameters, may_profile=machine.may_profile)
    try:
        os.close(os.open(machine.path("dev/kmsg"), os.O_RDONLY | os.O_NONBLOCK))
        yield DoctorLine("kernel log", _OK, "can be read: XIDs that NVML does not report are seen")
    except OSError as error:
        found = f"cannot be read ({error.strerror}): XIDs that NVML does not report go unseen"
        advice = "run the agent as root or with CAP_SYSLOG; give a container /dev/kmsg"
        yield DoctorLine("kernel log", _WARN, found, advice)


def _profiling(parameters: str, *, may_profile: bool) -> DoctorLine:
    admin_only = _ADMIN_ONLY.search(parameters)
    if admin_only is None or admin_only[1] == "0":
        return DoctorLine("profiling permission", _OK, "everybody may read the GPU's performance counters")
    if may_profile:
        return DoctorLine("profiling permission", _OK, "for administrators only, of which this process is one")
    found = "performance counters are for administrators only: CUPTI's and DCGM's fail, traces and GPM do not"
    advice = "options nvidia NVreg_RestrictProfilingToAdminUsers=0 in /etc/modprobe.d, then reload the driver"
    return DoctorLine("profiling permission", _WARN, found, advice)


_INITS = frozenset({"systemd", "init", "openrc-init", "runit", "s6-svscan"})


def look_at_container(machine: Machine) -> Iterator[DoctorLine]:
    """Doctor's check for a container, and whether the machine's processes are visible in it."""
    kind = container_kind(machine)
    if kind is None:
        yield DoctorLine("container", _OK, "none")
        return
    first = (machine.text("proc/1/comm") or "").strip()
    if first in _INITS:
        yield DoctorLine("container", _OK, f"{kind}, with the machine's processes in sight")
        return
    found = f"{kind}: processes outside of it are out of sight, so that the agent cannot say whose a GPU is"
    advice = "for an agent: hostPID: true or --pid=host; for a job this is as it should be"
    yield DoctorLine("container", _OK, found, advice)


def container_kind(machine: Machine) -> str | None:
    """Name of the container runtime that doctor finds itself in; None outside a container."""
    if "KUBERNETES_SERVICE_HOST" in machine.environment:
        return "Kubernetes"
    if machine.files.exists(".dockerenv"):
        return "Docker"
    if machine.files.exists("run/.containerenv"):
        return "Podman"
    for name in ("APPTAINER_CONTAINER", "SINGULARITY_CONTAINER"):
        if name in machine.environment:
            return "Apptainer"
    return machine.environment.get("container") or None


_UNSYNCHRONIZED = 0x40
"""STA_UNSYNC."""
_LOOSE_SECONDS = 0.1
"""Of the kernel's error bound. chrony in a data centre keeps it below some ms."""


class _Timex(ctypes.Structure):
    """struct timex of adjtimex(2), as far as it is read, and room for the rest."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("frequency", ctypes.c_long),
        ("maximum_error_us", ctypes.c_long),
        ("estimated_error_us", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_byte * 256),
    )


@dataclass(frozen=True, slots=True)
class ClockState:
    """State of the kernel's clock, for doctor.

    Attributes:
        is_synchronized: whether it is corrected by NTP or PTP.
        error_seconds: bound of its error.
    """

    is_synchronized: bool
    error_seconds: float


def read_clock() -> ClockState | None:
    """Read the kernel's clock state for doctor; None where it refuses."""
    timex = _Timex()
    if ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(timex)) < 0:
        return None
    return ClockState(not timex.status & _UNSYNCHRONIZED, timex.maximum_error_us / 1e6)


def judge_clock(state: ClockState | None) -> DoctorLine:
    """Doctor's check whether times of this node can be compared with those of others."""
    advice = "start chronyd or systemd-timesyncd: captures start by the clock, logs and events are put together by it"
    if state is None:
        return DoctorLine("clock", _OK, "the kernel does not report whether it is synchronized")
    if not state.is_synchronized:
        return DoctorLine("clock", _WARN, "nothing keeps it in step with other machines", advice)
    if state.error_seconds > _LOOSE_SECONDS:
        return DoctorLine("clock", _WARN, f"kept in step within {state.error_seconds:.2g} s only", advice)
    return DoctorLine("clock", _OK, f"kept in step within {state.error_seconds * 1e3:.2g} ms")
