"""What do NVIDIA's GPUs tell through NVML? Vendor calls are made in this folder only.

A call may never return, and may end the process (a GPU off its bus, a driver that hangs): an agent runs this in a
process of its own (`stepscope.agent.isolation`).
"""

from __future__ import annotations

from stepscope.collectors.nvml.collector import GpuTarget, NvmlCollector

__all__ = ["GpuTarget", "NvmlCollector"]
