"""Grafana boards: queries of existing metrics, without overlapping panels; the fleet's has no line a GPU."""

from __future__ import annotations

import json
import re
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.grafana.board import FILES, boards
from stepscope.agent.exporter.exposition import CATALOGUE
from tests.deploy.conftest import DEPLOY, Run

_BOARDS = boards()
_VARIABLES = re.compile(r"\$(instance|gpu|cluster|rack|job|node)\b")
each_board = pytest.mark.parametrize("name", _BOARDS)


def _targets(name: str) -> list[dict[str, Any]]:
    return [target for panel in _BOARDS[name]["panels"] for target in panel.get("targets", ())]


def queries(name: str) -> list[str]:
    """All PromQL of a board, of all machines, jobs and GPUs."""
    found = [target["expr"] for target in _targets(name)]
    return [_VARIABLES.sub(".*", query).replace("$__rate_interval", "1m") for query in found]


def series_of_variables(name: str) -> list[tuple[str, str]]:
    """Selector and label of each variable of a board, whatever is chosen before."""
    asked = [variable["query"]["query"] for variable in _BOARDS[name]["templating"]["list"][1:]]
    found = [re.fullmatch(r"label_values\((.*), (\w+)\)", _VARIABLES.sub(".*", query)) for query in asked]
    return [(match[1], match[2]) for match in found if match is not None]


def _recorded() -> set[str]:
    files = [
        yaml.safe_load((DEPLOY / "prometheus" / name).read_text()) for name in ("rules.yml", "recording_rules.yml")
    ]
    return {rule["record"] for file in files for group in file["groups"] for rule in group["rules"] if "record" in rule}


@each_board
def test_the_file_is_what_the_program_writes(name: str) -> None:
    assert json.loads(FILES[name].read_text()) == _BOARDS[name], "run: python -m deploy.grafana.board"


@each_board
def test_it_asks_for_metrics_that_there_are(name: str) -> None:
    asked = [*queries(name), *(selector for selector, _ in series_of_variables(name))]
    text = " ".join(asked).replace('job="stepscope"', "").replace("stepscope_gpu_(job_info|up)", "stepscope_gpu_up")
    used = set(re.findall(r"[a-z_]*:?\bstepscope\w*(?::\w+)*", text))
    assert len(used) > 25
    assert used <= CATALOGUE.keys() | _recorded()
    assert len(series_of_variables(name)) == len(_BOARDS[name]["templating"]["list"]) - 1


@each_board
def test_panels_have_an_id_and_a_place_of_their_own(name: str) -> None:
    panels = _BOARDS[name]["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for one, other in combinations([panel["gridPos"] for panel in panels], 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        below = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or below


def test_the_boards_are_two() -> None:
    assert len({board["uid"] for board in _BOARDS.values()}) == 2
    assert [label for _, label in series_of_variables("fleet")] == ["cluster", "rack", "job_id", "instance"]


def test_the_fleets_board_draws_no_line_a_gpu() -> None:
    for panel in _BOARDS["fleet"]["panels"]:
        for target in panel.get("targets", ()):
            query = target["expr"]
            is_short = query.startswith(("topk(", "bottomk("))
            is_sum = re.match(r"(sum|count|avg|max|quantile)\b", query) is not None
            assert is_short or is_sum, query
            if panel["type"] == "timeseries":
                assert "instance" not in target["legendFormat"]


def test_the_node_board_marks_the_events_that_an_operator_acknowledged(run: Run, tmp_path: Path) -> None:
    (query,) = (one for one in queries("gpus") if "health_event" in one)
    labels = 'instance="n1",gpu="%d",code="gpu_lost"'
    marked = '{acknowledged="%s",code="gpu_lost",gpu="%d",instance="n1"}'
    series = [f"stepscope_gpu_health_event{{{labels % gpu}}}" for gpu in (0, 1)]
    series.append(f"stepscope_gpu_health_event_acknowledged{{{labels % 1}}}")
    samples = [
        {"labels": f"stepscope_gpu_health_event{marked % ('no', 0)}", "value": 1},
        {"labels": f"stepscope_gpu_health_event_acknowledged{marked % ('yes', 1)}", "value": 1},
    ]
    test = {
        "input_series": [{"series": one, "values": "1"} for one in series],
        "promql_expr_test": [{"expr": query, "eval_time": "0m", "exp_samples": samples}],
    }
    (tmp_path / "test.yml").write_text(yaml.safe_dump({"tests": [test]}))
    done = run("promtool", "test", "rules", "test.yml", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
