"""What do GPUs and jobs spend their time on? The analysis that the agent asks for when it needs it first.

Standard library only, all the way down: a running agent loads it.
"""

from stepscope.analyzer.fleet import GpuFacts, HostUse, Sample, class_of_job, classify

__all__ = ["GpuFacts", "HostUse", "Sample", "class_of_job", "classify"]
