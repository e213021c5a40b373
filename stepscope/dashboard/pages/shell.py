"""Frame of every page, and pages without content: loading, not found, not analysed, unreadable, failed, no runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dash_mantine_components as dmc
from dash import dcc, html
from dash.development.base_component import Component

from stepscope import __version__
from stepscope.dashboard.components import attributes

THEME = {
    "primaryColor": "blue",
    "defaultRadius": "md",
    "fontFamily": "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, 'Noto Sans', sans-serif",
    "fontFamilyMonospace": "ui-monospace, SFMono-Regular, Menlo, Consolas, 'Liberation Mono', monospace",
    "headings": {"fontWeight": "650"},
}


def make_shell(root: Path, *, refresh_seconds: float) -> Component:
    """Dashboard pages: the frame around each page; the callback on the URL fills `page`, `navigation` and `breadcrumb`.

    Args:
        refresh_seconds: from one reading of a live page to the next.
    """
    shell: Component = dmc.MantineProvider(
        theme=THEME,
        defaultColorScheme="auto",
        children=[
            dcc.Location(id="url", refresh="callback-nav"),
            dcc.Store(id="page-title"),
            dcc.Interval(id="tick", interval=round(1000 * refresh_seconds), disabled=True),
            dcc.Store(id="refresh"),
            dcc.Store(id="live-digests"),
            html.A("Skip to the content", href="#page", className="ss-skip"),
            dmc.AppShell(
                [
                    dmc.AppShellHeader(_header()),
                    dmc.AppShellMain([html.Div(_waiting(), className="ss-main"), _footer(root)]),
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
                    html.Div(id="navigation", className="ss-nav"),
                    html.Span(id="breadcrumb", className="ss-crumb-here"),
                ],
                className="ss-crumbs",
                **attributes({"aria-label": "Sections"}),
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


def make_navigation(sections: list[tuple[str, str, bool]], *, is_page: bool) -> list[Component]:
    """Links to the dashboard's sections.

    Args:
        sections: title, path, and whether it is the shown one, of each.
        is_page: whether the section itself is shown, and not a page in it.
    """
    current = "page" if is_page else "true"
    return [
        dmc.Anchor(
            title,
            href=path,
            underline="never",
            className="ss-crumb",
            **attributes({"aria-current": current} if is_shown else {}),
        )
        for title, path, is_shown in sections
    ]


def _waiting() -> Component:
    targets: Any = {"page": "children"}  # and not what a live page makes again
    return dcc.Loading(
        html.Div(_skeleton(), id="page", tabIndex=-1),
        custom_spinner=_skeleton(),
        delay_show=250,
        target_components=targets,
        parent_className="ss-loading",
    )


def _footer(root: Path) -> Component:
    return html.Footer(
        [html.Span(f"Runs in {root.resolve()}"), html.Span(f"stepscope {__version__}")], className="ss-footer"
    )


def _skeleton() -> Component:
    """Grey blocks of the size of a page while it loads."""
    return html.Div(
        [
            html.Div("Reading…", className="ss-sr", role="status"),
            dmc.Skeleton(height=34, width=320),
            dmc.Skeleton(height=44),
            dmc.Skeleton(height=240),
            dmc.Skeleton(height=320),
        ],
        className="ss-stack",
    )


def not_found(what: str) -> Component:
    """Page of an unknown path or run."""
    return _state("404", "Nothing here", [html.P(what)])


def not_analysed(run_id: str, path: str) -> Component:
    """Page of a run without analysis."""
    return _state(
        None,
        f"{run_id} is not analysed yet",
        [
            html.P("The traces are here. Run this, then reload the page:"),
            command_block(f"stepscope analyze {shell_word(path)}"),
        ],
    )


def unreadable(name: str, problem: str, *, path: str | None = None) -> Component:
    """Page of an unreadable file or directory; `path` is the run that can be analysed again."""
    again = (
        [html.P("If its traces are there, analyse it again:"), command_block(f"stepscope analyze {shell_word(path)}")]
        if path
        else []
    )
    return _state("!", f"{name} cannot be read", [html.P(problem, className="ss-error", role="alert"), *again])


def page_failed(error_id: str, path: str) -> Component:
    """Page of an unexpected error; its link loads the page again."""
    return _state(
        "!",
        "This page could not be made",
        [
            html.P(
                ["An unexpected error happened here. Its id is ", html.Code(error_id), "."],
                className="ss-error",
                role="alert",
            ),
            html.P("The dashboard's log has details under this id."),
            html.A("Try again", href=path, className="ss-retry"),
        ],
    )


def no_runs(root: str) -> Component:
    """Page of an empty directory."""
    return _state(
        "0",
        "No runs here yet",
        [
            html.P(["Looked in ", html.Code(root), " for directories with a run.json, an analysis.json or traces/."]),
            html.P("Make a run on this machine, GPU or not:"),
            command_block(f"stepscope demo --out {shell_word(root)}"),
            html.P("Or point the dashboard elsewhere:"),
            command_block("stepscope dashboard --runs DIR"),
        ],
        has_link=False,
    )


def command_block(text: str) -> Component:
    """A shell command on a page that can be copied."""
    return html.Div(
        [
            html.Code(text, className="ss-command-text"),
            dmc.CopyButton(value=text, children="Copy", copiedChildren="Copied", size="compact-xs", variant="default"),
        ],
        className="ss-command",
    )


def shell_word(path: str) -> str:
    """The path as one word of a shell, for a command on a page."""
    plain = all(letter.isalnum() or letter in "/._-+=@%:," for letter in path)
    return path if plain and path else "'" + path.replace("'", "'\\''") + "'"


def _state(sign: str | None, title: str, body: list[Component], *, has_link: bool = True) -> Component:
    after = [dmc.Anchor("Show all runs", href="/runs")] if has_link else []
    before = [html.Div(sign, className="ss-state-sign", **attributes({"aria-hidden": "true"}))] if sign else []
    return html.Div([*before, html.H1(title), *body, *after], className="ss-state")
