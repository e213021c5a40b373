"""Collectors of host metrics and of InfiniBand ports."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from stepscope.collectors.host.cgroups import read_cgroups
from stepscope.collectors.host.files import Files
from stepscope.collectors.host.machine import read_cpu, read_disks, read_machine_memory, read_numa_memory, read_pressure
from stepscope.collectors.host.networks import read_infiniband, read_networks
from stepscope.collectors.host.processes import GpuUsers, read_affinity, read_gpu_node, read_process
from stepscope.collectors.readings_builder import ReadingsBuilder
from stepscope.core.metrics.readings import Collection


class HostCollector:
    """Collector of host metrics from files of /proc and /sys that never block."""

    def __init__(
        self,
        *,
        root: Path = Path("/"),
        gpu_users: Callable[[], GpuUsers] = GpuUsers,
        wall_clock_ns: Callable[[], int] = time.time_ns,
        ticks_per_second: float | None = None,
        page_bytes: int | None = None,
    ) -> None:
        """
        Args:
            root: where /proc and /sys are; in a container, where the machine's are mounted.
            gpu_users: the GPUs and their processes now, with process ids of the root's PID namespace.
            ticks_per_second: USER_HZ; default: the system's own.
            page_bytes: of one page of memory; default: the system's own.
        """
        self._files = Files(root)
        self._gpu_users = gpu_users
        self._wall_clock_ns = wall_clock_ns
        self._ticks_per_second = ticks_per_second or float(os.sysconf("SC_CLK_TCK"))
        self._page_bytes = page_bytes or os.sysconf("SC_PAGE_SIZE")

    def collect(self) -> Collection:
        """Read everything once. What cannot be read is missing with its reason; nothing is raised."""
        files, into = self._files, ReadingsBuilder(self._wall_clock_ns())
        read_cpu(files, into, ticks_per_second=self._ticks_per_second)
        read_machine_memory(files, into, page_bytes=self._page_bytes)
        read_numa_memory(files, into)
        read_pressure(files, into)
        read_disks(files, into)
        read_networks(files, into)
        users = self._gpu_users()
        for place in users.places:
            read_gpu_node(files, into, place)
        cgroups = read_cgroups(files, into, [pid for pid, _ in users.processes])
        for pid, places in users.processes:
            status = read_process(
                files, into, pid, ticks_per_second=self._ticks_per_second, cgroup=cgroups.get(pid, "")
            )
            if status is not None:
                read_affinity(files, into, pid, status, list(places))
        return into.collection()


class ProcessCollector:
    """Collector of processes and their cgroups, whatever they use.

    Args:
        pids: process ids of the root's PID namespace, now.
    """

    def __init__(
        self,
        pids: Callable[[], Iterable[int]],
        *,
        root: Path = Path("/"),
        wall_clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._pids, self._files, self._wall_clock_ns = pids, Files(root), wall_clock_ns
        self._ticks_per_second = float(os.sysconf("SC_CLK_TCK"))

    def collect(self) -> Collection:
        """Read each process once; nothing is raised."""
        into, pids = ReadingsBuilder(self._wall_clock_ns()), sorted(set(self._pids()))
        cgroups = read_cgroups(self._files, into, pids)
        for pid in pids:
            cgroup = cgroups.get(pid, "")
            read_process(self._files, into, pid, ticks_per_second=self._ticks_per_second, cgroup=cgroup)
        return into.collection()


class InfinibandCollector:
    """Collector of the host's InfiniBand and RoCE ports.

    Their counters come from the adapter: a dead one blocks the reader until its driver gives up, for about a minute.
    Hence a collector of its own, to be read in a thread of its own.
    """

    def __init__(self, *, root: Path = Path("/"), wall_clock_ns: Callable[[], int] = time.time_ns) -> None:
        self._files = Files(root)
        self._wall_clock_ns = wall_clock_ns

    def collect(self) -> Collection:
        """Read all ports once; nothing is raised."""
        into = ReadingsBuilder(self._wall_clock_ns())
        read_infiniband(self._files, into)
        return into.collection()
