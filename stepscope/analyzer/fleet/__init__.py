"""Fleet classes: bottlenecks of GPUs and jobs from counters alone; standard library only, as the agent loads it."""

from stepscope.analyzer.fleet.classification import classify_gpu, classify_job
from stepscope.analyzer.fleet.samples import GpuFacts, GpuSample, HostUse

__all__ = ["GpuFacts", "GpuSample", "HostUse", "classify_gpu", "classify_job"]
