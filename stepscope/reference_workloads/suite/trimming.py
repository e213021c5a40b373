"""What does the analysis read of a trace? Only that, of a few steps, small enough to be kept beside tests."""

from __future__ import annotations

import bisect
import gzip
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from stepscope.core.errors import DataError
from stepscope.core.run_layout import WHOLE_STEPS_KEY

_STEP_PREFIX = "ProfilerStep#"
_ON_DEVICE = frozenset({"kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation", "cuda_sync"})
_LAUNCHED = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
_CALLS = frozenset({"cuda_runtime", "cuda_driver"})
_DROPPED = frozenset({"python_function", "Trace"})
_SHAPES = frozenset({"Input Dims", "Input type", "Concrete Inputs"})
_READ_OF_DEVICE = frozenset({"correlation", "grid", "block", "registers per thread", "shared memory", "bytes"})
_READ_OF_MESSAGES = frozenset(
    {
        "Collective name",
        "In msg nelems",
        "Out msg nelems",
        "dtype",
        "Process Group Name",
        "Process Group Description",
        "Process Group Ranks",
        "Src Rank",
        "Dst Rank",
        "Seq",
        "Rank",
        "Comms Id",
    }
)
_QUESTIONS = ("cudaEventQuery", "cudaStreamIsCapturing", "cudaStreamGetCaptureInfo", "cudaGetFuncBySymbol", "cudaFunc")
"""Beginnings of calls that launch nothing and wait for nothing."""

_LONG_QUESTION_US = 50.0
"""A question that takes longer has met a lock, which is worth keeping."""


@dataclass(frozen=True, slots=True)
class TrimmedTrace:
    """A trace with less in it: gzipped JSON, and the numbers of the steps that are left."""

    content: bytes
    steps: tuple[int, ...]


def trim(path: Path, *, num_steps: int | None) -> TrimmedTrace:
    """Read a Kineto trace, keep its first `num_steps` steps (None: all) and of these what the analysis reads.

    Times stay as they are, to the nanosecond; they are counted from a later base.

    Raises:
        DataError: it cannot be read or marks no steps.
    """
    try:
        document = msgspec.json.decode(gzip.decompress(path.read_bytes()))
        events = [event for event in document["traceEvents"] if _is_wanted(event)]
    except (OSError, EOFError, msgspec.DecodeError, KeyError, TypeError) as error:
        raise DataError(f"cannot be trimmed ({error})", where=str(path)) from error
    steps = sorted((event for event in events if _is_step(event)), key=lambda event: float(event["ts"]))
    steps = steps[:num_steps]
    if not steps:
        raise DataError("marks no steps", where=str(path))
    begin, end = float(steps[0]["ts"]), float(steps[-1]["ts"]) + float(steps[-1]["dur"])
    kept = _in_window(events, begin, end)
    if any(event["cat"] in _LAUNCHED for event in kept):
        kept = _without_idle_operators(kept)
    numbers = tuple(int(event["name"].removeprefix(_STEP_PREFIX)) for event in steps)
    return TrimmedTrace(gzip.compress(_encoded(document, kept, numbers), 9, mtime=0), numbers)


def _is_wanted(event: dict[str, Any]) -> bool:
    if event.get("ph") != "X" or event.get("cat") in _DROPPED or "ts" not in event:
        return False
    is_question = event["cat"] in _CALLS and event["name"].startswith(_QUESTIONS)
    return not is_question or float(event.get("dur", 0.0)) > _LONG_QUESTION_US


def _is_step(event: dict[str, Any]) -> bool:
    return event["cat"] == "user_annotation" and str(event["name"]).startswith(_STEP_PREFIX)


def _in_window(events: list[dict[str, Any]], begin: float, end: float) -> list[dict[str, Any]]:
    """What the host began in the window, and what the device did of it."""
    host = [event for event in events if event["cat"] not in _ON_DEVICE and begin <= float(event["ts"]) < end]
    correlations = {event["args"]["correlation"] for event in host if "correlation" in event.get("args", {})}
    device = [
        event
        for event in events
        if event["cat"] in _LAUNCHED | {"cuda_sync"} and event.get("args", {}).get("correlation") in correlations
    ]
    if not device:
        return host
    first = min(float(event["ts"]) for event in device)
    last = max(float(event["ts"]) + float(event.get("dur", 0.0)) for event in device)
    marks = [
        event
        for event in events
        if event["cat"] == "gpu_user_annotation"
        and first <= float(event["ts"])
        and float(event["ts"]) + float(event.get("dur", 0.0)) <= last
    ]
    return host + device + marks


