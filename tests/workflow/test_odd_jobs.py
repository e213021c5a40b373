"""An analysis survives inputs that no profiler should write, as found by the fuzzer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stepscope.core.vocabulary import Cause
from stepscope.store.documents import decode_analysis, encode_document
from stepscope.workflow.analyze import analyze
from stepscope.workflow.what_if import what_if
from tests.workflow.written_traces import STEPS, trace_document


def _written(tmp_path: Path, document: dict[str, Any]) -> list[str]:
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps(document))
    return [str(path)]


def _mark(name: str, ts: float, dur: float) -> dict[str, Any]:
    return {"ph": "X", "cat": "user_annotation", "name": name, "pid": 100, "tid": 1, "ts": ts, "dur": dur, "args": {}}


def test_marked_passes_are_seen_without_steps_too(tmp_path: Path) -> None:
    document = trace_document(0, world_size=1)
    document["traceEvents"] += [_mark(f"PP:0F{step}", 20 * step, 19) for step in range(STEPS)]
    analysis = analyze(_written(tmp_path, document), whole_file=True, keep=False).analysis
    assert analysis.job.num_steps == 1
    assert sum(analysis.ledger.values()) == pytest.approx(1)


def test_a_last_step_of_no_length_is_none(tmp_path: Path) -> None:
    document = trace_document(0, world_size=1)
    operator = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 100, "tid": 1, "ts": 1, "dur": 150, "args": {}}
    marks = [_mark("ProfilerStep#0", 0, 100), _mark("ProfilerStep#1", 100, 100), _mark("ProfilerStep#2", 200, 0)]
    analysis = analyze(_written(tmp_path, document | {"traceEvents": [operator, *marks]}), keep=False).analysis
    assert [step.ms for step in analysis.ranks[0].steps] == [0.1, 0.1]
    assert decode_analysis(encode_document(analysis)) == analysis


def test_a_fix_that_leaves_nothing_of_the_step_has_no_figure(tmp_path: Path) -> None:
    document = trace_document(0, world_size=1)
    document["traceEvents"] = [event | {"ts": 0, "dur": 0} for event in document["traceEvents"][:5]]
    for event in document["traceEvents"]:
        if "ProfilerStep" in event["name"] or "nccl" in event["name"]:
            event["dur"] = 90
    report = what_if(_written(tmp_path, document))
    assert report.measured_step_ms == 0.09
    assert {fix.fix for fix in report.fixes} == {Cause.HOST_BOUND, Cause.SYNCHRONIZATION}  # free transfers: no step


@pytest.mark.parametrize("stream", [-1, 0, -(2**40)])
def test_a_stream_may_have_any_number(tmp_path: Path, stream: int) -> None:
    document = trace_document(0, world_size=1)
    for event in document["traceEvents"]:
        if event["cat"] == "kernel":
            event["tid"] = event["args"]["stream"] = stream
            event["name"] = "void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor<float>>"
    paths = _written(tmp_path, document)
    analysis = analyze(paths, keep=False).analysis
    assert analysis.job.num_steps == STEPS
    assert sum(kernel.count for kernel in analysis.roofline.kernels) == STEPS
    assert what_if(paths).measured_step_ms == pytest.approx(0.1)
