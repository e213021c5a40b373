"""Frame of every page: header with breadcrumb and theme switch, and footer."""

from __future__ import annotations

from pathlib import Path

import dash_mantine_components as dmc
from dash import dcc, html
from dash.development.base_component import Component

from stepscope import __version__
from stepscope.dashboard.components import attributes
from stepscope.dashboard.pages.placeholders import skeleton

THEME = {
    "primaryColor": "blue",
    "defaultRadius": "md",
    "fontFamily": "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, 'Noto Sans', sans-serif",
    "fontFamilyMonospace": "ui-monospace, SFMono-Regular, Menlo, Consolas, 'Liberation Mono', monospace",
    "headings": {"fontWeight": "650"},
}


def make_shell(root: Path) -> Component:
    """The frame; the callback on the URL fills `page` and `breadcrumb`."""
    shell: Component = dmc.MantineProvider(
        theme=THEME,
        defaultColorScheme="auto",
        children=[
            dcc.Location(id="url", refresh="callback-nav"),
            dcc.Store(id="page-title"),
            html.A("Skip to the content", href="#page", className="ss-skip"),
            dmc.AppShell(
                [
                    dmc.AppShellHeader(_header()),
                    dmc.AppShellMain([html.Main(_waiting(), className="ss-main"), _footer(root)]),
                ],
                header={"height": 56},
                padding=0,
            ),
        ],
    )
    return shell


def _header() -> Component:
    return html.Div(
        [
            dmc.Anchor(
                [html.Span(className="ss-mark", **attributes({"aria-hidden": "true"})), "stepscope"],
                href="/",
                underline="never",
                className="ss-brand",
            ),
            html.Nav(
                [
                    dmc.Anchor("Runs", href="/", className="ss-crumb"),
                    html.Span(id="breadcrumb", className="ss-crumb-here"),
                ],
                className="ss-crumbs",
                **attributes({"aria-label": "Breadcrumb"}),
            ),
            dmc.ColorSchemeToggle(
                lightIcon=html.Span(className="ss-icon ss-icon-sun"),
                darkIcon=html.Span(className="ss-icon ss-icon-moon"),
                variant="default",
                size="lg",
                id="theme-toggle",
                **attributes({"aria-label": "Switch between light and dark"}),
            ),
        ],
        className="ss-header",
    )


def _waiting() -> Component:
    return dcc.Loading(
        html.Div(skeleton(), id="page", tabIndex=-1),
        custom_spinner=skeleton(),
        delay_show=250,
        parent_className="ss-loading",
    )


def _footer(root: Path) -> Component:
    return html.Footer(
        [html.Span(f"Runs in {root.resolve()}"), html.Span(f"stepscope {__version__}")], className="ss-footer"
    )
