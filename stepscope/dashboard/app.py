"""The web app and its server: Dash pages by path, REST API, probes and security headers as one ASGI app."""

from __future__ import annotations

import base64
import hashlib
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import anyio.to_thread
import dash
import uvicorn
from dash import ALL, ClientsideFunction, Input, Output, State
from fastapi import FastAPI
from starlette.middleware.gzip import GZipMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stepscope import __version__
from stepscope.core.errors import DataError, UsageError
from stepscope.dashboard.api import HeadMiddleware, make_api, refuse_in_one_shape
from stepscope.dashboard.cluster_api import make_cluster_api
from stepscope.dashboard.failures import log_failure
from stepscope.dashboard.live_slots import SLOT, changes, digests, slots_of
from stepscope.dashboard.pages.registry import Page, Section, Sources, make_page, page_exists
from stepscope.dashboard.pages.shell import make_navigation, make_shell, page_failed
from stepscope.dashboard.queries import REFRESH_SECONDS, FleetQueries
from stepscope.dashboard.security import LOOPBACK_NAMES, SecurityMiddleware, content_security_policy, is_loopback
from stepscope.store.runs import RunStore
from stepscope.workflow.panels.palette import DARK, LIGHT, mark_rules, variables
from stepscope.workflow.panels.report import style_sheet


def serve_dashboard(
    root: Path,
    *,
    host: str,
    port: int,
    insecure: bool = False,
    allowed_hosts: Sequence[str] = (),
    fleet: FleetQueries | None = None,
    more_metrics: Callable[[], str] = str,
    when_listening: Callable[[str], None],
) -> None:
    """Serve the dashboard of the runs under `root` until SIGINT or SIGTERM.

    Args:
        port: port; 0 takes a free one.
        insecure: allow an address that other machines can reach, without a login.
        allowed_hosts: further host names in requests; without them a loopback address accepts only its own names.
        fleet: questions to the metric history; None: there is none, and pages about the cluster say so.
        more_metrics: further lines of /metrics.
        when_listening: called with the URL once the socket listens.

    Raises:
        UsageError: the address is not loopback and `insecure` is not set, or it cannot be bound.
        DataError: root is not a directory.
    """
    if not insecure and not is_loopback(host):
        raise UsageError(
            f"binding {host} lets everyone who reaches this machine read all runs, and there is no login",
            where="--host",
            what_next="use an SSH tunnel to 127.0.0.1 or a proxy with a login, or pass --insecure",
        )
    if not root.is_dir():
        raise DataError("is not a directory", where=str(root), what_next="give a directory of runs with --runs")
    names = [*LOOPBACK_NAMES, host.lower(), *(name.lower() for name in allowed_hosts)] if is_loopback(host) else None
    app = create_app(RunStore(root), allowed_hosts=names, fleet=fleet, more_metrics=more_metrics)
    with _bind(host, port) as listener:
        config = uvicorn.Config(app, log_level="warning", access_log=False, server_header=False, ws="none")
        server = uvicorn.Server(config)
        when_listening(_url(host, listener.getsockname()[1]))
        try:
            server.run(sockets=[listener])
        finally:
            if fleet is not None:
                fleet.close()


def _bind(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=128)
    except (OSError, OverflowError) as error:
        raise UsageError(
            f"cannot listen on {host} port {port} ({error})",
            what_next="choose another port with --port, or 0 for a free one",
        ) from error


def _url(host: str, port: int) -> str:
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{port}"


_ASSETS = Path(__file__).parent / "assets"

_COLOUR_SCHEME_SCRIPT = """
(function () {
  var wanted = null;
  try { wanted = localStorage.getItem('mantine-color-scheme-value'); } catch (error) { /* storage may be forbidden */ }
  var dark = wanted === 'dark' || (wanted !== 'light' && matchMedia('(prefers-color-scheme: dark)').matches);
  document.documentElement.setAttribute('data-mantine-color-scheme', dark ? 'dark' : 'light');
})();
"""
"""Sets the theme before the first paint. (DMC's pre_render_color_scheme has no hash in csp_hashes().)"""


def create_app(
    store: RunStore,
    *,
    allowed_hosts: Sequence[str] | None = None,
    fleet: FleetQueries | None = None,
    more_metrics: Callable[[], str] = str,
) -> FastAPI:
    """The dashboard's ASGI app over `store`.

    Args:
        allowed_hosts: accepted names in a request's Host header; None for all.
        fleet: questions to the metric history, if there is one.
        more_metrics: further lines of /metrics.
    """
    sources = Sources(store, fleet)
    # FastAPI's own documentation pages load scripts from a CDN, so only the bare OpenAPI document is served.
    server = FastAPI(
        title="stepscope", version=__version__, docs_url=None, redoc_url=None, openapi_url="/api/v1/openapi.json"
    )
    server.include_router(make_cluster_api(fleet))
    server.include_router(make_api(store, more_metrics))
    refuse_in_one_shape(server)
    dash_app = _make_dash(server, sources)
    policy = content_security_policy([*dash_app.csp_hashes(), _hash(_COLOUR_SCHEME_SCRIPT)])
    server.add_middleware(_PageMiddleware, sources=sources)
    server.add_middleware(HeadMiddleware)
    server.add_middleware(GZipMiddleware, minimum_size=1000, compresslevel=5)
    server.add_middleware(SecurityMiddleware, policy=policy, allowed_hosts=allowed_hosts)
    return server


