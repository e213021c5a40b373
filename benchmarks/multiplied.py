"""How does a small recorded trace become a large one? Copies one after another in time, in Kineto's own layout."""

from __future__ import annotations

import gzip
import json
import os
import re
from collections.abc import Iterator
from math import ceil
from pathlib import Path
from typing import Any

_ID_KEYS = ("External id", "correlation")
_STEP_NAME = re.compile(r"ProfilerStep#\d+")
_SYNTHETIC_EVENTS = 100_000
_GAP_US = 1000
"""Between two copies."""


def write_multiplied(target: Path, source: Path | None, *, num_bytes: int, num_steps: int, rank: int = 0) -> int:
    """Write copies of a trace until the file has about `num_bytes`; the number of events.

    Each copy has times and ids of its own. The source's step marks give way to `num_steps` marks of equal length, so
    that a large trace is one of long steps. In a process of its own: memory that this one once held would count as the
    peak of those it starts.

    Args:
        target: file to write.
        source: a Kineto trace; a synthetic one is made without it.
        num_bytes: size to reach.
        num_steps: step marks in the whole file.
        rank: what distributedInfo tells.
    """
    child = os.fork()
    if child == 0:
        _write(target, source, num_bytes=num_bytes, num_steps=num_steps, rank=rank)
        os._exit(0)
    if os.waitpid(child, 0)[1] != 0:
        raise SystemExit("the large trace could not be written")
    with target.open("rb") as stream:
        return sum(line.count(b'"ph":') for line in stream)


def _write(target: Path, source: Path | None, *, num_bytes: int, num_steps: int, rank: int) -> None:
    document = _synthetic() if source is None else _load(source)
    events = document.pop("traceEvents")
    document["distributedInfo"] = {
        "backend": "nccl",
        "world_size": 1,
        **document.get("distributedInfo", {}),
        "rank": rank,
    }
    marks = [event for event in events if _STEP_NAME.fullmatch(event.get("name", ""))]
    events = [event for event in events if not _STEP_NAME.fullmatch(event.get("name", ""))]
    timed = [event for event in events if event["ph"] == "X" and event.get("cat") != "Trace"]
    start = min(event["ts"] for event in timed)
    period = ceil(max(event["ts"] + event["dur"] for event in timed) - start) + _GAP_US
    with target.open("w") as stream:
        stream.write("{\n" + "".join(f'  "{key}": {json.dumps(value)},\n' for key, value in document.items()))
        stream.write('  "traceEvents": [\n')
        first = "".join(_copy(events, 0, ids=0))
        num_copies = max(num_steps, round(num_bytes / len(first)))
        ids = max((event.get("args") or {}).get(key) or 0 for event in timed for key in _ID_KEYS) + 1
        for number, mark in enumerate(_step_marks(marks, start, num_copies * period, num_steps)):
            stream.write((",\n" if number else "") + kineto_text(mark))
        for copy in range(num_copies):
            for text in _copy(events, copy * period, ids=copy * ids):
                stream.write(",\n" + text)
        stream.write('\n  ],\n  "traceName": "bench.json"\n}\n')


def _copy(events: list[dict[str, Any]], microseconds: int, *, ids: int) -> Iterator[str]:
    for event in events:
        yield kineto_text(_shifted(event, microseconds, ids=ids))


def _step_marks(marks: list[dict[str, Any]], start: float, length: int, num_steps: int) -> Iterator[dict[str, Any]]:
    host = next((mark for mark in marks if mark.get("cat") != "gpu_user_annotation"), {"pid": 7, "tid": 7})
    for step in range(num_steps):
        yield {
            "ph": "X",
            "cat": "user_annotation",
            "name": f"ProfilerStep#{step + 1}",
            "pid": host["pid"],
            "tid": host["tid"],
            "ts": start + step * (length // num_steps),
            "dur": length // num_steps,
        }


def _shifted(event: dict[str, Any], microseconds: int, *, ids: int) -> dict[str, Any]:
    moved = dict(event)
    if "ts" in moved:
        moved["ts"] += microseconds  # whole ones, so that integers stay integers, which old traces have
    if event["ph"] in "sf" and isinstance(event.get("id"), int):
        moved["id"] = event["id"] + ids
    if isinstance(event.get("args"), dict):
        moved["args"] = {key: value + ids if key in _ID_KEYS else value for key, value in event["args"].items()}
    return moved


def kineto_text(event: dict[str, Any]) -> str:
    """The layout that Kineto itself writes."""
    head = ", ".join(
        f"{json.dumps(key)}: {json.dumps(event[key])}" for key in event if key not in ("ts", "dur", "args")
    )
    times = ", ".join(f'"{key}": {_time_text(event[key])}' for key in ("ts", "dur") if key in event)
    text = "  {\n    " + ",\n    ".join(part for part in (head, times) if part)
    if "args" in event:
        text += ',\n    "args": {\n      ' + json.dumps(event["args"])[1:-1] + "\n    }"
    return text + "\n  }"


def _time_text(microseconds: float) -> str:
    return str(microseconds) if isinstance(microseconds, int) else f"{microseconds:.3f}"


def _load(source: Path) -> dict[str, Any]:
    content = source.read_bytes()
    text = gzip.decompress(content) if content.startswith(b"\x1f\x8b") else content
    document: dict[str, Any] = json.loads(text)
    return document


def _synthetic() -> dict[str, Any]:
    """Operators, launches, flows and kernels in about a real trace's proportions."""
    events = [event for number in range(_SYNTHETIC_EVENTS // 5) for event in _synthetic_operator(number)]
    return {"schemaVersion": 1, "traceEvents": events}


def _synthetic_operator(number: int) -> list[dict[str, Any]]:
    ts = 4956637219772.625 + number * 20
    host, device = {"pid": 7, "tid": 7}, {"pid": 0, "tid": 7}
    ids = {"External id": number, "correlation": number}
    shapes = {"Input Dims": [[number % 50, 1024], [1024, 4096]], "Input type": ["float", "float"]}
    operator = {"External id": number, "Record function id": 0, **shapes, "Ev Idx": number}
    work: dict[str, Any] = {**ids, "queued": 0, "device": 0, "context": 1, "stream": 7}
    work |= {"registers per thread": 128, "shared memory": 49152, "blocks per SM": 1.5, "warps per SM": 6.0}
    work |= {"grid": [number % 100 + 1, 2, 1], "block": [128, 1, 1], "est. achieved occupancy %": 9}
    flow = {"id": number, "cat": "ac2g", "name": "ac2g"}
    call = {"cat": "cuda_runtime", "name": "cudaLaunchKernel", **host, "ts": ts + 4, "dur": 5}
    kernel = {"cat": "kernel", "name": f"void gemm_{number % 60}<float>(Params)", **device, "ts": ts + 9, "dur": 11.264}
    return [
        {"ph": "X", "cat": "cpu_op", "name": f"aten::op{number % 40}", **host, "ts": ts, "dur": 12.5, "args": operator},
        {"ph": "X", **call, "args": {"cbid": 211, **ids}},
        {"ph": "s", **flow, **host, "ts": ts + 4},
        {"ph": "X", **kernel, "args": work},
        {"ph": "f", **flow, **device, "ts": ts + 9, "bp": "e"},
    ]
