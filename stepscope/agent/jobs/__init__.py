"""Who uses which GPU, for how long, and does it work?"""

from stepscope.agent.jobs.collector import JobCollector
from stepscope.agent.jobs.sources import JOBS, job_sources
from stepscope.collectors.jobs.settings import JobSettings

__all__ = ["JOBS", "JobCollector", "JobSettings", "job_sources"]
