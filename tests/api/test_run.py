"""A run in the Python API: its frames are the document of `analyze --json`."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import fsspec
import pandas as pd
import pytest
from click.testing import CliRunner

import stepscope
from stepscope.api.run import Run
from stepscope.cli import root
from stepscope.core.errors import DataError, UsageError
from stepscope.trace.columns import DEVICE_CATEGORIES
from stepscope.trace.reading import read_ranks

_RECORDED = Path(__file__).parents[1] / "reference_workloads/suite/recorded"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recorded run with two ranks, pipelined, with step records."""
    return Path(shutil.copytree(_RECORDED / "pp-few_micro_batches", tmp_path_factory.mktemp("runs") / "pp"))


@pytest.fixture(scope="module")
def run(folder: Path) -> Run:
    loaded: Run = stepscope.load(folder)
    return loaded


@pytest.fixture(scope="module")
def document(folder: Path) -> dict[str, Any]:
    return _json("analyze", str(folder))


def _json(*arguments: str) -> dict[str, Any]:
    result = CliRunner().invoke(root, [*arguments, "--json"])
    document: dict[str, Any] = json.loads(result.stdout)
    return document


def test_the_document_is_that_of_the_command(run: Run, document: dict[str, Any]) -> None:
    assert run.to_dict() == document
    assert run.verdict.summary == document["verdict"]["summary"]
    assert [notice.message for notice in run.warnings] == [one["message"] for one in document["warnings"]]


def test_breakdown_of_the_job(run: Run, document: dict[str, Any]) -> None:
    frame = run.breakdown()
    assert frame["fraction"].dropna().to_dict() == document["ledger"]
    assert frame["training_share"].dropna().to_dict() == document["job_time"]["breakdown"]


def test_breakdown_by_rank_and_step(run: Run, document: dict[str, Any]) -> None:
    ranks, steps = run.breakdown(by="rank"), run.breakdown(by="step")
    assert ranks.T.to_dict() == {rank["rank"]: rank["ledger"] for rank in document["ranks"]}
    for rank in document["ranks"]:
        for step in rank["steps"]:
            assert steps.loc[(rank["rank"], step["index"])].to_dict() == {"ms": step["ms"], **step["ledger"]}


def test_steps_and_phases_are_those_of_the_step_records(run: Run, folder: Path) -> None:
    document = _json("steps", str(folder))
    frame, phases = run.steps(), run.breakdown(by="phase")
    assert frame["ms"].to_dict() == {step["index"]: step["ms"] for step in document["steps"]}
    assert phases["share"].to_dict() == {"data": document["data_wait"], **document["phases"]}


@pytest.mark.parametrize(
    ("frame", "path", "column"),
    [
        ("root_causes", "root_causes", "fraction"),
        ("kernels", "roofline.kernels", "ms"),
        ("operators", "roofline.by_operator", "ms"),
        ("modules", "roofline.by_module", "ms"),
        ("copies", "roofline.copies", "ms"),
        ("findings", "roofline.findings", "ms"),
        ("collectives", "collectives", "count"),
        ("arrivals", "arrivals", "mean_late_ms"),
        ("pipeline", "pipeline", "measured"),
        ("what_if", "what_if", "step_ms"),
        ("evidence", "verdict.evidence", "value"),
    ],
)
def test_each_list_is_a_frame(run: Run, document: dict[str, Any], frame: str, path: str, column: str) -> None:
    rows: Any = document
    for name in path.split("."):
        rows = rows[name]
    rows = rows if isinstance(rows, list) else [rows]
    found = getattr(run, frame)().reset_index()
    assert found[column].tolist() == [row[column] for row in rows]
    for place, row in enumerate(rows):
        for name, value in _flat(row):
            if name in found:
                own = found[name].iloc[place]
                assert own == value if isinstance(own, (list, str)) else pd.isna(own) if value is None else own == value
            else:
                assert value is None or (frame, name) == ("root_causes", "evidence"), name


