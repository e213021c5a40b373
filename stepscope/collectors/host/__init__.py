"""Host metrics: CPU, memory, disks, networks, cgroups and the processes that use GPUs, from /proc and /sys."""

from stepscope.collectors.host.collector import HostCollector, InfinibandCollector
from stepscope.collectors.host.processes import GpuPlace, GpuUsers, gpu_users_of

__all__ = ["GpuPlace", "GpuUsers", "HostCollector", "InfinibandCollector", "gpu_users_of"]
