"""What runs inside the training process: `profile` and step telemetry. Needs torch only once profiling starts."""

from stepscope.training.profile import Profile, profile
from stepscope.training.schedule import Schedule, every, once
from stepscope.training.slow_steps import SlowStep, slow_step

__all__ = ["Profile", "Schedule", "SlowStep", "every", "once", "profile", "slow_step"]
