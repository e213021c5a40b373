"""CPU-bound is right too where the host holds up the GPU for longer than the fault of a labelled run does."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.labelled_runs.host_limit import kernels_ms_of, with_host_limit
from benchmarks.labelled_runs.score import checks_of
from stepscope.core.documents.analysis import Verdict
from stepscope.core.vocabulary import Cause

_FAULT: dict[str, Any] = {
    "what": "a fault",
    "bare_ms": 50.0,
    "fixed_ms": 40.0,
    "blocks_ms": {"check": [50.0, 52.0], "none": [39.0, 40.0, 44.0]},
    "launch_ms": 36.0,
    "cause": ["synchronization"],
    "reasons": ["reads_value"],
    "ranks": [1],
    "bottleneck": True,
    "share": 0.2,
}
_NO_FAULT = {key: value for key, value in _FAULT.items() if key != "share"} | {
    "cause": ["compute_bound"],
    "bottleneck": False,
}


@pytest.mark.parametrize(
    ("kernels_ms", "launch_ms", "is_right"),
    [(15.0, 36.0, True), (32.0, 36.0, False), (15.0, 30.0, False), (None, 36.0, False)],
)
def test_the_host_is_right_too_where_it_holds_up_the_gpu_for_longer(
    kernels_ms: float | None, launch_ms: float, is_right: bool
) -> None:
    truth = with_host_limit(_FAULT | {"launch_ms": launch_ms}, kernels_ms)
    assert ("also" in truth) is is_right
    assert {key: truth[key] for key in _FAULT if key != "launch_ms"} == {
        key: value for key, value in _FAULT.items() if key != "launch_ms"
    }
    assert with_host_limit(truth, kernels_ms) == truth


def test_without_a_fault_the_hosts_loss_leaves_the_bottleneck_open() -> None:
    truth = with_host_limit(_NO_FAULT, 30.0)
    assert truth["cause"] == ["compute_bound", "host_bound", "synchronization"]
    assert truth["bottleneck"] is None
    assert with_host_limit(_NO_FAULT, 36.0) == _NO_FAULT


@pytest.mark.parametrize(("share", "wrong"), [(0.3, None), (0.1, "0.100 for 0.200 or more")])
def test_another_right_cause_must_take_more_than_the_fault(share: float, wrong: str | None) -> None:
    verdict = Verdict(Cause.HOST_BOUND, [], 0.9, "", [], [], [], [], bottleneck=True, share=share)
    checks = checks_of(verdict, with_host_limit(_FAULT, 15.0), 0.1)
    assert checks == {"cause": None, "bottleneck": None, "share": wrong}


def test_kernels_of_a_step_are_those_of_the_rank_with_least(tmp_path: Path) -> None:
    folder = tmp_path / "traces" / "step3"
    folder.mkdir(parents=True)
    for rank, dur in enumerate((2_000, 3_000)):
        marks = [{"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{step}"} for step in (3, 4)]
        kernel = {"ph": "X", "cat": "kernel", "name": "gemm", "dur": dur}
        waits = {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce", "dur": 90_000}
        content = json.dumps({"traceEvents": [*marks, *[kernel] * 4, waits]})
        (folder / f"rank{rank}.json.gz").write_bytes(gzip.compress(content.encode()))
    assert kernels_ms_of(tmp_path) == 4.0
    assert kernels_ms_of(tmp_path / "traces") is None
