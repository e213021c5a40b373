"""Which pages does every agent have? Metrics, a landing page, health and readiness."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from http import HTTPStatus

from stepscope.agent.exporter import MetricsPage
from stepscope.agent.source_state import SourceState
from stepscope.agent.web.landing import landing_page
from stepscope.agent.web.routes import Reply, Request, Route, text_reply
from stepscope.core.readings import MissingReason


def page_routes(page: MetricsPage, states: Callable[[], Sequence[SourceState]]) -> tuple[Route, ...]:
    """Their routes.

    Args:
        page: /metrics.
        states: the sources now; must wait for nothing.
    """

    def metrics(request: Request) -> Reply:
        accepts = request.headers.get("Accept", ""), request.headers.get("Accept-Encoding", "")
        body, headers = page.encoded(accept=accepts[0], accept_encoding=accepts[1])
        return Reply(HTTPStatus.OK, body, headers)

    def landing(_: Request) -> Reply:
        body = landing_page(states()).encode(errors="replace")
        return Reply(HTTPStatus.OK, body, {"Content-Type": "text/html; charset=utf-8"})

    def readiness(_: Request) -> Reply:
        """Ready once each source has answered or was given up."""
        waiting = [state.name for state in states() if state.reason is MissingReason.NOT_YET]
        if waiting:
            return text_reply(HTTPStatus.SERVICE_UNAVAILABLE, f"waiting for {', '.join(waiting)}")
        return text_reply(HTTPStatus.OK, "ready")

    return (
        Route("GET", "/", landing),
        Route("GET", "/metrics", metrics),
        Route("GET", "/healthz", _health, is_open=True),  # who asks these two has no password: kubelet, systemd
        Route("GET", "/readyz", readiness, is_open=True),
    )


def _health(_: Request) -> Reply:
    """It answers, so it lives: a driver that hangs is no reason to start the agent anew."""
    return text_reply(HTTPStatus.OK, "ok")
