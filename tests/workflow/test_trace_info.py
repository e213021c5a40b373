"""The information on a trace describes its content, and files that cannot be used are named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stepscope.core.errors import DataError
from stepscope.workflow.trace_info import GroupInfo, TraceProblems, read_trace_info


def _event(ts: float, **changes: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": ts, "dur": 10} | changes


def _write(path: Path, **metadata: Any) -> str:
    collective = {"Collective name": "allreduce", "Process Group Name": "0", "Process Group Ranks": "[0, 1]"}
    events = [
        _event(5, name="ProfilerStep#6", cat="user_annotation"),
        _event(3, name="ProfilerStep#5", cat="user_annotation"),
        _event(20, name="nccl", cat="kernel", pid=1, tid=7, args=collective),
        _event(30, dur=None),
        {"ph": "M", "name": "process_name", "pid": 1},
    ]
    path.write_text(json.dumps(metadata | {"traceEvents": events}))
    return str(path)


def test_info_tells_what_is_in_a_trace(tmp_path: Path) -> None:
    path = _write(
        tmp_path / "a.json",
        distributedInfo={"rank": 1, "world_size": 2, "backend": "nccl"},
        deviceProperties=[{"id": 0, "name": "idle one"}, {"id": 1, "name": "NVIDIA H100"}],
        host_name="node7",
        cuda_driver_version=13000,
    )
    (file,) = read_trace_info([path]).files
    assert (file.path, file.rank, file.world_size, file.backend) == (path, 1, 2, "nccl")
    assert (file.gpu, file.host, file.versions) == ("NVIDIA H100", "node7", {"cuda_driver_version": "13000"})
    assert (file.start_ns, file.span_ms, file.steps) == (3000, 0.027, [5, 6])
    assert (file.num_events, file.num_by_category) == (5, {"user_annotation": 2, "kernel": 1})
    assert file.groups == [GroupInfo("0", "", [0, 1], 1)]
    assert file.problems == TraceProblems(repaired=0, dropped=1, clipped=0, truncated=False)
    assert file.file_bytes == file.text_bytes == Path(path).stat().st_size


def test_files_that_cannot_be_used_are_named_and_the_rest_is_told(tmp_path: Path) -> None:
    other = tmp_path / "truth.json"
    other.write_text("{}")
    found = read_trace_info([str(tmp_path / "absent.json"), str(other), _write(tmp_path / "rank3.json")])
    assert [file.rank for file in found.files] == [3]
    assert [notice.code for notice in found.warnings] == ["unusable_file"] * 2
    assert [name in notice.message for name, notice in zip(["absent", "truth"], found.warnings, strict=True)] == [
        True
    ] * 2


def test_nothing_usable_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"absent\.json"):
        read_trace_info([str(tmp_path / "absent.json")])
    with pytest.raises(DataError, match="none of 2"):
        read_trace_info([str(tmp_path / "absent.json"), str(tmp_path / "b.json")])


def test_a_folder_means_its_traces(tmp_path: Path) -> None:
    for rank in (0, 1):
        _write(tmp_path / f"rank{rank}.json")
    assert [file.rank for file in read_trace_info([str(tmp_path)]).files] == [0, 1]


def test_launches_without_device_rows_are_counted(tmp_path: Path) -> None:
    launches = [
        _event(10.0 * number, name=name, cat="cuda_runtime", dur=5, args={"correlation": number})
        for number, name in enumerate(["cudaLaunchKernel", "cudaLaunchKernel", "cudaGraphLaunch"], 1)
    ]
    kernel = _event(12, name="k", cat="kernel", pid=0, tid=7, args={"correlation": 1})
    for events, problems in (
        ([*launches, kernel], TraceProblems(0, 0, 0, False, lost_launches=1, lost_graph_launches=1)),
        (launches, TraceProblems(0, 0, 0, False, lost_launches=2, lost_graph_launches=1, no_gpu_activity=True)),
        ([_event(1)], TraceProblems(0, 0, 0, False)),
    ):
        (tmp_path / "a.json").write_text(json.dumps({"traceEvents": events}))
        (file,) = read_trace_info([str(tmp_path / "a.json")]).files
        assert file.problems == problems


@pytest.mark.shared
def test_recorded_trace_is_described(shared_traces: Path) -> None:
    (file,) = read_trace_info([str(shared_traces / "h100x2/tp/tp.rank0.json.gz")]).files
    assert (file.rank, file.world_size, file.steps) == (0, 2, [5, 6, 7])
    assert file.gpu == "NVIDIA H100 80GB HBM3"
    assert file.groups[0].ranks == [0, 1]
    assert file.groups[0].num_calls > 0
    assert file.problems == TraceProblems(0, 0, 0, False)
