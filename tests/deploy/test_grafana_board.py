"""Grafana board: queries existing metrics, without overlapping panels."""

from __future__ import annotations

import json
import re
from itertools import combinations
from typing import Any

from deploy.grafana.board import FILE, board
from stepscope.agent.exporter.exposition import CATALOGUE

_PANELS: list[dict[str, Any]] = board()["panels"]


def queries() -> list[str]:
    """All of its PromQL, of all machines and GPUs."""
    found = [target["expr"] for panel in _PANELS for target in panel.get("targets", ())]
    return [re.sub(r"\$(instance|gpu)\b", ".*", query).replace("$__rate_interval", "1m") for query in found]


def test_the_file_is_what_the_program_writes() -> None:
    assert json.loads(FILE.read_text()) == board(), "run: python deploy/grafana/board.py"


def test_it_asks_for_metrics_that_there_are() -> None:
    asked = {name for query in queries() for name in re.findall(r"\bstepscope_\w+", query)}
    assert len(asked) > 30
    assert asked <= CATALOGUE.keys()
    for variable in board()["templating"]["list"][1:]:
        assert set(re.findall(r"stepscope_\w+", variable["query"]["query"])) <= CATALOGUE.keys()


def test_panels_have_an_id_and_a_place_of_their_own() -> None:
    assert len({panel["id"] for panel in _PANELS}) == len(_PANELS)
    for one, other in combinations([panel["gridPos"] for panel in _PANELS], 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        below = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or below
