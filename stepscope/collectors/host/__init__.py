"""What do the machine and its processes do beside the GPUs?"""

from stepscope.collectors.host.collector import HostCollector, InfinibandCollector
from stepscope.collectors.host.gpu_users import GpuPlace, GpuUsers, gpu_users_of

__all__ = ["GpuPlace", "GpuUsers", "HostCollector", "InfinibandCollector", "gpu_users_of"]
