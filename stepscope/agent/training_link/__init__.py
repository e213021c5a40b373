"""How do training processes on this node speak with the agent?"""

from __future__ import annotations

from stepscope.agent.training_link.backend import ProfileBackend
from stepscope.agent.training_link.server import TrainingServer
from stepscope.agent.training_link.source import TrainingSource

__all__ = ["ProfileBackend", "TrainingServer", "TrainingSource"]