def _flat(row: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Names of columns and values of a row of the document."""
    found: list[tuple[str, Any]] = []
    for key, value in row.items():
        if isinstance(value, dict):
            found += _flat(value, f"{prefix}{key}.")
        elif "interval" in key and value is not None:
            found += [(f"{prefix}{key}.low", value[0]), (f"{prefix}{key}.high", value[1])]
        else:
            found.append((prefix + key, value))
    return found


def test_a_replay_of_chosen_causes_is_that_of_whatif(run: Run, folder: Path) -> None:
    document = _json("whatif", str(folder), "--fix", "pipeline_bubble")
    assert run.what_if("pipeline_bubble")["step_ms"].tolist() == [fix["step_ms"] for fix in document["fixes"]]
    with pytest.raises(UsageError, match="unknown cause"):
        run.what_if("magic")


def test_launches_have_every_kernel_of_the_traces() -> None:
    paths = sorted((_RECORDED / "ddp-straggler").rglob("rank*.json.gz"))
    frame = stepscope.load(paths).kernels(by="launch")
    traces = [trace for path in paths for trace in read_ranks(path)]
    assert len(frame) == sum(len(trace.rows_of(*DEVICE_CATEGORIES)) for trace in traces)
    for rank, trace in enumerate(traces):
        rows = trace.rows_of(*DEVICE_CATEGORIES)
        own = frame[frame["rank"] == rank]
        assert own["duration_ns"].sum() == int((trace.end_ns[rows] - trace.start_ns[rows]).sum())
        assert set(own["name"]) == {trace.names[name] for name in trace.name[rows].tolist()}
    assert frame.sort_values(["rank", "start"]).index.is_monotonic_increasing


def test_a_saved_analysis_is_loaded_as_it_is(document: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "kept.json"
    path.write_text(json.dumps(document))
    assert stepscope.load(path).to_dict() == document


def test_nothing_is_read_before_it_is_asked_for(tmp_path: Path) -> None:
    run = stepscope.load(tmp_path / "none")
    with pytest.raises(DataError):
        _ = run.verdict


@pytest.mark.parametrize("call", [lambda run: run.breakdown("weeks"), lambda run: run.kernels("colour")])
def test_an_unknown_grouping_names_the_known_ones(run: Run, call: Any) -> None:
    with pytest.raises(UsageError, match="known:"):
        call(run)


def test_a_notebook_shows_verdict_and_breakdown(run: Run) -> None:
    html = run._repr_html_()
    assert "pipeline" in html
    assert html.count("<tr>") > 10


def test_importing_stepscope_loads_no_pandas() -> None:
    code = "import sys, stepscope; print('pandas' in sys.modules, callable(stepscope.load), 'pandas' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True", "True"]


def test_without_pandas_the_extra_is_named() -> None:
    code = "import sys; sys.modules['pandas'] = None; import stepscope; stepscope.load"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert 'pip install "stepscope[notebook]"' in done.stderr


def test_comparison_frame_has_every_difference(folder: Path) -> None:
    report = stepscope.compare(folder, folder)
    document = _json("compare", str(folder), str(folder))
    assert report.to_dict() == document
    frame = report.table()
    assert frame.loc[("step_time", ""), "a"] == document["step_time"]["a"]
    for row in document["headings"]:
        found = frame.loc[("headings", row["heading"]), "change"]
        assert found == row["ms"]["change"] or (pd.isna(found) and row["ms"]["change"] is None)
    with pytest.raises(UsageError, match="unknown table"):
        report.table("nothing")


def test_a_folder_with_one_run_is_that_run(folder: Path, document: dict[str, Any]) -> None:
    inside = stepscope.load(folder.parent)
    assert inside.to_dict() == document
    assert len(inside.steps()) == len(stepscope.load(folder).steps())
    assert not inside.kernels(by="launch").empty


def test_a_trace_that_cannot_be_used_is_left_out_with_a_warning(tmp_path: Path) -> None:
    for path in sorted((_RECORDED / "ddp-straggler").rglob("rank*.json.gz")):
        shutil.copy(path, tmp_path)
    (tmp_path / "rank1.json.gz").write_bytes(b"no trace")
    with pytest.warns(UserWarning, match="rank1.json.gz"):
        frame = stepscope.load(tmp_path).kernels(by="launch")
    assert set(frame["rank"]) == {0}
    (tmp_path / "rank0.json.gz").write_bytes(b"no trace")
    with pytest.raises(DataError, match="none of 2 files"):
        stepscope.load(tmp_path).kernels(by="launch")


def test_phases_need_no_analysis(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepscope.workflow.analyze.analyze", None)
    monkeypatch.setattr("stepscope.store.runs.has_current_analysis", lambda _: False)
    assert list(stepscope.load(folder).breakdown(by="phase").index) == ["data"]


def test_a_notebook_shows_why_a_run_cannot_be_read(tmp_path: Path) -> None:
    html = stepscope.load(tmp_path / "<none>")._repr_html_()
    assert "&lt;none&gt;: does not exist" in html


@pytest.mark.parametrize("paths", [[], None, 7, b"run", ["a", None]])
def test_what_is_no_path_is_one_line(paths: Any) -> None:
    with pytest.raises(UsageError, match="path"):
        stepscope.load(paths)


@pytest.mark.parametrize("capture", ["all", 1.5, True])
def test_a_capture_is_a_number(folder: Path, capture: Any) -> None:
    with pytest.raises(UsageError, match="is not the number of a capture"):
        stepscope.load(folder, capture=capture)


def test_a_run_below_a_url_has_its_records(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    fsspec.filesystem("memory").put(str(folder), "/api-runs/pp", recursive=True)
    stored, here = stepscope.load("memory://api-runs/pp"), stepscope.load(folder)
    pd.testing.assert_frame_equal(stored.steps(), here.steps())
    pd.testing.assert_frame_equal(stored.breakdown(by="rank"), here.breakdown(by="rank"))
    lost = stepscope.goodput("memory://api-runs/pp")
    assert lost.table()["rank_seconds"].tolist() == stepscope.goodput(folder).table()["rank_seconds"].tolist()
    with pytest.raises(DataError, match="is not a run"):
        stepscope.load("memory://api-runs/none").steps()
