"""The Python of guides and notebooks runs, and the reference lists every frame."""

from __future__ import annotations

import inspect
import json
import re
import shutil
import sys
import time
from pathlib import Path

import pytest

from stepscope import api
from stepscope.api.reports import MADE, row_types
from stepscope.api.run import Run
from stepscope.store.history.writer import HistoryWriter
from tests.store.history.blocks import MINUTE, POWER, START, block, gpu, maintain

_ROOT = Path(__file__).parents[2]
_RECORDED = _ROOT / "tests/reference_workloads/suite/recorded/ddp-straggler"
_BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", ["guides/python-api.md"])
def test_the_code_of_a_guide_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(_RECORDED, tmp_path / "runs/gpt-7b")
    _write_history(tmp_path / "stepscope-history")
    (tmp_path / "rates.toml").write_text("[gpu_hour]\ndefault = 2.0\n")
    monkeypatch.chdir(tmp_path)
    _run(page, _BLOCK.findall((_ROOT / "docs" / page).read_text()))


def _write_history(folder: Path) -> None:
    """Two hours until now of two GPUs that a job has."""
    now = time.time_ns()
    holds = {"job_kind": "slurm", "job_id": "7", "share": "exclusive"}
    with HistoryWriter(folder) as writer:
        for minute in range(120):
            at = now - (119 - minute) * MINUTE
            gpus = [gpu(0), gpu(1)]
            writer.append(
                block(gpus, at, stepscope_gpu_sm_active_ratio=[0.5, 0.7], stepscope_gpu_power_watts=[500, 600])
            )
            writer.append(block([gpu(number, **holds) for number in (0, 1)], at, stepscope_gpu_job_info=[1, 1]))
            states = [gpu(number, state="busy") for number in (0, 1)]
            writer.append(block(states, at, stepscope_gpu_use_state=[1, 1]))
        writer.flush()


def test_the_code_of_the_history_guide_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("duckdb", "pandas", "polars", "pyarrow"):
        pytest.importorskip(package)
    clock = [START]
    with HistoryWriter(tmp_path / "history", clock=lambda: clock[0]) as writer:
        for minute in range(1, 130):
            clock[0] = START + minute * MINUTE
            writer.append(block([gpu(0, rack="r1"), gpu(1, rack="r1")], clock[0], **{POWER: [100.0, 300.0]}))
            writer.flush()
            maintain(writer)
    monkeypatch.chdir(tmp_path)
    _run("guides/history.md", _BLOCK.findall((_ROOT / "docs/guides/history.md").read_text()))


@pytest.mark.parametrize("notebook", sorted(path.name for path in (_ROOT / "docs/notebooks").glob("*.ipynb")))
def test_the_cells_of_a_notebook_run(notebook: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(_RECORDED, tmp_path / "runs/gpt-7b")
    monkeypatch.chdir(tmp_path)
    cells = json.loads((_ROOT / "docs/notebooks" / notebook).read_text())["cells"]
    _run(notebook, ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"])
    assert not any(cell.get("outputs") for cell in cells)


def _run(page: str, blocks: list[str]) -> None:
    assert blocks
    names: dict[str, object] = {}
    for code in blocks:
        exec(compile(code, page, "exec"), names)


def test_the_reference_lists_every_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(_ROOT / "docs/_ext"))
    from stepscope_reference.frames import ROWS, columns, frames, report_calls

    methods = inspect.getmembers(Run, inspect.isfunction)
    made = {name for name, method in methods if inspect.signature(method).return_annotation == "pd.DataFrame"}
    assert set(ROWS) == made
    page = frames()
    assert all(f"## `run.{name}()`" in page for name in made)
    assert [row for kind in ROWS.values() if kind for row in columns(kind) if not row[2]] == []
    calls = set(api.__all__) - {"History", "Report", "Run", "history", "load"}
    assert set(report_calls()) == calls | {"history(...).cost", "history(...).jobs"}
    for call, document in report_calls().items():
        frames_of_call = {*row_types(document), *MADE.get(call, {})} - {"warnings"}
        assert all(f"### `{call}.{frame}`" in page for frame in frames_of_call)
        assert [row for kind in row_types(document).values() for row in columns(kind) if not row[2]] == []
    for name in ("range", "latest", "events", "metrics"):
        assert f"## `stepscope.history(...).{name}()`" in page
    sys.modules.pop("stepscope_reference.frames", None)