def _without_idle_operators(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Leave out operators inside others that call no runtime: most operators, and nobody's time.

    Those that stay keep their shapes only around a launch.
    """
    kept = [event for event in events if event["cat"] != "cpu_op"]
    for operators, calls in _by_thread(events):
        starts = [float(call["ts"]) for call in calls]
        outer_end = float("-inf")
        for operator in operators:
            begin = float(operator["ts"])
            end = begin + float(operator.get("dur", 0.0))
            is_outer = begin >= outer_end
            outer_end = max(outer_end, end)
            place = bisect.bisect_left(starts, begin)
            if place < len(starts) and starts[place] < end:
                kept.append(operator)
            elif is_outer or _tells_of_messages(operator):
                kept.append({**operator, "args": _only(operator.get("args", {}), _READ_OF_MESSAGES)})
    return kept


def _by_thread(events: Iterable[dict[str, Any]]) -> list[tuple[list[dict[str, Any]], list[dict[str, Any]]]]:
    """The operators and the runtime calls of each host thread, by their start; longer operators first."""
    threads: dict[tuple[Any, Any], tuple[list[dict[str, Any]], list[dict[str, Any]]]] = {}
    for event in events:
        if event["cat"] == "cpu_op" or event["cat"] in _CALLS:
            lists = threads.setdefault((event["pid"], event["tid"]), ([], []))
            lists[0 if event["cat"] == "cpu_op" else 1].append(event)
    for operators, calls in threads.values():
        operators.sort(key=lambda event: (float(event["ts"]), -float(event.get("dur", 0.0))))
        calls.sort(key=lambda event: float(event["ts"]))
    return list(threads.values())


def _tells_of_messages(operator: dict[str, Any]) -> bool:
    return "Collective name" in operator.get("args", {}) or operator["name"].startswith(("c10d::", "_c10d_functional"))


def _encoded(document: dict[str, Any], events: list[dict[str, Any]], steps: tuple[int, ...]) -> bytes:
    """Events by thread and time, so that neighbours are alike and gzip finds them."""
    shift = int(min(float(event["ts"]) for event in events))
    header = {key: value for key, value in document.items() if key not in {"traceEvents", "traceName", "trace_id"}}
    if "baseTimeNanoseconds" in header:
        header["baseTimeNanoseconds"] = int(header["baseTimeNanoseconds"]) + shift * 1000
    else:
        shift = 0
    whole = header.get(WHOLE_STEPS_KEY)
    if isinstance(whole, list):
        header[WHOLE_STEPS_KEY] = [step for step in whole if step in steps]
    header["traceEvents"] = [
        _slim(event, shift)
        for event in sorted(events, key=lambda event: (str(event["pid"]), str(event["tid"]), float(event["ts"])))
    ]
    return msgspec.json.encode(header)


def _slim(event: dict[str, Any], shift: int) -> dict[str, Any]:
    slim: dict[str, Any] = {key: event[key] for key in ("ph", "cat", "name", "pid", "tid") if key in event}
    slim["ts"] = round(float(event["ts"]) - shift, 3)
    slim["dur"] = event.get("dur", 0)
    arguments = _only(event.get("args", {}), _read_of(event["cat"]))
    if arguments:
        slim["args"] = arguments
    return slim


def _read_of(category: str) -> frozenset[str]:
    if category in _ON_DEVICE:
        return _READ_OF_DEVICE | _READ_OF_MESSAGES
    if category in _CALLS:
        return frozenset({"correlation"})
    return _SHAPES | _READ_OF_MESSAGES


def _only(arguments: dict[str, Any], names: frozenset[str]) -> dict[str, Any]:
    return {name: value for name, value in arguments.items() if name in names}
