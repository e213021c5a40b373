"""Paths that the agent and the dashboard answer over HTTP."""

from __future__ import annotations

import tempfile
from typing import Any

from stepscope.agent.exporter.metrics_page import MetricsPage
from stepscope.agent.web.endpoints import api_routes, capture_routes, page_routes
from stepscope.agent.web.health_routes import health_routes
from stepscope.dashboard.api import make_api
from stepscope.dashboard.cluster_api import make_cluster_api
from stepscope.store.runs import RunStore


def http_paths() -> dict[str, dict[str, str]]:
    """Method and path -> who may ask."""
    unused: Any = None
    routes = (
        *page_routes(MetricsPage(lambda: ()), lambda: ()),
        *api_routes(unused, scheme="http", host="node7"),
        *health_routes(unused, host="node7"),
        *capture_routes(unused),
    )
    agent = {
        f"{one.method} {one.path}": "who knows the token" if one.needs_token else "all" if one.is_open else "users"
        for one in routes
    }
    with tempfile.TemporaryDirectory() as folder:
        answered: list[Any] = [*make_api(RunStore(folder)).routes, *make_cluster_api(None).routes]
    dashboard = {f"{method} {route.path}": "users" for route in answered for method in route.methods}
    return {"agent": agent, "dashboard": dashboard}
