"""`stepscope whatif`: one document on stdout, and one line for what it cannot do."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.workflow.written_traces import write_trace


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "stepscope", "whatif", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture
def job(tmp_path: Path) -> Path:
    write_trace(tmp_path / "rank0.json.gz", 0)
    write_trace(tmp_path / "rank1.json.gz", 1, compute_us=75)
    return tmp_path


def test_json_is_the_whole_document(job: Path) -> None:
    done = run("--json", "--fix", "straggler", "--unprofiled-ms", "0.09", str(job))
    document = json.loads(done.stdout)
    assert done.returncode == 0
    assert document["schema"] == "stepscope.whatif/1"
    assert document["measured_step_ms"] == pytest.approx(0.1)
    assert document["unprofiled_step_ms"] == 0.09
    assert document["slowdown"] == pytest.approx(document["measured_step_ms"] / document["ideal_step_ms"])
    assert [fix["fix"] for fix in document["fixes"]] == ["straggler"]
    assert document["fixes"][0]["ranks"] == [1]


def test_piped_text_gives_the_replay_error_before_the_fixes(job: Path) -> None:
    done = run(str(job))
    assert "\x1b" not in done.stdout
    places = [done.stdout.index(part) for part in ("Replay of profiled steps ", "(model error ", "straggler")]
    assert places == sorted(places)
    assert "gains of the profiled steps alone" in done.stdout


def test_an_unknown_fix_is_a_usage_error(job: Path) -> None:
    done = run("--fix", "weather", str(job))
    assert done.returncode == 2
    assert '--fix: unknown fix "weather"; known: ' in done.stderr
    assert "data_loading" in done.stderr


def test_traces_without_steps_are_refused_in_one_line(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "rank0.json", 0)
    document = json.loads(path.read_text())
    document["traceEvents"] = [e for e in document["traceEvents"] if "ProfilerStep" not in e.get("name", "")]
    path.write_text(json.dumps(document))
    done = run(str(tmp_path))
    assert done.returncode == 3
    assert len(done.stderr.strip().splitlines()) == 1
    assert "cannot be replayed" in done.stderr
