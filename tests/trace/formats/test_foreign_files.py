"""Files of other tools are named in one line that says what reads them."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.core.errors import NotATraceError
from stepscope.trace.formats.foreign_files import kind_of_file, kind_of_object
from stepscope.trace.reading import read_ranks, read_ranks_stream

_FLIGHT: dict[str, Any] = {"version": "2.10", "pg_config": {}, "pg_status": {}, "entries": []}
_MEMORY: dict[str, Any] = {"segments": [], "device_traces": [[]]}
_XSPACE = b"\x0a\x9d\xb2\x08\x12\x0e/host:metadata\x22\x93"

KINDS: dict[str, tuple[bytes, str, str]] = {
    "fr_rank0": (pickle.dumps(_FLIGHT), "a flight-recorder dump", "stepscope hang fr_rank0"),
    "fr.json": (json.dumps(_FLIGHT).encode(), "a flight-recorder dump", "stepscope hang fr.json"),
    "oom.pickle": (pickle.dumps(_MEMORY), "a memory snapshot", "stepscope memory oom.pickle"),
    "snapshot.json": (json.dumps(_MEMORY).encode(), "a memory snapshot", "stepscope memory"),
    "other.pkl": (pickle.dumps({"a": 1}), "a Python pickle", "stepscope hang other.pkl"),
    "topo.xml": (b'<system version="1"></system>', "a topology dump of NCCL", "stepscope nccl topo.xml"),
    "full.xml": (b'<?xml version="1.0"?>\n<system version="1">', "a topology dump of NCCL", "stepscope nccl"),
    "job.log": (b"start\nnode1:7:7 [0] NCCL INFO Bootstrap\n", "a log with NCCL's lines", "stepscope nccl"),
    "train.log": (b" iteration 1/ 10 | elapsed time per iteration (ms): 33 |", "a training log", "stepscope steps"),
    "page.html": (b"<!DOCTYPE html>", "an HTML or XML page", "download the file"),
    "a.nsys-rep": (b"\x01\x02\x03", "a report of Nsight Systems", "nsys export"),
    "a.QDREP": (b"\x01\x02\x03", "a report of Nsight Systems", "nsys export"),
    "kernel.ncu-rep": (b"NVR\0\1", "a report of Nsight Compute", "ncu --import"),
    "host.xplane.pb": (_XSPACE, r"a profile of JAX, TensorFlow or torch_xla \(xplane\)", "XProf"),
    "renamed": (_XSPACE, r"a profile of JAX, TensorFlow or torch_xla \(xplane\)", "XProf"),
    "a.pftrace": (b"\x0a\x10\x50\x01", "a Perfetto trace", "ui.perfetto.dev"),
    "rank.0.et": (b"\x07\x0a\x050.0.4", "an execution trace of Chakra", "export_chrome_trace"),
    "chakra.0.json": (b'{"workload_graph": [{"Id": 1}]}', "an execution trace of Chakra", "export_chrome_trace"),
    "et.json": (b'{"schema": "1.1.1-chakra.0.0.4", "nodes": []}', "an execution trace", "export_chrome_trace"),
    "results.json": (b'{"rocprofiler-sdk-tool": [{}]}', "an output of rocprofv3", "rocprof's own tools"),
    "kernel_trace.csv": (b'"Kind","Agent_Id","Queue_Id"\n', "a table of rocprof", "rocprof's own tools"),
    "results.csv": (b"Index,KernelName,gpu-id\n0,k,1\n", "a table of rocprof", "rocprof's own tools"),
    "a.csv": (b"time,loss,step\n1,2,3\n", "a table of comma-separated values", "torch.profiler"),
    "py.speedscope.json": (
        b'{"$schema": "https://www.speedscope.app/x.json"}',
        "a speedscope profile",
        "torch.profiler",
    ),
    "stacks.txt": (b"main;train;step 12\nmain;load 3\n", "a list of collapsed stacks", "torch.profiler"),
    "v8.cpuprofile": (b'{"nodes": [], "timeDeltas": []}', "a CPU profile of V8", "torch.profiler"),
    "export.json": (b'{"CudaEvent": {}}', "a JSON export of Nsight Systems", "nsys export"),
    "analysis.json": (
        b'{"schema": "stepscope.analysis/1"}',
        r"a document of stepscope \(stepscope.analysis/1\)",
        "run",
    ),
    "events.out.tfevents.1": (
        b"\x18" + b"\0" * 20 + b"\x1a\x0dbrain.Event:2",
        "a log of TensorBoard",
        "torch.profiler",
    ),
    "perf.data": (b"PERFILE2", "a profile of Linux perf", "torch.profiler"),
    "t.7z": (b"7z\xbc\xaf\x27\x1c", "a 7-Zip archive", "unpack it"),
}


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("packed", [False, True])
def test_a_file_of_another_tool_is_named_with_what_reads_it(name: str, packed: bool) -> None:
    content, what, what_next = KINDS[name]
    content = gzip.compress(content) if packed else content
    with pytest.raises(NotATraceError, match=f"{name}: is {what}.*, not a profiler trace of PyTorch; .*") as refused:
        read_ranks_stream(io.BytesIO(content), path=name, file_bytes=len(content))
    assert what_next in refused.value.what_next
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("tables", "what"),
    [
        (("rocpd_api", "rocpd_op"), "a database of ROCm's profiler"),
        (("people",), "an SQLite database"),
    ],
)
def test_databases_are_told_by_their_tables(tables: tuple[str, ...], what: str, tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "a.db")
    for table in tables:
        connection.execute(f"CREATE TABLE {table}(a INT)")
    connection.commit()
    connection.close()
    with pytest.raises(NotATraceError, match=f"is {what}"):
        read_ranks(tmp_path / "a.db")


@given(st.binary(max_size=400), st.text(max_size=12))
def test_any_bytes_are_of_some_kind_or_of_none(content: bytes, name: str) -> None:
    for kind in (kind_of_file(content, name), kind_of_object(content)):
        assert kind is None or "\n" not in kind.what + kind.what_next
