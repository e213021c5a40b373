"""A kept trace has what is read of it."""

from __future__ import annotations

import gzip
import json

from benchmarks.labelled_runs.keep import trimmed


def test_a_trace_loses_what_nobody_reads() -> None:
    operator = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 2, "ts": 3.5, "dur": 1.0}
    trace = {
        "traceName": "/home/someone/trace",
        "baseTimeNanoseconds": 5,
        "traceEvents": [
            operator | {"ts": 9.0, "args": {"Input Dims": [[2, 2]], "Input Strides": [[2, 1]], "Ev Idx": 4}},
            {"ph": "s", "cat": "ac2g", "name": "ac2g", "pid": 1, "tid": 2, "ts": 3.0, "id": 7},
            operator | {"args": {"External id": 1}},
        ],
    }
    content = trimmed(gzip.compress(json.dumps(trace).encode()))
    assert json.loads(gzip.decompress(content)) == {
        "baseTimeNanoseconds": 5,
        "traceEvents": [operator, operator | {"ts": 9.0, "args": {"Input Dims": [[2, 2]]}}],
    }
    assert trimmed(content) == content
