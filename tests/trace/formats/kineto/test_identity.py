"""The rank that a trace's communication calls show, where neither the header nor a name gives it."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from stepscope.trace.columns import RankSource, TraceColumns
from tests.trace.one_rank import read_trace_stream


def _call(kind: str, group: str, members: list[int], caller: int | None = None) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        "Collective name": kind,
        "Process Group Name": group,
        "Process Group Ranks": str(members),
    }
    arguments |= {} if caller is None else {"Rank": caller}
    return {
        "ph": "X", "cat": "cpu_op", "name": "record_param_comms", "pid": 77, "tid": 1, "ts": 1, "dur": 2,
        "args": arguments,
    }  # fmt: skip


def _read(*events: dict[str, Any], **metadata: Any) -> TraceColumns:
    text = json.dumps(metadata | {"traceEvents": events}).encode()
    return read_trace_stream(io.BytesIO(text), path="trace_a.json", file_bytes=len(text))


@pytest.mark.parametrize(
    ("events", "rank"),
    [
        ([_call("allreduce", "0", [0, 1, 2, 3], 2)], 2),
        ([_call("_allgather_base", "3", [4, 6], 1)], 6),
        ([_call("allreduce", "1", [2, 3]), _call("_reduce_scatter_base", "2", [1, 3])], 3),
        ([_call("allreduce", "0", [0, 1])], None),
        ([_call("broadcast", "0", [0, 1], 0)], None),  # the root
        ([_call("send", "0", [0, 1], 1)], None),  # the peer
        ([_call("allreduce", "0", [0, 1], 0), _call("allreduce", "0", [0, 1], 1)], None),
        ([_call("allreduce", "0", [0, 1], 0), _call("allreduce", "1", [2, 3], 0)], None),
        ([_call("allreduce", "0", [0, 1], 7)], None),
    ],
)
def test_the_rank_is_the_only_one_that_fits_all_calls(events: list[dict[str, Any]], rank: int | None) -> None:
    header = _read(*events).header
    assert (header.rank, header.rank_source) == (rank, None if rank is None else RankSource.COLLECTIVES)
    assert header.process_id == 77


def test_the_header_is_believed_before_the_calls() -> None:
    header = _read(_call("allreduce", "0", [0, 1], 1), distributedInfo={"rank": 0, "world_size": 2}).header
    assert (header.rank, header.rank_source) == (0, RankSource.HEADER)
