"""Is there enough shared memory, open files, locked memory and CPU for a training job?"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

from stepscope.collectors.host.cgroups import read_cgroups
from stepscope.collectors.host.gathering import Gathering
from stepscope.core.counting import counted, form
from stepscope.core.doctor import DoctorLine, DoctorState
from stepscope.core.host_metrics import CGROUP
from stepscope.workflow.doctor.machine import UNLIMITED, Machine

_MIB, _GIB = 1024**2, 1024**3
_TINY_SHM, _SMALL_SHM = 256 * _MIB, _GIB
"""Docker gives 64 MiB: one batch of images fills it, and NCCL takes some tens of MiB for each rank."""
_FEW_FILES = 4096
"""Each loader worker and each rank's sockets take dozens: PyTorch's tensors in shared memory are files too."""
_OK, _WARN, _FAIL = DoctorState.OK, DoctorState.WARN, DoctorState.FAIL


def look_at_limits(machine: Machine) -> Iterator[DoctorLine]:
    """All of them."""
    try:
        told = os.statvfs(machine.path("dev/shm"))
        yield judge_shared_memory(told.f_blocks * told.f_frsize, told.f_bavail * told.f_frsize)
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
    """What loader workers and NCCL pass their data through, in bytes."""
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
    """What RDMA pins its buffers within, in bytes."""
    if limit == UNLIMITED:
        return DoctorLine("locked memory", _OK, "no limit")
    found = f"{limit / _MIB:.0f} MiB at most"
    if not has_rdma:
        return DoctorLine("locked memory", _OK, f"{found}, and no RDMA device here that needs more")
    advice = "ulimit -l unlimited, LimitMEMLOCK=infinity of the service: InfiniBand pins its buffers"
    return DoctorLine("locked memory", _FAIL, found, advice)


def judge_cpus(num_cpus: int, limit: float | None) -> DoctorLine:
    """Cores on which this process may run, and how much of them its cgroups grant."""
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
    into = Gathering(time.time_ns())
    read_cgroups(machine.files, into, [os.getpid()])
    limits = [one.value for one in into.collection().readings if one.metric == CGROUP + "cpu_limit_cpus"]
    return min(limits, default=None)
