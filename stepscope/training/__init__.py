"""profile() and what runs in the training process: step telemetry, captures, hang detection. Imports torch lazily."""

from stepscope.training.captures.schedule import Schedule, SlowStep, every, once, slow_step
from stepscope.training.entry_points import profile, profiled
from stepscope.training.profiling_session import Profile

__all__ = ["Profile", "Schedule", "SlowStep", "every", "once", "profile", "profiled", "slow_step"]
