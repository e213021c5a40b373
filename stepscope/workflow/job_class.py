"""Classification of GPUs and jobs as the agent uses it.

Standard library only, all the way down: a running agent loads it.
"""

from stepscope.analyzer.fleet import GpuFacts, HostUse, Sample, class_of_job, classify

__all__ = ["GpuFacts", "HostUse", "Sample", "class_of_job", "classify"]