def _make_dash(server: FastAPI, sources: Sources) -> dash.Dash:
    # Dash's signature knows neither a FastAPI server nor a title that stays as it is, though both are documented.
    loose: dict[str, Any] = {"server": server, "update_title": None}
    app: Any = dash.Dash(
        "stepscope.dashboard",
        assets_folder=str(_ASSETS),
        use_pages=False,
        serve_locally=True,
        enable_mcp=False,
        title="stepscope",
        add_log_handler=False,
        index_string=f"""<!DOCTYPE html>
<html lang="en">
  <head>
    {{%metas%}}
    <meta name="viewport" content="width=device-width, initial-scale=1">
    <title>{{%title%}}</title>
    <link rel="icon" type="image/svg+xml" href="/assets/favicon.svg">
    <script>{_COLOUR_SCHEME_SCRIPT}</script>
    <style>{_panel_style()}</style>
    {{%css%}}
  </head>
  <body>
    {{%app_entry%}}
    <footer>{{%config%}}{{%scripts%}}{{%renderer%}}</footer>
  </body>
</html>""",
        **loose,
    )
    app.backend.websocket_capability = False  # else every page keeps a socket open that nothing uses
    app.layout = make_shell(sources.store.root, refresh_seconds=REFRESH_SECONDS)

    async def show(path: str | None, query: str | None) -> tuple[Any, ...]:
        page = await _page(sources, path or "/", query or "")
        navigation = make_navigation(
            [(section.words, section.value, section is page.section) for section in Section],
            is_page=not page.breadcrumb,
        )
        return (
            page.body,
            navigation,
            page.breadcrumb,
            f"{page.title} – stepscope",
            not page.is_live,
            digests(slots_of(page.body)),
        )

    app.callback(
        Output("page", "children"),
        Output("navigation", "children"),
        Output("breadcrumb", "children"),
        Output("page-title", "data"),
        Output("tick", "disabled"),
        Output("live-digests", "data"),
        Input("url", "pathname"),
        Input("url", "search"),
    )(show)

    async def refresh(asked: dict[str, str], slots: list[dict[str, str]], known: dict[str, int] | None) -> Any:
        page = await _page(sources, asked["path"], asked["query"])
        return changes(page.body, [one[SLOT] for one in slots], known)

    app.callback(
        Output("page", "children", allow_duplicate=True),
        Output({SLOT: ALL}, "children"),
        Output("live-digests", "data", allow_duplicate=True),
        Input("refresh", "data"),
        State({SLOT: ALL}, "id"),
        State("live-digests", "data"),
        prevent_initial_call=True,
    )(refresh)
    app.clientside_callback(
        ClientsideFunction(namespace="stepscope", function_name="askAgain"),
        Output("refresh", "data"),
        Input("tick", "n_intervals"),
        prevent_initial_call=True,
    )
    app.clientside_callback(
        ClientsideFunction(namespace="stepscope", function_name="setTitle"),
        Output("page-title", "modified_timestamp"),
        Input("page-title", "data"),
        prevent_initial_call=True,
    )
    made: dash.Dash = app
    return made


def _panel_style() -> str:
    colours = f":root{{{variables(LIGHT)}}}:root[data-mantine-color-scheme='dark']{{{variables(DARK)}}}{mark_rules()}"
    return colours + style_sheet("panels.css")


def _hash(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


_NOT_PAGES = ("/_dash-", "/_favicon.ico", "/assets/", "/api/", "/healthz", "/readyz", "/metrics")
"""Prefixes of paths that Dash itself or the API answers."""


async def _page(sources: Sources, path: str, query: str) -> Page:
    """The page at `path`, built on a worker thread: Dash calls its callbacks on the event loop."""
    try:
        return await anyio.to_thread.run_sync(make_page, sources, path, query)
    except Exception as error:  # at the pages' edge: a page that fails must say so
        return Page(page_failed(log_failure(error, doing=f"making the page {path}"), path + query), "Error")


class _PageMiddleware:
    """Serves Dash's one HTML document for every page, with the right status: Dash answers 200 to any path."""

    def __init__(self, app: ASGIApp, *, sources: Sources) -> None:
        self._app = app
        self._sources = sources

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI scope."""
        if scope["type"] != "http" or scope["path"].startswith(_NOT_PAGES):
            await self._app(scope, receive, send)
            return
        # The path as the browser sent it; `scope["path"]` is decoded already and must not be decoded twice.
        raw: bytes | None = scope.get("raw_path")  # optional in ASGI
        path = raw.decode("latin-1") if raw is not None else quote(scope["path"])
        status = 200 if await anyio.to_thread.run_sync(page_exists, self._sources, path) else 404

        async def send_with_status(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] == 200:
                message["status"] = status
            await send(message)

        await self._app({**scope, "path": "/", "raw_path": b"/"}, receive, send_with_status)
