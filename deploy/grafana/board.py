"""Grafana boards: gpus.json for single nodes, fleet.json for many. `python -m deploy.grafana.board` writes both.

They query metrics of the node agent and of deploy/prometheus. Tests check that each of them exists, that Prometheus
takes each query, and that the files are up to date.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from deploy.grafana import fleet_board, node_board
from deploy.grafana.model import board_of

_FOLDER = Path(__file__).parent
FILES = {"gpus": _FOLDER / "gpus.json", "fleet": _FOLDER / "fleet.json"}
"""File of each board."""


def boards() -> dict[str, dict[str, Any]]:
    """JSON model of each board, as Grafana imports it."""
    modules = {"gpus": node_board, "fleet": fleet_board}
    return {name: board_of(one.UID, one.TITLE, one.ROWS, one.VARIABLES) for name, one in modules.items()}


if __name__ == "__main__":
    for name, board in boards().items():
        FILES[name].write_text(json.dumps(board, indent=1) + "\n")
