"""Trimmed traces say what whole ones say."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.core.errors import DataError
from stepscope.reference_workloads.suite.fixtures import TrimDetail, WholeTrace
from stepscope.workflow.analyze import analyze

LARGEST = {TrimDetail.LEDGER: 60_000, TrimDetail.KERNELS: 100_000}
"""Bytes of one eager step of a GPU that is kept busy."""


@pytest.mark.shared
@pytest.mark.parametrize("detail", TrimDetail)
def test_one_trimmed_step_of_a_real_run_has_its_verdict(
    shared_traces: Path, tmp_path: Path, detail: TrimDetail
) -> None:
    whole = shared_traces / "h100x2" / "straggler"
    for rank, path in enumerate(sorted(whole.glob("*.json.gz"))):
        trimmed = WholeTrace(path).trimmed(0, 1, detail)
        assert trimmed.steps == (5,)
        assert len(trimmed.content) < LARGEST[detail]
        (tmp_path / f"rank{rank}.json.gz").write_bytes(trimmed.content)
    expected = analyze([str(whole)], keep=False).analysis.verdict
    verdict = analyze([str(tmp_path)], keep=False).analysis.verdict
    assert (expected.cause, expected.reasons) == (verdict.cause, verdict.reasons)


moments = st.floats(min_value=0.0, max_value=1e6).map(lambda value: round(value, 3))


@given(st.lists(moments, min_size=4, max_size=4).map(sorted), st.sampled_from(TrimDetail))
def test_what_is_inside_something_stays_inside(
    tmp_path_factory: pytest.TempPathFactory, times: list[float], detail: TrimDetail
) -> None:
    begin, first, last, end = times
    thread = {"ph": "X", "pid": 1, "tid": 1}
    step = {**thread, "cat": "user_annotation", "name": "ProfilerStep#4", "ts": begin, "dur": end - begin + 1.0}
    send = {**thread, "cat": "cpu_op", "name": "c10d::send", "ts": first, "dur": last - first}
    path = tmp_path_factory.mktemp("trace") / "rank0.json.gz"
    path.write_bytes(gzip.compress(json.dumps({"baseTimeNanoseconds": 0, "traceEvents": [send, step]}).encode()))
    trimmed = json.loads(gzip.decompress(WholeTrace(path).trimmed(0, 1, detail).content))
    spans = {event["name"]: (event["ts"], event["ts"] + event["dur"]) for event in trimmed["traceEvents"]}
    inner, outer = spans["c10d::send"], spans["ProfilerStep#4"]
    assert outer[0] <= inner[0]
    assert inner[1] <= outer[1] + 1e-6
    assert inner[1] - inner[0] == pytest.approx(last - first, abs=0.11)


def test_what_is_no_trace_cannot_be_trimmed(tmp_path: Path) -> None:
    for name, content in (("broken", b"no gzip"), ("other", gzip.compress(json.dumps({"a": 1}).encode()))):
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(DataError, match="cannot be trimmed"):
            WholeTrace(path)


def test_a_trace_without_steps_is_refused(tmp_path: Path) -> None:
    event = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1.0, "dur": 2.0}
    path = tmp_path / "rank0.json.gz"
    path.write_bytes(gzip.compress(json.dumps({"traceEvents": [event]}).encode()))
    with pytest.raises(DataError, match="marks no steps"):
        WholeTrace(path)
