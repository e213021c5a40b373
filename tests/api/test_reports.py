"""Reports of the Python API: the documents of `--json`, and their lists as frames."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import stepscope
from stepscope.cli import root
from stepscope.core.errors import DataError, UsageError

_TESTS = Path(__file__).parents[1]
_RECORDED = _TESTS / "reference_workloads/suite/recorded"


def _json(*arguments: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(CliRunner().invoke(root, [*arguments, "--json"]).stdout)
    return document


def test_stored_runs_and_goodput(tmp_path: Path) -> None:
    for name in ("ddp-straggler", "ddp-slow_loader"):
        shutil.copytree(_RECORDED / name, tmp_path / name)
    listed, document = stepscope.runs(tmp_path), _json("runs", "list", str(tmp_path))
    assert listed.to_dict() == document
    assert listed.table()["name"].tolist() == [run["name"] for run in document["runs"]]
    assert listed.table()["bytes.traces"].tolist() == [run["bytes"]["traces"] for run in document["runs"]]
    lost = stepscope.goodput(tmp_path)
    assert lost.to_dict() == _json("goodput", str(tmp_path))
    assert len(lost.table("jobs")) == 2


def test_contents_of_a_trace() -> None:
    path = str(next((_RECORDED / "ddp-straggler").rglob("rank0.json.gz")))
    info, document = stepscope.trace_info(path), _json("trace", "info", path)
    assert info.to_dict() == document
    assert info.table()["rank"].tolist() == [0]


def test_a_table_that_is_not_there_names_those_that_are(tmp_path: Path) -> None:
    shutil.copytree(_RECORDED / "ddp-straggler", tmp_path / "a")
    with pytest.raises(UsageError, match="known: runs"):
        stepscope.runs(tmp_path).table("sizes")


@pytest.mark.parametrize("call", [stepscope.hang, stepscope.memory, stepscope.nccl, stepscope.goodput])
def test_what_cannot_be_read_raises_the_commands_line(call: Any, tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        call(tmp_path / "none")
    assert "\n" not in str(caught.value)


def test_a_machine_without_an_agent_is_a_finding() -> None:
    report = stepscope.status("http://127.0.0.1:1")
    assert len(report.document.warnings) == 1
    assert "warnings" in report.tables
