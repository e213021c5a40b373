"""Fleet classes: bottlenecks of GPUs and jobs from counters alone; standard library only, as the agent loads it."""

from stepscope.analyzer.fleet.classification import class_of_job, classify
from stepscope.analyzer.fleet.samples import GpuFacts, HostUse, Sample

__all__ = ["GpuFacts", "HostUse", "Sample", "class_of_job", "classify"]
