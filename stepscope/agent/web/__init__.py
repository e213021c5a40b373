"""How do others read what the agent knows, and have it do something? Over HTTP."""

from __future__ import annotations

from stepscope.agent.web.access import Access
from stepscope.agent.web.address import Address, address_of
from stepscope.agent.web.guard import Guard
from stepscope.agent.web.pages import page_routes
from stepscope.agent.web.routes import Reply, Request, Route, json_reply, text_reply
from stepscope.agent.web.server import AgentServer

__all__ = [
    "Access",
    "Address",
    "AgentServer",
    "Guard",
    "Reply",
    "Request",
    "Route",
    "address_of",
    "json_reply",
    "page_routes",
    "text_reply",
]
