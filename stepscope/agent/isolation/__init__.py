"""How does the agent go on answering while a GPU's driver hangs?

A call of NVML may never return, not even when its process is killed. So that the agent itself calls nothing: processes
of their own do (`collectors.nvml.serving`), and the agent asks them over pipes and waits for nobody (`probes`). One
process reads all GPUs; a GPU that hangs, is lost, crashes it or is slow gets one of its own (`lanes`), so that it never
hides the others.
"""

from __future__ import annotations

from stepscope.agent.isolation.probes import GpuProbes
from stepscope.agent.isolation.snapshot import ProbeCounts, Snapshot, TargetState
from stepscope.agent.isolation.timing import Timing

__all__ = ["GpuProbes", "ProbeCounts", "Snapshot", "TargetState", "Timing"]
