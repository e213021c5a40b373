"""Fixtures: a trimmed run directory for tests, which the analysis judges as it judged the whole one.

fixtures/CASE/traces/step{k}/   trimmed traces, one a rank
fixtures/CASE/steps/            the telemetry, whole: periodic patterns need many steps
fixtures/CASE/run.json          mesh and the unprofiled step, without the machine's name, versions and environment
fixtures/CASE/truth.json        what was built in, what the whole trace was called, what was measured

A trace is trimmed to what the analysis reads, of a few steps.
"""

from __future__ import annotations

import bisect
import gzip
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from enum import IntEnum
from pathlib import Path
from typing import Any

import msgspec

from stepscope.core.documents.run_directory import RUN_FILE, STEPS_FOLDER, TRACES_FOLDER, WHOLE_STEPS_KEY
from stepscope.core.errors import DataError
from stepscope.reference_workloads.suite.cases import HEALTHY, SuiteCase
from stepscope.reference_workloads.suite.results import FIXTURES_FOLDER, SuiteFolder, SuiteRunResult
from stepscope.reference_workloads.suite.score import expected_causes, expected_reasons
from stepscope.store.files import write_whole
from stepscope.store.runs import load_manifest
from stepscope.workflow.analyze import analyze


def write_fixture(case: SuiteCase, result: SuiteRunResult, control: SuiteRunResult, folder: SuiteFolder) -> Path:
    """Trim the traces of a suite's case as far as the verdict stays the same; returns the fixture's folder.

    Raises:
        DataError: there are no traces, or they cannot be read.
    """
    run = folder.runs / case.run.name
    captures = sorted((run / TRACES_FOLDER).glob("step*"), key=lambda path: path.stat().st_mtime)
    if not captures or not any(captures[-1].glob("rank*.json.gz")):
        raise DataError("has no traces", where=case.run.name)
    target = folder.path / FIXTURES_FOLDER / case.name
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(run / STEPS_FOLDER, target / STEPS_FOLDER)
    manifest = replace(load_manifest(run), host="", versions={}, environment={})
    write_whole(target / RUN_FILE, msgspec.json.format(msgspec.json.encode(manifest), indent=1))
    truth = _truth(case, result, control) | _trim(captures[-1], target, result)
    write_whole(target / "truth.json", msgspec.json.format(msgspec.json.encode(truth), indent=1))
    return target


def _trim(capture: Path, target: Path, result: SuiteRunResult) -> dict[str, Any]:
    """Write the smallest traces that are called as the whole ones were; returns what was kept, and whether it is so."""
    traces = {path.name: WholeTrace(path) for path in sorted(capture.glob("rank*.json.gz"))}
    kept_in = target / TRACES_FOLDER / capture.name
    kept_in.mkdir(parents=True)
    for first, end, detail in _ways(min(trace.num_steps for trace in traces.values())):
        for name, trace in traces.items():
            trimmed = trace.trimmed(first, end, detail)
            write_whole(kept_in / name, trimmed.content)
        verdict = analyze([str(target)], keep=False).analysis.verdict
        is_same = verdict.cause is result.cause and set(verdict.reasons) == set(result.reasons)
        if is_same:
            break
    return {
        "steps": list(trimmed.steps),
        "detail": detail.name.lower(),
        "trimmed_verdict": {"cause": verdict.cause, "reasons": verdict.reasons},
        "same_verdict": is_same,
    }


def _ways(num_steps: int) -> list[tuple[int, int, TrimDetail]]:
    """First step, end and detail of what is tried, the smallest first: some faults strike in some steps only."""
    single = [(step, step + 1) for step in range(num_steps)]
    pair = [(0, 2)] if num_steps > 2 else []
    whole = (0, num_steps)
    return [
        *((first, end, TrimDetail.LEDGER) for first, end in [*single, *pair]),
        *((first, end, TrimDetail.KERNELS) for first, end in [*single, *pair, whole]),
    ]


def _truth(case: SuiteCase, result: SuiteRunResult, control: SuiteRunResult) -> dict[str, Any]:
    injection, plan = case.injection, case.run.job.plan
    return {
        "case": case.name,
        "fault": HEALTHY if injection is None else injection.name,
        "severity": {} if injection is None else asdict(injection),
        "shows": "" if injection is None else injection.shows,
        "expected": expected_causes(case),
        "expected_reasons": expected_reasons(case),
        "layout": {"tp": plan.tp, "pp": plan.pp, "dp": plan.dp, "zero": plan.zero},
        "device": result.device,
        "verdict": {"cause": result.cause, "reasons": result.reasons},
        "captured_step_ms": result.captured_step_ms,
        "step_ms": result.step_ms,
        "control_captured_step_ms": control.captured_step_ms,
        "control_step_ms": control.step_ms,
    }


_STEP_PREFIX = "ProfilerStep#"
_ON_DEVICE = frozenset({"kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation", "cuda_sync"})
_LAUNCHED = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
_CALLS = frozenset({"cuda_runtime", "cuda_driver"})
_DROPPED = frozenset({"python_function", "Trace"})
_SHAPES = frozenset({"Input Dims", "Input type", "Concrete Inputs"})
_READ_OF_DEVICE = frozenset(
    {
        "correlation",
        "grid",
        "block",
        "registers per thread",
        "shared memory",
        "bytes",
        "wait_on_stream",
        "wait_on_cuda_event_record_corr_id",
    }
)
_OF_LEDGER = frozenset({"correlation", "bytes"})
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


class TrimDetail(IntEnum):
    """How much of a step a suite's trimmed trace keeps."""

    LEDGER = 0
    """launches, kernels without their sizes, messages, and of operators the outermost, which hold the host's time; to a
    tenth of a microsecond"""
    KERNELS = 1
    """also every operator that launches, shapes and sizes of kernels: what tells FLOPs and recomputation"""


