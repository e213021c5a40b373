"""`stepscope export`: Perfetto traces and tables."""

from __future__ import annotations

import shutil
from pathlib import Path

import pandas as pd
import pytest
from click.testing import CliRunner

import stepscope
from stepscope.api.export import TABLES
from stepscope.cli import root

_RECORDED = Path(__file__).parents[1] / "reference_workloads/suite/recorded/ddp-straggler"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recorded run of two H200s."""
    return Path(shutil.copytree(_RECORDED, tmp_path_factory.mktemp("runs") / "ddp"))


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_every_table_is_read_back_as_its_frame(run: Path, tmp_path: Path, kind: str) -> None:
    result = CliRunner().invoke(root, ["export", str(run), "--format", kind, "-o", str(tmp_path)])
    assert result.stdout == f"{tmp_path}: {len(TABLES)} tables\n"
    loaded = stepscope.load(run)
    for name, make in TABLES.items():
        path, frame = tmp_path / f"{name}.{kind}", make(loaded)
        read = pd.read_csv(path) if kind == "csv" else pd.read_parquet(path)
        assert len(read) == len(frame), name
        numbers = frame.select_dtypes("float64").columns
        for column in numbers:
            assert read[column].tolist() == pytest.approx(frame[column].tolist(), nan_ok=True, rel=1e-12), (
                name,
                column,
            )


def test_tables_without_step_records_name_what_is_missing(tmp_path: Path) -> None:
    traces = [str(path) for path in sorted(_RECORDED.rglob("traces/step*/rank*.json.gz"))]
    result = CliRunner().invoke(root, ["export", *traces, "--format", "csv", "-o", str(tmp_path)])
    assert result.exit_code == 0
    assert "warning: steps: " in result.stderr
    assert not (tmp_path / "steps.csv").exists()


def test_tables_name_a_trace_that_cannot_be_used_once(tmp_path: Path) -> None:
    for path in sorted(_RECORDED.rglob("traces/step*/rank*.json.gz")):
        shutil.copy(path, tmp_path)
    (tmp_path / "rank1.json.gz").write_bytes(b"no trace")
    result = CliRunner().invoke(root, ["export", str(tmp_path), "--format", "csv", "-o", str(tmp_path / "out")])
    assert result.exit_code == 0
    assert result.stderr.count("rank1.json.gz") == 1
    assert "UserWarning" not in result.stderr


def test_a_trace_for_perfetto(run: Path, tmp_path: Path) -> None:
    output = tmp_path / "one.json.gz"
    arguments = ["export", str(run), "--format", "perfetto", "--ranks", "0-1", "--end", "50", "-o", str(output)]
    result = CliRunner().invoke(root, arguments)
    assert result.stdout.startswith(f"{output}: rank 0–1, ")
    assert output.stat().st_size > 1000


@pytest.mark.parametrize("ranks", ["", "a", "3-1", "1-", "-1", "0-99999999"])
def test_ranks_that_are_none_are_refused(run: Path, ranks: str) -> None:
    result = CliRunner().invoke(root, ["export", str(run), "--format", "perfetto", "--ranks", ranks])
    assert result.exit_code == 2
    assert "--ranks takes numbers and ranges" in result.output


def test_options_of_perfetto_are_refused_for_tables(run: Path) -> None:
    result = CliRunner().invoke(root, ["export", str(run), "--format", "csv", "--start", "1"])
    assert result.exit_code == 2
    assert "--format perfetto" in result.output
