"""Where do programs ask? `/api/v1/node` for all of this machine, `/sd` for Prometheus' discovery over HTTP."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import asdict
from http import HTTPStatus

from stepscope import __version__
from stepscope.agent.node_name import node_name
from stepscope.agent.web import Reply, Request, Route, json_reply
from stepscope.core.node import NODE_PATH, Node

_HOST = re.compile(r"[A-Za-z0-9._:\[\]%-]{1,255}")
DISCOVERY_PATH = "/sd"


def api_routes(node: Callable[[str], Node], *, scheme: str, host: str = "") -> tuple[Route, ...]:
    """Their routes.

    Args:
        node: this machine now, by its name; must wait for nothing.
        scheme: http or https, as the agent is asked.
        host: this machine's name as a setting has it.
    """
    host = node_name(host)

    def all_of_it(_: Request) -> Reply:
        return json_reply(HTTPStatus.OK, asdict(node(host)))

    def discovery(request: Request) -> Reply:
        """This agent, under the name by which it was asked: that one is known to reach it."""
        asked = request.headers.get("Host") or ""
        labels = {"__scheme__": scheme, "__meta_stepscope_host": host, "__meta_stepscope_version": __version__}
        targets = [{"targets": [asked], "labels": labels}] if _HOST.fullmatch(asked) else []
        return json_reply(HTTPStatus.OK, targets)

    return Route("GET", NODE_PATH, all_of_it), Route("GET", DISCOVERY_PATH, discovery)
