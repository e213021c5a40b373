"""A file with events of several ranks becomes one trace per rank, whichever tool merged it."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import pytest

from stepscope.core.errors import NotATraceError
from stepscope.trace.columns import Category, TraceColumns
from stepscope.trace.formats.kineto.reader import read_kineto

Event = dict[str, Any]
PIDS = (4711, 4712, 4713)


def _read(text: str) -> list[TraceColumns]:
    content = text.encode()
    return read_kineto(io.BytesIO(content), path="merged.json", file_bytes=len(content), block_bytes=700)


def _rank_events(rank: int, *, device: int | None = None, shift: int = 0) -> list[Event]:
    """One rank: operators, launches, kernels and a copy; correlation ids begin at 1 on every rank."""
    pid, device = PIDS[rank], rank if device is None else device
    events: list[Event] = [_event("cpu_op", f"aten::op{rank}", pid, 1, 0)]
    for number in range(1, 9):
        is_copy = number % 4 == 0
        call, kind = ("cudaMemcpyAsync", "gpu_memcpy") if is_copy else ("cudaLaunchKernel", "kernel")
        ids = {"correlation": number + shift}
        events.append(_event("cuda_runtime", call, pid, 1, 10 * number, ids))
        events.append(_event(kind, f"work of {rank}", device, 7, 10 * number + 4 + rank, ids))
    return events


def _event(kind: str, name: str, pid: int | str, tid: int, ts: float, args: Event | None = None) -> Event:
    return {"ph": "X", "cat": kind, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": 2, "args": args or {}}


def _document(rank: int, **options: Any) -> Event:
    info = {"backend": "nccl", "rank": rank, "world_size": 3}
    return {"schemaVersion": 1, "distributedInfo": info, "traceEvents": _rank_events(rank, **options)}


def _labelled(label: Callable[[int], str]) -> str:
    """As SGLang's profile merger writes it."""
    events = [event | {"pid": f"{label(rank)} {event['pid']}"} for rank in range(3) for event in _rank_events(rank)]
    return json.dumps(_document(0) | {"traceEvents": events})


def _fused() -> str:
    """As TraceLens' TraceFuse writes it: ranks in the arguments, process and correlation ids apart by an offset."""
    events = [
        event | {"pid": event["pid"] + rank * 10**5, "args": event["args"] | {"rank": rank}}
        for rank in range(3)
        for event in _rank_events(rank, device=0, shift=rank * 1000)
    ]
    return json.dumps({"traceEvents": events})


def _appended(*, device: int | None = None, head: Event | None = None) -> str:
    events = [event for rank in range(3) for event in _rank_events(rank, device=device)]
    return json.dumps((_document(0) if head is None else head) | {"traceEvents": events})


def _device_rows_first() -> str:
    on_host = ("cpu_op", "cuda_runtime")
    events = [e for rank in range(3) for e in sorted(_rank_events(rank, device=0), key=lambda e: e["cat"] in on_host)]
    return json.dumps({"traceEvents": events})


def _by_time(**options: Any) -> str:
    events = [event for rank in range(3) for event in _rank_events(rank, **options)]
    return json.dumps({"traceEvents": sorted(events, key=lambda event: float(event["ts"]))})


def _by_time_with_ids_apart() -> str:
    events = [event for rank in range(3) for event in _rank_events(rank, device=0, shift=rank * 100)]
    return json.dumps({"traceEvents": sorted(events, key=lambda event: -float(event["ts"]))})


def _by_time_with_ids_shifted() -> str:
    """Ids collide, but of other kinds or in another order: each device answers to one process."""
    events = [event for rank in range(3) for event in _rank_events(rank, shift=rank * 3)]
    return json.dumps({"traceEvents": sorted(events, key=lambda event: float(event["ts"]))})


MERGED = {
    "documents one after another": "\n".join(json.dumps(_document(rank)) for rank in range(3)),
    "documents without rank": "".join(json.dumps({"traceEvents": _rank_events(rank)}) for rank in range(3)),
    "labels of SGLang": _labelled(lambda rank: f"[TP0{rank}-PP00]"),
    "labels with ranks": _labelled(lambda rank: f"rank {rank}"),
    "TraceFuse": _fused(),
    "appended lists": _appended(),
    "appended lists of hosts that all call their device 0": _appended(device=0),
    "device rows before the host's": _device_rows_first(),
    "sorted by time, ids apart": _by_time_with_ids_apart(),
    "sorted by time, ids collide": _by_time_with_ids_shifted(),
}


@pytest.mark.parametrize("form", MERGED)
def test_a_merged_file_is_one_trace_a_rank(form: str) -> None:
    """Entry 19: correlation ids collide between ranks, so no row may be linked to another rank's launch."""
    traces = _read(MERGED[form])
    assert [trace.header.rank for trace in traces] == [0, 1, 2]
    for rank, trace in enumerate(traces):
        assert {trace.names[name] for name in trace.name[trace.rows_of(*DEVICE)]} == {f"work of {rank}"}
        assert {trace.names[name] for name in trace.name[trace.rows_of(Category.CPU_OP)]} == {f"aten::op{rank}"}
        assert (len(trace), trace.quality.num_events, trace.quality.dropped) == (17, 17, 0)
        assert trace.header.part


