"""What runs inside the training process: `profile` and step telemetry. Needs torch only once profiling starts."""

from stepscope.training.profile import Profile, profile
from stepscope.training.schedule import Schedule, every, once

__all__ = ["Profile", "Schedule", "every", "once", "profile"]
