"""What do programs ask the agent? The node's state, and where to scrape it."""

from __future__ import annotations

from stepscope.agent.api.node import node_of
from stepscope.agent.api.routes import api_routes

__all__ = ["api_routes", "node_of"]
