"""The web app and its server: Dash pages by path, REST API, probes and security headers as one ASGI app."""

from __future__ import annotations

import base64
import hashlib
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import anyio.to_thread
import dash
import uvicorn
from dash import ClientsideFunction, Input, Output
from fastapi import FastAPI
from starlette.middleware.gzip import GZipMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stepscope import __version__
from stepscope.core.errors import DataError, UsageError
from stepscope.dashboard.api import HeadMiddleware, log_failure, make_api, refuse_in_one_shape
from stepscope.dashboard.pages.runs import make_run_page, make_runs_page
from stepscope.dashboard.pages.shell import make_shell, not_found, page_failed
from stepscope.dashboard.security import LOOPBACK_NAMES, SecurityMiddleware, content_security_policy, is_loopback
from stepscope.store.runs import RunStore, UnknownRunError
from stepscope.workflow.panels.palette import DARK, LIGHT, mark_rules, variables
from stepscope.workflow.panels.report import style_sheet


def serve_dashboard(
    root: Path,
    *,
    host: str,
    port: int,
    insecure: bool = False,
    allowed_hosts: Sequence[str] = (),
    more_metrics: Callable[[], str] = str,
    when_listening: Callable[[str], None],
) -> None:
    """Serve the dashboard of the runs under `root` until SIGINT or SIGTERM.

    Args:
        port: port; 0 takes a free one.
        insecure: allow an address that other machines can reach, without a login.
        allowed_hosts: further host names in requests; without them a loopback address accepts only its own names.
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
    app = create_app(RunStore(root), allowed_hosts=names, more_metrics=more_metrics)
    with _bind(host, port) as listener:
        config = uvicorn.Config(app, log_level="warning", access_log=False, server_header=False, ws="none")
        server = uvicorn.Server(config)
        when_listening(_url(host, listener.getsockname()[1]))
        server.run(sockets=[listener])


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
    store: RunStore, *, allowed_hosts: Sequence[str] | None = None, more_metrics: Callable[[], str] = str
) -> FastAPI:
    """The dashboard's ASGI app over `store`.

    Args:
        allowed_hosts: accepted names in a request's Host header; None for all.
        more_metrics: further lines of /metrics.
    """
    # FastAPI's own documentation pages load scripts from a CDN, so only the bare OpenAPI document is served.
    server = FastAPI(
        title="stepscope", version=__version__, docs_url=None, redoc_url=None, openapi_url="/api/v1/openapi.json"
    )
    server.include_router(make_api(store, more_metrics))
    refuse_in_one_shape(server)
    dash_app = _make_dash(server, store)
    policy = content_security_policy([*dash_app.csp_hashes(), _hash(_COLOUR_SCHEME_SCRIPT)])
    server.add_middleware(_PageMiddleware, store=store)
    server.add_middleware(HeadMiddleware)
    server.add_middleware(GZipMiddleware, minimum_size=1000, compresslevel=5)
    server.add_middleware(SecurityMiddleware, policy=policy, allowed_hosts=allowed_hosts)
    return server


def _make_dash(server: FastAPI, store: RunStore) -> dash.Dash:
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
    app.layout = make_shell(store.root)

    async def show(path: str | None) -> tuple[Any, Any, str]:
        try:
            page: Page = await render_page(store, path or "/")
        except Exception as error:  # at the pages' edge: a page that fails must say so
            page = Page(
                page_failed(log_failure(error, doing=f"making the page {path}"), path or "/"), [], "Error – stepscope"
            )
        return page.body, page.breadcrumb, page.title

    app.callback(
        Output("page", "children"),
        Output("breadcrumb", "children"),
        Output("page-title", "data"),
        Input("url", "pathname"),
    )(show)
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


@dataclass(frozen=True, slots=True)
class Page:
    """Content of the dashboard's shell for a path: Dash components and the browser's title."""

    body: Any
    breadcrumb: Any
    title: str


async def render_page(store: RunStore, path: str) -> Page:
    """The dashboard's page at `path`, built on a worker thread: Dash calls its callbacks on the event loop."""
    return await anyio.to_thread.run_sync(_render, store, path)


def _run_of(path: str) -> str | None:
    """Id of the run at `path` (percent-encoded as in the URL); '' for the list of runs, None for no page."""
    parts = path.strip("/").split("/")
    if parts == [""]:
        return ""
    return unquote(parts[1]) if len(parts) == 2 and parts[0] == "runs" and parts[1] else None


class _PageMiddleware:
    """Serves Dash's one HTML document for every page, with the right status: Dash answers 200 to any path."""

    def __init__(self, app: ASGIApp, *, store: RunStore) -> None:
        self._app = app
        self._store = store

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI scope."""
        if scope["type"] != "http" or scope["path"].startswith(_NOT_PAGES):
            await self._app(scope, receive, send)
            return
        # The path as the browser sent it; `scope["path"]` is decoded already and must not be decoded twice.
        raw: bytes | None = scope.get("raw_path")  # optional in ASGI
        status = await anyio.to_thread.run_sync(
            _status, self._store, raw.decode("latin-1") if raw is not None else quote(scope["path"])
        )

        async def send_with_status(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] == 200:
                message["status"] = status
            await send(message)

        await self._app({**scope, "path": "/", "raw_path": b"/"}, receive, send_with_status)


def _status(store: RunStore, path: str) -> int:
    run_id = _run_of(path)
    if run_id:
        try:
            store.path_of(run_id)
        except UnknownRunError:
            return 404
    return 404 if run_id is None else 200


def _render(store: RunStore, path: str) -> Page:
    run_id = _run_of(path)
    if run_id is None:
        return Page(not_found(f"There is no page at {unquote(path)}."), [], "Not found – stepscope")
    if not run_id:
        return Page(make_runs_page(store), [], "Runs – stepscope")
    return Page(make_run_page(store, run_id), run_id, f"{run_id} – stepscope")
