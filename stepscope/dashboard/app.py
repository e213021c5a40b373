"""How is the web app put together? One ASGI app: Dash's pages, the REST API, probes and security headers."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import dash
from dash import ClientsideFunction, Input, Output
from fastapi import FastAPI
from starlette.middleware.gzip import GZipMiddleware

from stepscope import __version__
from stepscope.core.palette import DARK, LIGHT, mark_rules, variables
from stepscope.dashboard.api import make_api
from stepscope.dashboard.failures import report
from stepscope.dashboard.pages.shell import make_shell
from stepscope.dashboard.pages.states import failed
from stepscope.dashboard.requests import HeadMiddleware, refuse_in_one_shape
from stepscope.dashboard.routes import Page, PageMiddleware, render
from stepscope.dashboard.security import SecurityMiddleware, content_security_policy
from stepscope.store.runs import RunStore

_ASSETS = Path(__file__).parent / "assets"

_COLOUR_SCHEME_SCRIPT = """
(function () {
  var wanted = null;
  try { wanted = localStorage.getItem('mantine-color-scheme-value'); } catch (error) { /* storage may be forbidden */ }
  var dark = wanted === 'dark' || (wanted !== 'light' && matchMedia('(prefers-color-scheme: dark)').matches);
  document.documentElement.setAttribute('data-mantine-color-scheme', dark ? 'dark' : 'light');
})();
"""
"""Sets the theme before anything is drawn. (DMC's pre_render_color_scheme has no hash in csp_hashes().)"""


def create_app(store: RunStore, *, allowed_hosts: Sequence[str] | None = None) -> FastAPI:
    """The ASGI app over `store`.

    Args:
        store: the runs to show.
        allowed_hosts: names a request's Host may bear; None lets all pass.
    """
    # FastAPI's own documentation pages load scripts from a CDN, so only the bare OpenAPI document is served.
    server = FastAPI(
        title="stepscope", version=__version__, docs_url=None, redoc_url=None, openapi_url="/api/v1/openapi.json"
    )
    server.include_router(make_api(store))
    refuse_in_one_shape(server)
    dash_app = _make_dash(server, store)
    policy = content_security_policy([*dash_app.csp_hashes(), _hash(_COLOUR_SCHEME_SCRIPT)])
    server.add_middleware(PageMiddleware, store=store)
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
        index_string=_index_string(),
        **loose,
    )
    app.backend.websocket_capability = False  # else every page keeps a socket open that nothing uses
    app.layout = make_shell(store.root)

    async def show(path: str | None) -> tuple[Any, Any, str]:
        try:
            page: Page = await render(store, path or "/")
        except Exception as error:  # the edge of the pages: one that fails says so, or it stays a skeleton for ever
            page = Page(failed(report(error, doing=f"making the page {path}"), path or "/"), [], "Error – stepscope")
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


def _index_string() -> str:
    return f"""<!DOCTYPE html>
<html lang="en">
  <head>
    {{%metas%}}
    <meta name="viewport" content="width=device-width, initial-scale=1">
    <title>{{%title%}}</title>
    <link rel="icon" type="image/svg+xml" href="/assets/favicon.svg">
    <script>{_COLOUR_SCHEME_SCRIPT}</script>
    <style>{_heading_colours()}</style>
    {{%css%}}
  </head>
  <body>
    {{%app_entry%}}
    <footer>{{%config%}}{{%scripts%}}{{%renderer%}}</footer>
  </body>
</html>"""


def _heading_colours() -> str:
    return f":root{{{variables(LIGHT)}}}:root[data-mantine-color-scheme='dark']{{{variables(DARK)}}}{mark_rules()}"


def _hash(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
