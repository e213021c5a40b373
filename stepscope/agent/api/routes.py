"""Where do programs ask? `/api/v1/node` for all of this machine, `/sd` for Prometheus' discovery over HTTP."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from http import HTTPStatus

from stepscope import __version__
from stepscope.agent.api.node import node_of
from stepscope.agent.source_state import SourceState
from stepscope.agent.web import Reply, Request, Route, json_reply
from stepscope.core.fleet_class import FleetReport
from stepscope.core.health import HealthReport
from stepscope.core.node import NODE_PATH

_HOST = re.compile(r"[A-Za-z0-9._:\[\]%-]{1,255}")
DISCOVERY_PATH = "/sd"


def api_routes(
    states: Callable[[], Sequence[SourceState]],
    *,
    scheme: str,
    health: Callable[[], HealthReport] | None = None,
    fleet: Callable[[], FleetReport] | None = None,
) -> tuple[Route, ...]:
    """Their routes.

    Args:
        states: the sources now; must wait for nothing.
        scheme: http or https, as the agent is asked.
        health: of this machine now.
        fleet: what its GPUs and jobs spend their time on now.
    """
    host = socket.gethostname()

    def node(_: Request) -> Reply:
        found = node_of(
            states(),
            time.time_ns(),
            host=host,
            health=health() if health else None,
            fleet=fleet() if fleet else None,
        )
        return json_reply(HTTPStatus.OK, asdict(found))

    def discovery(request: Request) -> Reply:
        """This agent, under the name by which it was asked: that one is known to reach it."""
        asked = request.headers.get("Host") or ""
        labels = {"__scheme__": scheme, "__meta_stepscope_host": host, "__meta_stepscope_version": __version__}
        targets = [{"targets": [asked], "labels": labels}] if _HOST.fullmatch(asked) else []
        return json_reply(HTTPStatus.OK, targets)

    return Route("GET", NODE_PATH, node), Route("GET", DISCOVERY_PATH, discovery)
