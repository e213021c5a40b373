"""Plainest possible trace reader, json and loops: the oracle for the fast one."""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal
from typing import Any, NamedTuple

import pytest

from stepscope.trace.columns import NONE, Category, TraceColumns


class Row(NamedTuple):
    """One complete event in plain values."""

    category: Category
    name: str
    lane: tuple[int, int, bool]
    start_ns: int
    end_ns: int
    correlation: int
    external_id: int
    shapes: tuple[Any, Any, Any] | None
    launch: tuple[Any, ...] | None
    num_bytes: int
    collective: tuple[Any, ...] | None


class RowTools(NamedTuple):
    """Both readings in the same form."""

    expected: Callable[[str], list[Row]]
    """rows of a trace's JSON text, by json and loops"""
    actual: Callable[[TraceColumns], list[Row]]
    """rows of the columns"""


@pytest.fixture(scope="session")
def rows() -> RowTools:
    """The oracle, and the columns in its form."""
    return RowTools(_expected_rows, _actual_rows)


_CATEGORIES = {
    "cpu_op": Category.CPU_OP,
    "operator": Category.CPU_OP,
    "user_annotation": Category.USER_ANNOTATION,
    "cuda_runtime": Category.RUNTIME,
    "cuda_driver": Category.RUNTIME,
    "runtime": Category.RUNTIME,
    "mtia_runtime": Category.RUNTIME,
    "kernel": Category.KERNEL,
    "gpu_memcpy": Category.MEMCPY,
    "memcpy": Category.MEMCPY,
    "gpu_memset": Category.MEMSET,
    "memset": Category.MEMSET,
    "gpu_user_annotation": Category.GPU_USER_ANNOTATION,
    "cuda_sync": Category.SYNC_RECORD,
    "overhead": Category.OVERHEAD,
    "python_function": Category.PYTHON_FUNCTION,
}
_DEVICE = (Category.KERNEL, Category.MEMCPY, Category.MEMSET)
_ANNOTATIONS = ("ProfilerStep#", "enumerate(DataLoader)#", "Optimizer.")


def _expected_rows(text: str) -> list[Row]:
    document = json.loads(text, parse_float=Decimal)
    is_list = isinstance(document, list)
    base = 0 if is_list else document.get("baseTimeNanoseconds", 0)
    events = document if is_list else document["traceEvents"]
    return [_row(e, base) for e in events if e["ph"] == "X" and _is_kept(e)]


def _is_kept(event: dict[str, Any]) -> bool:
    if event.get("cat") == "python_function":
        return not str(event.get("name")).startswith(("<", "torch/"))
    return event.get("cat") != "Trace"


def _row(event: dict[str, Any], base: int) -> Row:
    args = event.get("args") or {}
    category = _CATEGORIES.get(event.get("cat", "").lower(), Category.OTHER)
    if event.get("cat") == "Operator" and event["name"].startswith(_ANNOTATIONS):
        category = Category.USER_ANNOTATION
    on_device = category in (*_DEVICE, Category.GPU_USER_ANNOTATION, Category.SYNC_RECORD)
    thread = int(str(event["tid"]).removeprefix("stream "))
    if category is Category.SYNC_RECORD and thread >= 1000000:
        thread -= 1000000
    start = int(Decimal(event["ts"]) * 1000) + base
    shapes = (args.get("Input Dims"), args.get("Input type"), args.get("Concrete Inputs"))
    return Row(
        category=category,
        name=event["name"],
        lane=(int(event["pid"]), thread, on_device),
        start_ns=start,
        end_ns=start + int(Decimal(event["dur"]) * 1000),
        correlation=args.get("correlation", NONE),
        external_id=args.get("External id", args.get("external id", NONE)),
        shapes=shapes
        if category in (Category.CPU_OP, Category.USER_ANNOTATION) and shapes != (None, None, None)
        else None,
        launch=_launch(args) if category is Category.KERNEL else None,
        num_bytes=args.get("bytes", NONE) if category in (Category.MEMCPY, Category.MEMSET) else NONE,
        collective=_collective(args) if category in (Category.KERNEL, Category.CPU_OP) else None,
    )


def _launch(args: dict[str, Any]) -> tuple[Any, ...] | None:
    grid, block = (tuple(args.get(name, ())) for name in ("grid", "block"))
    recorded = (grid, block, args.get("registers per thread"), args.get("shared memory"))
    return None if recorded == ((), (), None, None) else recorded


def _collective(args: dict[str, Any]) -> tuple[Any, ...] | None:
    if "Collective name" not in args:
        return None
    return (
        args["Collective name"],
        args.get("Process Group Name", ""),
        args.get("In msg nelems", NONE),
        args.get("Out msg nelems", NONE),
        args.get("dtype") or None,
        max(args.get("Src Rank", NONE), NONE),
        max(args.get("Dst Rank", NONE), NONE),
        args.get("Seq", NONE),
    )


def _actual_rows(trace: TraceColumns) -> list[Row]:
    calls = _actual_collectives(trace)
    launches = [
        (launch.grid, launch.block, launch.registers_per_thread, launch.shared_memory_bytes)
        for launch in trace.launches
    ] + [None]
    tables = [_parsed(*(t.input_dims, t.input_types, t.concrete_inputs)) for t in trace.shape_table]
    return [
        Row(
            category=Category(trace.category[i]),
            name=trace.names[trace.name[i]],
            lane=(lane.process, lane.thread, lane.on_device),
            start_ns=int(trace.start_ns[i]),
            end_ns=int(trace.end_ns[i]),
            correlation=int(trace.correlation[i]),
            external_id=int(trace.external_id[i]),
            shapes=tables[trace.shapes[i]] if trace.shapes[i] != NONE else None,
            launch=launches[trace.launch[i]],
            num_bytes=int(trace.num_bytes[i]),
            collective=calls.get(i),
        )
        for i in range(len(trace))
        for lane in [trace.lanes[trace.lane[i]]]
    ]


def _parsed(*texts: str) -> tuple[Any, Any, Any]:
    dims, types, concrete = (json.loads(text, parse_float=Decimal) if text else None for text in texts)
    return dims, types, concrete


def _actual_collectives(trace: TraceColumns) -> dict[int, tuple[Any, ...]]:
    calls = trace.communication
    return {
        int(row): (
            calls.kinds[calls.kind[i]],
            trace.groups[calls.group[i]].name if calls.group[i] != NONE else "",
            int(calls.in_elements[i]),
            int(calls.out_elements[i]),
            calls.dtypes[calls.dtype[i]] if calls.dtype[i] != NONE else None,
            int(calls.source_rank[i]),
            int(calls.destination_rank[i]),
            int(calls.sequence[i]),
        )
        for i, row in enumerate(calls.row)
    }
