"""How do others read what the agent knows? Over HTTP."""

from __future__ import annotations

from stepscope.agent.web.address import Address, address_of
from stepscope.agent.web.server import AgentServer

__all__ = ["Address", "AgentServer", "address_of"]
