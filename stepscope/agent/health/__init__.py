"""Is each GPU of this node, its links and its driver well? Rules with time as an argument, one event an episode."""

from __future__ import annotations

from stepscope.agent.health.source import HealthSource

__all__ = ["HealthSource"]
