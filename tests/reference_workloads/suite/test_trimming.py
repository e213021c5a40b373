"""Trimmed traces say what whole ones say."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from stepscope.core.errors import DataError
from stepscope.reference_workloads.suite.trimming import trim
from stepscope.workflow.analyze import analyze


def test_two_trimmed_steps_of_a_real_run_have_its_verdict(shared_traces: Path, tmp_path: Path) -> None:
    whole = shared_traces / "h100x2" / "straggler"
    for rank, path in enumerate(sorted(whole.glob("*.json.gz"))):
        trimmed = trim(path, num_steps=2)
        assert trimmed.steps == (5, 6)
        assert len(trimmed.content) < path.stat().st_size / 3
        (tmp_path / f"rank{rank}.json.gz").write_bytes(trimmed.content)
    expected = analyze([str(whole)], keep=False).analysis.verdict
    verdict = analyze([str(tmp_path)], keep=False).analysis.verdict
    assert (expected.cause, expected.reasons) == (verdict.cause, verdict.reasons)


def test_what_is_no_trace_cannot_be_trimmed(tmp_path: Path) -> None:
    for name, content in (("broken", b"no gzip"), ("other", gzip.compress(json.dumps({"a": 1}).encode()))):
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(DataError, match="cannot be trimmed"):
            trim(path, num_steps=2)


def test_a_trace_without_steps_is_refused(tmp_path: Path) -> None:
    event = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1.0, "dur": 2.0}
    path = tmp_path / "rank0.json.gz"
    path.write_bytes(gzip.compress(json.dumps({"traceEvents": [event]}).encode()))
    with pytest.raises(DataError, match="marks no steps"):
        trim(path, num_steps=2)
