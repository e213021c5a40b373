"""What does the agent do for processes that were started with KINETO_USE_DAEMON=1? It captures and counts them."""

from stepscope.agent.kineto_link.backend import KinetoBackend
from stepscope.agent.kineto_link.source import KinetoSource

__all__ = ["KinetoBackend", "KinetoSource"]
