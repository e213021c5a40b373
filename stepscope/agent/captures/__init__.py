"""How does the agent have training captured, whoever records it?"""

from __future__ import annotations

from stepscope.agent.captures.backend import CaptureBackend, CaptureTarget, TargetAnswer
from stepscope.agent.captures.choosing import CaptureLimits
from stepscope.agent.captures.service import CapturePlaces, CaptureService

__all__ = ["CaptureBackend", "CaptureLimits", "CapturePlaces", "CaptureService", "CaptureTarget", "TargetAnswer"]
