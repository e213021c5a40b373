"""Pages of every agent: metrics, landing page, health and readiness."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from http import HTTPStatus

from stepscope import __version__
from stepscope.agent.exporter.metrics_page import MetricsPage
from stepscope.agent.polling import SourceState
from stepscope.agent.web.routes import Reply, Request, Route, text_reply
from stepscope.core.metrics.readings import MissingReason


def page_routes(page: MetricsPage, states: Callable[[], Sequence[SourceState]]) -> tuple[Route, ...]:
    """Routes of these pages; `states` gives the current state of the sources and must not block."""

    def metrics(request: Request) -> Reply:
        accepts = request.headers.get("Accept", ""), request.headers.get("Accept-Encoding", "")
        body, headers = page.encoded(accept=accepts[0], accept_encoding=accepts[1])
        return Reply(HTTPStatus.OK, body, headers)

    def landing(_: Request) -> Reply:
        body = landing_page(states()).encode(errors="replace")
        return Reply(HTTPStatus.OK, body, {"Content-Type": "text/html; charset=utf-8"})

    def readiness(_: Request) -> Reply:
        """Ready once each source has answered or has been given up."""
        waiting = [state.name for state in states() if state.reason is MissingReason.NOT_YET]
        if waiting:
            return text_reply(HTTPStatus.SERVICE_UNAVAILABLE, f"waiting for {', '.join(waiting)}")
        return text_reply(HTTPStatus.OK, "ready")

    return (
        Route("GET", "/", landing),
        Route("GET", "/metrics", metrics),
        Route("GET", "/healthz", _health, is_open=True),  # probes have no password: kubelet, systemd
        Route("GET", "/readyz", readiness, is_open=True),
    )


def _health(_: Request) -> Reply:
    """The agent answers, so it is alive: a hanging driver is not a reason to restart it."""
    return text_reply(HTTPStatus.OK, "ok")


_STYLE = "body{font:15px system-ui;margin:2em}td,th{text-align:left;padding:.2em 1.5em .2em 0;vertical-align:top}"


def landing_page(states: Sequence[SourceState]) -> str:
    """Landing page in HTML with the state of the sources."""
    rows = "".join(_row(state) for state in states)
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>stepscope agent</title><style>{_STYLE}</style>"
        f"<h1>stepscope agent {escape(__version__)}</h1>"
        '<p><a href="metrics">Metrics</a> · <a href="api/v1/node">Node</a> · '
        '<a href="healthz">Health</a> · <a href="readyz">Readiness</a></p>'
        "<table><tr><th>source<th>state<th>values<th>missing<th>age<th></tr>"
        f"{rows}</table></html>\n"
    )


def _row(state: SourceState) -> str:
    age = "" if state.age_seconds is None else f"{state.age_seconds:.1f} s"
    cells = (
        state.name,
        state.reason.value if state.reason else "up",
        str(len(state.collection.readings)),
        str(len(state.collection.missing)),
        age,
        state.detail,
    )
    return "<tr>" + "".join(f"<td>{escape(cell)}" for cell in cells) + "</tr>"
