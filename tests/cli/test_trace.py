"""`stepscope trace info`: data on stdout, warnings on stderr, documented exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "stepscope", "trace", "info", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture
def trace(tmp_path: Path) -> str:
    path = tmp_path / "rank2.json"
    event = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 1.5, "dur": 2}
    groups = [{"pg_name": "0", "pg_desc": "dp", "ranks": [0, 1, 2, 3, 8, 10, 11]}]
    info = {"world_size": 12, "rank": 2, "pg_config": groups}
    path.write_text(json.dumps({"distributedInfo": info, "traceEvents": [event]}))
    return str(path)


def test_json_document_has_schema_files_and_warnings(trace: str) -> None:
    done = _run("--json", trace, "absent.json")
    document = json.loads(done.stdout)
    assert next(iter(document)) == "schema"
    assert document["schema"] == "stepscope.trace_info/1"
    assert document["files"][0]["rank"] == 2
    assert document["files"][0]["num_by_category"] == {"kernel": 1}
    assert document["warnings"][0]["code"] == "unusable_file"
    assert (done.returncode, "absent.json" in done.stderr) == (0, True)


def test_piped_output_is_plain_lines_that_name_the_file(trace: str) -> None:
    lines = _run(trace).stdout.splitlines()
    assert all(line.startswith(f"{trace}: ") for line in lines)
    assert f"{trace}: rank: 2 of 12 (backend unknown)" in lines
    assert f"{trace}: group 0: dp (ranks 0-3, 8, 10-11), named by 0 calls" in lines
    assert f"{trace}: problems: none" in lines


def test_nothing_usable_exits_3_with_one_line(tmp_path: Path) -> None:
    done = _run(str(tmp_path / "absent.json"))
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (3, "", 1)
