"""Fleet classes: what do GPUs spend their time on, by counters alone? Standard library only: the agent loads it."""

from stepscope.analyzer.fleet.classify import classify
from stepscope.analyzer.fleet.job import class_of_job
from stepscope.analyzer.fleet.samples import GpuFacts, HostUse, Sample

__all__ = ["GpuFacts", "HostUse", "Sample", "class_of_job", "classify"]
