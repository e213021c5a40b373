"""`stepscope report` and `analyze --html` write the file and print its path."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.test_analyze import run
from tests.workflow.written_traces import write_trace


def test_report_writes_one_file_and_keeps_stdout_clean(tmp_path: Path) -> None:
    write_trace(tmp_path / "job" / "rank0.json.gz", 0, world_size=1)
    done = run("report", str(tmp_path / "job"), "-o", str(tmp_path / "x.html"))
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.startswith(f"wrote {tmp_path / 'x.html'} (")
    assert (tmp_path / "x.html").read_text().startswith("<!DOCTYPE html>")


def test_analyze_writes_it_beside_its_own_output(tmp_path: Path) -> None:
    write_trace(tmp_path / "job" / "rank0.json.gz", 0, world_size=1)
    done = run("analyze", "--json", "--html", str(tmp_path / "x.html"), str(tmp_path / "job"))
    assert done.returncode == 0
    assert json.loads(done.stdout)["schema"] == "stepscope.analysis/1"
    assert 'id="timeline"' in (tmp_path / "x.html").read_text()


def test_what_cannot_be_used_is_one_line_and_exit_code_3(tmp_path: Path) -> None:
    done = run("report", str(tmp_path / "absent"), "-o", str(tmp_path / "x.html"))
    assert (done.returncode, done.stderr.count("\n")) == (3, 1)
    assert not (tmp_path / "x.html").exists()
