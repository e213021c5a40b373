"""JSON model of a Grafana board: rows of panels with queries, and variables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_COLUMNS = 24
_INSTANT = ("table", "bargauge", "map")
"""Kinds of panels that show the newest values alone."""


@dataclass(frozen=True, slots=True)
class Panel:
    """Panel of the board.

    Attributes:
        title: shown above the panel.
        description: text of its info icon.
        unit: Grafana's name of the unit.
        queries: pairs of PromQL expression and legend.
        kind: `timeseries`, `stat`, `table`, `bargauge`, or `map`: a coloured field a series.
        width: in columns of Grafana's grid, 24 in all.
        height: in rows of Grafana's grid.
        axis_max: upper end of the axis; None: chosen by Grafana.
        colors: of a map, text and colour by value.
    """

    title: str
    description: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    kind: str = "timeseries"
    width: int = 8
    height: int = 8
    axis_max: float | None = None
    colors: tuple[tuple[int, str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Variable:
    """Variable of the board with the values of a label; all of them by default.

    Attributes:
        series: those whose label is meant.
        label: name of that label.
        title: shown beside the choice.
    """

    name: str
    title: str
    series: str
    label: str


Rows = tuple[tuple[str, tuple[Panel, ...]], ...]
"""Titles of rows and their panels."""


def board_of(uid: str, title: str, rows: Rows, variables: tuple[Variable, ...]) -> dict[str, Any]:
    """JSON model of a Grafana board, as Grafana imports it."""
    panels: list[dict[str, Any]] = []
    top = 0
    for heading, row in rows:
        panels.append({"type": "row", "title": heading, "id": len(panels) + 1, "collapsed": False, "panels": [],
                       "gridPos": {"x": 0, "y": top, "w": _COLUMNS, "h": 1}})  # fmt: skip
        top, left, height = top + 1, 0, 0
        for panel in row:
            if left + panel.width > _COLUMNS:
                top, left, height = top + height, 0, 0
            place = {"x": left, "y": top, "w": panel.width, "h": panel.height}
            panels.append({"id": len(panels) + 1, "gridPos": place, **_panel(panel)})
            left, height = left + panel.width, max(height, panel.height)
        top += height
    data = {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Data source"}
    return {
        "uid": uid,
        "title": title,
        "tags": ["stepscope", "gpu"],
        "timezone": "browser",
        "schemaVersion": 39,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [data, *map(_variable, variables)]},
        "panels": panels,
    }


def _panel(panel: Panel) -> dict[str, Any]:
    defaults: dict[str, Any] = {"unit": panel.unit}
    if panel.axis_max is not None:
        defaults |= {"min": 0.0, "max": panel.axis_max}
    options: dict[str, Any] = {}
    if panel.kind == "bargauge":
        options = {"orientation": "horizontal", "displayMode": "basic", "reduceOptions": {"calcs": ["lastNotNull"]}}
    if panel.kind == "map":
        options = {"colorMode": "background", "graphMode": "none", "textMode": "name",
                   "reduceOptions": {"calcs": ["lastNotNull"]}}  # fmt: skip
        steps = [{"color": color, "value": value or None} for value, _, color in panel.colors]
        texts = {str(value): {"text": text, "color": color} for value, text, color in panel.colors}
        defaults |= {
            "color": {"mode": "thresholds"},
            "thresholds": {"mode": "absolute", "steps": steps},
            "mappings": [{"type": "value", "options": texts}],
        }
    targets = [
        {
            "refId": chr(ord("A") + place),
            "datasource": _SOURCE,
            "expr": query,
            "legendFormat": legend or "__auto",
            **({"instant": True} if panel.kind in _INSTANT else {}),
            **({"format": "table"} if panel.kind == "table" else {}),
        }
        for place, (query, legend) in enumerate(panel.queries)
    ]
    return {
        "type": "stat" if panel.kind == "map" else panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": _SOURCE,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        **({"options": options} if options else {}),
        "targets": targets,
    }


def _variable(variable: Variable) -> dict[str, Any]:
    return {
        "name": variable.name,
        "label": variable.title,
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": f"label_values({variable.series}, {variable.label})", "refId": variable.name},
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }
