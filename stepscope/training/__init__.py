"""What runs inside the training process: `profile` and step telemetry. Needs torch only once profiling starts."""

from stepscope.training.captures.schedule import Schedule, every, once
from stepscope.training.captures.slow_steps import SlowStep, slow_step
from stepscope.training.decorator import profiled
from stepscope.training.entry import profile
from stepscope.training.profile import Profile

__all__ = ["Profile", "Schedule", "SlowStep", "every", "once", "profile", "profiled", "slow_step"]