_DECIMALS = {TrimDetail.LEDGER: 1, TrimDetail.KERNELS: 3}
"""Of microseconds: digits of times are most of what gzip cannot shrink."""


@dataclass(frozen=True, slots=True)
class _TrimmedTrace:
    """A trace with less in it: gzipped JSON, and the numbers of the steps that are left."""

    content: bytes
    steps: tuple[int, ...]


class WholeTrace:
    """A Kineto trace of a suite's run that can be trimmed in several ways.

    Raises:
        DataError: it cannot be read or marks no steps.
    """

    def __init__(self, path: Path) -> None:
        try:
            self._document = msgspec.json.decode(gzip.decompress(path.read_bytes()))
            self._events = [event for event in self._document.pop("traceEvents") if _is_wanted(event)]
        except (OSError, EOFError, msgspec.DecodeError, KeyError, TypeError) as error:
            raise DataError(f"cannot be trimmed ({error})", where=str(path)) from error
        marks = (event for event in self._events if _is_step(event))
        self._steps = sorted(marks, key=lambda event: float(event["ts"]))
        self.num_steps = len(self._steps)
        if not self._steps:
            raise DataError("marks no steps", where=str(path))

    def trimmed(self, first: int, end: int, detail: TrimDetail) -> _TrimmedTrace:
        """Its steps `first` to before `end`, counted from 0, and of these what the analysis reads.

        Times are counted from a later base.
        """
        steps = self._steps[first:end]
        kept = _in_window(self._events, float(steps[0]["ts"]), float(steps[-1]["ts"]) + float(steps[-1]["dur"]))
        if detail is TrimDetail.LEDGER:
            kept = _without_inner_operators(kept)
        elif any(event["cat"] in _LAUNCHED for event in kept):
            kept = _without_idle_operators(kept)
        numbers = tuple(int(event["name"].removeprefix(_STEP_PREFIX)) for event in steps)
        encoded = _encoded(self._document, kept, numbers, detail)
        return _TrimmedTrace(gzip.compress(encoded, 9, mtime=0), numbers)


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


def _without_inner_operators(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Leave out operators inside others, whose time is the outer one's, and the profiler's own events."""
    kept = [event for event in events if event["cat"] not in {"cpu_op", "overhead"}]
    for operators, _ in _by_thread(events):
        kept += [
            operator if _tells_of_messages(operator) else {**operator, "args": {}}
            for operator, is_outer in _with_depth(operators)
            if is_outer or _tells_of_messages(operator)
        ]
    return kept


def _with_depth(operators: Iterable[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], bool]]:
    """Each with whether it is inside no other; of one thread, by their start."""
    outer_end = float("-inf")
    for operator in operators:
        begin = float(operator["ts"])
        yield operator, begin >= outer_end
        outer_end = max(outer_end, begin + float(operator.get("dur", 0.0)))


def _without_idle_operators(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Leave out operators inside others that call no runtime: most operators, and nobody's time.

    Those that stay keep their shapes only around a launch.
    """
    kept = [event for event in events if event["cat"] != "cpu_op"]
    for operators, calls in _by_thread(events):
        starts = [float(call["ts"]) for call in calls]
        for operator, is_outer in _with_depth(operators):
            begin = float(operator["ts"])
            end = begin + float(operator.get("dur", 0.0))
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


def _encoded(
    document: dict[str, Any], events: list[dict[str, Any]], steps: tuple[int, ...], detail: TrimDetail
) -> bytes:
    """Events by thread and name, so that neighbours are alike and gzip finds them."""
    shift = int(min(float(event["ts"]) for event in events))
    header = {key: value for key, value in document.items() if key not in {"traceName", "trace_id"}}
    if "baseTimeNanoseconds" in header:
        header["baseTimeNanoseconds"] = int(header["baseTimeNanoseconds"]) + shift * 1000
    else:
        shift = 0
    whole = header.get(WHOLE_STEPS_KEY)
    if isinstance(whole, list):
        header[WHOLE_STEPS_KEY] = [step for step in whole if step in steps]
    header["traceEvents"] = [_slim(event, shift, detail) for event in sorted(events, key=_likeness)]
    return msgspec.json.encode(header)


def _likeness(event: dict[str, Any]) -> tuple[str, str, str, str, float]:
    return str(event["pid"]), str(event["tid"]), event["cat"], event["name"], float(event["ts"])


def _slim(event: dict[str, Any], shift: int, detail: TrimDetail) -> dict[str, Any]:
    slim: dict[str, Any] = {key: event[key] for key in ("ph", "cat", "name", "pid", "tid") if key in event}
    decimals = _DECIMALS[detail]
    begin = float(event["ts"]) - shift
    slim["ts"] = round(begin, decimals)
    # By their ends, so that what was inside something still is.
    slim["dur"] = round(round(begin + float(event.get("dur", 0.0)), decimals) - slim["ts"], decimals)
    arguments = _only(event.get("args", {}), _read_of(event["cat"], detail))
    if arguments:
        slim["args"] = arguments
    return slim


def _read_of(category: str, detail: TrimDetail) -> frozenset[str]:
    if category in _ON_DEVICE:
        return _READ_OF_MESSAGES | (_OF_LEDGER if detail is TrimDetail.LEDGER else _READ_OF_DEVICE)
    if category in _CALLS:
        return frozenset({"correlation"})
    return _SHAPES | _READ_OF_MESSAGES


def _only(arguments: dict[str, Any], names: frozenset[str]) -> dict[str, Any]:
    return {name: value for name, value in arguments.items() if name in names}
