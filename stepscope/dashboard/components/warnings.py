"""What else must the reader know?"""

from __future__ import annotations

from dash import html
from dash.development.base_component import Component

from stepscope.core.analysis import Notice
from stepscope.dashboard.components.panel import panel


def warnings_panel(notices: list[Notice]) -> list[Component]:
    """The analysis's warnings; nothing when there are none."""
    if not notices:
        return []
    items = [html.Li([html.Span(notice.message), html.Code(notice.code)]) for notice in notices]
    return [
        panel(
            "What else should you know?",
            [html.Ul(items, className="ss-warnings")],
            name="warnings",
            source="The warnings of `stepscope analyze`; the code in grey is the one in its JSON.",
        )
    ]
