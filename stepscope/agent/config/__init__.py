"""What is the agent told to do, and who said so? Flags before environment before file before default."""

from __future__ import annotations

from stepscope.agent.config.loading import Configuration, Origin, load
from stepscope.agent.config.settings import Settings

__all__ = ["Configuration", "Origin", "Settings", "load"]
