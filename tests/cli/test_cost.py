"""`stepscope cost`: table, CSV and JSON of a made-up month."""

from __future__ import annotations

import csv
import io
import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import CliRunner

import stepscope
from stepscope.cli import root
from tests.workflow.made_up_month import DAYS, END_NS, START_NS, Month

_TIME = [
    part
    for option, time_ns in (("--start", START_NS), ("--end", END_NS))
    for part in (option, datetime.fromtimestamp(time_ns // 10**9, UTC).isoformat())
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The history of a month with few jobs."""
    path = tmp_path_factory.mktemp("cost") / "history"
    Month.made_up(3, num_jobs=12).write(path)
    return path


def _cost(folder: Path, *more: str) -> str:
    result = CliRunner().invoke(root, ["cost", "--history", str(folder), *_TIME, *more], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_json_csv_and_the_python_api_have_the_same_rows(folder: Path) -> None:
    document = json.loads(_cost(folder, "--json"))
    rows = list(csv.DictReader(io.StringIO(_cost(folder, "--csv"))))
    assert document["schema"] == "stepscope.cost/1"
    assert [float(row["gpu_hours"]) for row in rows] == [row["figures"]["gpu_hours"] for row in document["rows"]]
    assert [row["job_id"] for row in rows] == [row["key"]["job_id"] for row in document["rows"]]
    report = stepscope.history(str(folder)).cost(start=START_NS / 1e9, end=END_NS / 1e9)
    assert report.to_dict() == document
    assert report.table()["figures.gpu_hours"].sum() == pytest.approx(document["held"]["gpu_hours"])


def test_the_table_ends_with_what_no_job_had_and_all_gpus(folder: Path, tmp_path: Path) -> None:
    rates = tmp_path / "rates.toml"
    rates.write_text('currency = "EUR"\n[gpu_hour]\ndefault = 2.0\n')
    lines = _cost(folder, "--by", "user", "--rates", str(rates)).splitlines()
    assert lines[0].startswith("16 GPUs, ")
    assert "EUR" in lines[2]
    free, all_gpus = [line.split() for line in lines if line.strip()][-2:]
    assert free[:2] == ["no", "job"]
    assert all_gpus[:3] == ["all", "GPUs", f"{16 * DAYS * 24:,.1f}"]
    assert f"{2 * 16 * DAYS * 24:,.2f}" in all_gpus


def test_csv_and_json_at_once_are_refused(folder: Path) -> None:
    result = CliRunner().invoke(root, ["cost", "--history", str(folder), "--csv", "--json"])
    assert result.exit_code == 2