DEVICE = (Category.KERNEL, Category.MEMCPY)


def test_device_rows_that_nothing_tells_apart_are_refused_in_one_line() -> None:
    with pytest.raises(NotATraceError, match=r"3 processes, and its device rows cannot be assigned to them") as refused:
        _read(_by_time(device=0))
    assert "\n" not in str(refused.value)


def test_ranks_are_those_of_the_metadata_where_it_lists_them() -> None:
    infos = [{"rank": rank, "world_size": 16} for rank in (4, 5, 9)]
    assert [trace.header.rank for trace in _read(_appended(head={"distributedInfo": infos}))] == [4, 5, 9]
    doubled = _appended(head={}).replace(
        "{", "{" + ", ".join(f'"distributedInfo": {json.dumps(i)}' for i in infos) + ", ", 1
    )
    assert [trace.header.rank for trace in _read(doubled)] == [4, 5, 9]


def test_calls_stay_with_their_rank_and_take_no_group_of_another() -> None:
    def call(rank: int, group: str, ranks: str) -> Event:
        told = {"Collective name": "allreduce", "Process Group Name": group, "Process Group Ranks": ranks}
        return _event("kernel", "nccl", rank, 20, 200, {"correlation": 99} | told)

    groups = [{"pg_name": "0", "ranks": [0, 1, 2]}, {"pg_name": "1", "pg_desc": "tp", "ranks": [0, 2]}]
    head = {"distributedInfo": {"rank": 0, "pg_config": groups}}
    calls = [(0, "1", "[0, 2]"), (1, "1", "[1, ...]"), (2, "0", "[0, 1, 2]")]
    events = [e for rank, group, ranks in calls for e in [*_rank_events(rank), call(rank, group, ranks)]]
    traces = _read(json.dumps(head | {"traceEvents": events}))
    assert [trace.communication.row.tolist() for trace in traces] == [[17]] * 3
    assert [trace.communication.group.tolist() for trace in traces] == [[1], [-1], [0]]


def test_a_second_host_process_with_next_to_no_rows_is_no_rank() -> None:
    stray = _event("cpu_op", "helper", 1, 1, 3)
    operators = [_event("cpu_op", "aten::mm", PIDS[0], 1, place) for place in range(200)]
    (trace,) = _read(json.dumps([*operators, *_rank_events(0), stray]))
    assert len(trace) == 200 + 17 + 1


def test_one_rank_that_a_tool_labelled_is_one_trace() -> None:
    events = [
        event | {"pid": f"[TP00] {event['pid']}", "args": event["args"] | {"rank": 3}} for event in _rank_events(0)
    ]
    (trace,) = _read(json.dumps({"traceEvents": events}))
    assert {(lane.process, lane.on_device) for lane in trace.lanes} == {(PIDS[0], False), (0, True)}


def test_a_broken_further_document_does_not_lose_the_first() -> None:
    text = json.dumps(_document(1)) + '\n{"traceEvents": [{"ph": "M"}]}'
    (trace,) = _read(text)
    assert (trace.header.rank, len(trace)) == (1, 17)


def test_a_label_none_of_whose_rows_can_be_used_is_no_rank() -> None:
    events = [event | {"pid": f"rank {rank} {event['pid']}"} for rank in (0, 1) for event in _rank_events(rank)]
    lost = _event("cpu_op", "x", "rank 2 9", 1, 0) | {"dur": -1}
    assert [trace.header.rank for trace in _read(json.dumps([*events, lost]))] == [0, 1]
    only_lost = [event | {"dur": -1} for event in events]
    (trace,) = _read(json.dumps([*only_lost, *_rank_events(0)]))
    assert len(trace) == 17


def test_ranks_in_the_arguments_are_read_wherever_processes_first_appear() -> None:
    events = json.loads(_fused())["traceEvents"]
    for event in events:
        event["args"]["rank"] = 8 * event["args"]["rank"]
    assert [trace.header.rank for trace in _read(json.dumps(events))] == [0, 8, 16]
    for event in events:
        event["args"]["rank"] = "odd"
    assert [trace.header.rank for trace in _read(json.dumps(events))] == [0, 1, 2]


@pytest.mark.parametrize("args", [[1], {"correlation": "x"}, {"name": "python"}])
def test_metadata_of_any_shape_beside_them_hides_no_rank(args: Any) -> None:
    events = json.loads(_fused())["traceEvents"]
    for event in events:
        event["args"]["rank"] = 8 * event["args"]["rank"]
    named = [{"ph": "M", "name": "process_name", "pid": event["pid"], "args": args} for event in events]
    mixed = [event for pair in zip(events, named, strict=True) for event in pair]
    assert [trace.header.rank for trace in _read(json.dumps(mixed))] == [0, 8, 16]
