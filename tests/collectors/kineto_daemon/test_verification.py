"""A trace is read to verify that it holds the requested steps."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from stepscope.collectors.kineto_daemon.protocol import KinetoTraceReader, KinetoTraceSummary, kineto_trace_fault

BASE = 1_790_857_026_000_000_000


def event(category: str, name: str, begin_us: float, **extra: object) -> dict[str, object]:
    return {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": 1, "ts": begin_us, "dur": 5.0, **extra}


def trace_of(events: list[dict[str, object]], **header: object) -> bytes:
    return json.dumps(
        {"schemaVersion": 1, "baseTimeNanoseconds": BASE, **header, "traceEvents": events}, indent=1
    ).encode()


def summary_of(content: bytes, block: int = 1 << 16) -> KinetoTraceSummary:
    reader = KinetoTraceReader()
    for begin in range(0, len(content), block):
        reader.feed(content[begin : begin + block])
    return reader.summary()


STEPS = [event("user_annotation", "Optimizer.step#SGD.step", 1000.5 + 20_000 * k) for k in range(3)]
START: list[dict[str, object]] = [
    {
        "ph": "i",
        "s": "g",
        "name": "Iteration Start: PyTorch Profiler",
        "pid": "Traces",
        "tid": "Trace PyTorch Profiler",
        "ts": 0.0,
    }
]
WORK = [event("cpu_op", "aten::mm", 10.0, args={"name": "Optimizer.step#", "a": [1]})]


@given(st.integers(1, 700))
def test_a_trace_is_summed_up_alike_in_blocks_of_any_size(block: int) -> None:
    content = trace_of(WORK + STEPS + START, distributedInfo={"backend": "gloo", "rank": 3, "world_size": 4})
    summary = summary_of(content, block)
    assert summary == summary_of(content)
    assert summary.num_events == {"cpu_op": 1, "user_annotation": 3}
    assert summary.step_ends_ns == tuple(BASE + 1_000_500 + 20_000_000 * k for k in range(3))
    assert (summary.rank, summary.num_bytes, summary.is_whole) == (3, len(content), True)
    assert summary.begin_ns == BASE
    assert summary.step_seconds == 0.02
    assert kineto_trace_fault(summary, 3) is None


def test_the_length_of_a_step_is_known_from_one_step() -> None:
    assert summary_of(trace_of(WORK + STEPS[:1] + START)).step_seconds == 0.0010005
    assert summary_of(trace_of(WORK + STEPS[:1])).step_seconds is None


def test_the_gpus_copy_of_a_mark_is_no_step() -> None:
    copies = [event("gpu_user_annotation", "Optimizer.step#SGD.step", 5.0)]
    assert len(summary_of(trace_of(WORK + STEPS + copies)).step_ends_ns) == 3


def test_empty_and_import_only_traces_and_other_numbers_of_steps_are_told() -> None:
    assert kineto_trace_fault(summary_of(trace_of([])), 3) == "the trace holds no operators (no events at all)"
    frames = [event("python_function", "importlib.py(1): load", 1.0)]
    assert kineto_trace_fault(summary_of(trace_of(frames)), 3) == "the trace holds no operators (1 python_function)"
    assert kineto_trace_fault(summary_of(trace_of(WORK + STEPS[:2])), 3) == "the trace holds 2 optimizer steps of 3"
    whole = trace_of(WORK + STEPS)
    assert kineto_trace_fault(summary_of(whole[:-20]), 3) == f"the trace is cut short at {len(whole) - 20} bytes"


def test_a_single_event_of_megabytes_is_passed_over_in_bounded_memory() -> None:
    long = event("cpu_op", "x" * (5 << 20), 1.0)
    assert summary_of(trace_of([long, *WORK, *STEPS])).step_ends_ns == summary_of(trace_of(STEPS)).step_ends_ns


@given(st.binary(max_size=2000), st.integers(1, 400))
def test_any_bytes_are_summed_up(content: bytes, block: int) -> None:
    assert summary_of(content, block).num_bytes == len(content)


def test_numbers_of_thousands_of_digits_are_no_times() -> None:
    """Python refuses to convert them: a process could end its own capture, and all others', with one."""
    event = b'{"ph": "X", "cat": "user_annotation", "name": "Optimizer.step#SGD.step", "pid": 1, "tid": 1, "ts": %s}'
    summary = summary_of(b'{"traceEvents": [' + event % (b"9" * 5000) + b"]}")
    assert kineto_trace_fault(summary, 1) is not None
