"""The calibrated replay of a light capture finds the cost of a call, and the step without a cost, of simulated jobs."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import mean

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.analyzer.what_if.light_replay import (
    BETWEEN_KERNELS_NS,
    LAUNCH_LATENCY_NS,
    LONGEST_QUEUE,
    LightCapture,
    Removal,
)
from stepscope.trace.reading import read_ranks
from tests.analyzer.build import COMMUNICATION_STREAM, COMPUTE_STREAM, TraceBuilder

_OWN_NS = 3_000
_NUM_STEPS = 7


@dataclass(frozen=True)
class _Op:
    """Host time, then a call: a launch, or one that blocks; times in us."""

    host: int
    kind: str = "kernel"
    gpu: int = 0
    stream: int = COMPUTE_STREAM
    after_stream: int | None = None


def _simulated(ops: Iterable[_Op], cost_us: float = 0.0) -> tuple[TraceBuilder, list[int], list[int]]:
    """Trace of some steps of these operations with a cost of each call; the ends of the steps, also on the GPU."""
    trace = TraceBuilder(ns=1)
    host = 1_000_000
    free: dict[int, int] = {}
    begun: list[int] = []
    ends, finished = [host], [host]
    for _ in range(_NUM_STEPS):
        for op in ops:
            host += round(1e3 * op.host)
            if op.kind == "no call":
                continue
            call, own = host, _OWN_NS + round(1e3 * cost_us)
            if op.kind in ("sync", "free"):
                host = max(host, *free.values(), 0) + own
                trace.runtime("cudaFree" if op.kind == "free" else "cudaDeviceSynchronize", call, host)
                continue
            if len(begun) >= LONGEST_QUEUE:
                host = max(host, begun[-LONGEST_QUEUE])
            waits = op.kind == "read"
            host += 0 if waits else own
            start = max(free.get(op.stream, 0) + BETWEEN_KERNELS_NS, host + LAUNCH_LATENCY_NS)
            if op.after_stream is not None:
                start = max(start, free.get(op.after_stream, 0))
            end = free[op.stream] = start + 1000 * op.gpu
            begun.append(start)
            if waits:
                host = end + own
                trace.copy(start, end, launch=call, launch_end=host, stream=op.stream)
            elif op.kind == "collective":
                trace.collective("allreduce", start, end, launch=call, group=(0, 1), stream=op.stream)
            else:
                trace.kernel(start, end, launch=call, launch_end=host, stream=op.stream)
        ends.append(host)
        finished.append(max(host, *free.values()))
    return trace, ends, finished


def _step_ms(ops: Iterable[_Op]) -> float:
    """Mean step without the profiler, in steady state."""
    _, _, finished = _simulated(ops)
    return mean(later - earlier for earlier, later in pairwise(finished[2:])) / 1e6


def _without(ops: Iterable[_Op], kind: str) -> list[_Op]:
    """The operations without such calls; the host time before them stays."""
    return [replace(op, kind="no call") if op.kind == kind else op for op in ops]


def _capture(ops: Iterable[_Op], cost_us: float) -> LightCapture:
    trace, ends, _ = _simulated(ops, cost_us)
    return LightCapture(trace.build(), ends)


HOST_BOUND = [_Op(12, gpu=2)] * 40
GPU_BOUND = [_Op(1, gpu=30)] * 400
READS = [*[_Op(6, gpu=20)] * 30, _Op(5, "read", 2), *[_Op(20, gpu=5)] * 10]
SYNCHRONIZES = [*[_Op(6, gpu=20)] * 30, _Op(5, "sync"), *[_Op(20, gpu=5)] * 30]
FREES = [*[_Op(6, gpu=20)] * 30, _Op(40, "free"), *[_Op(20, gpu=5)] * 30]
TWO_STREAMS = [
    *[_Op(8, gpu=20)] * 20,
    _Op(5, "collective", 400, COMMUNICATION_STREAM, COMPUTE_STREAM),
    _Op(5, gpu=10, after_stream=COMMUNICATION_STREAM),
    _Op(5, "sync"),
]


@pytest.mark.parametrize("cost_us", [0.0, 4.0, 11.0])
@pytest.mark.parametrize("ops", [HOST_BOUND, READS, SYNCHRONIZES, FREES, TWO_STREAMS])
def test_the_cost_of_a_call_is_found_where_the_host_counts(ops: list[_Op], cost_us: float) -> None:
    fit = _capture(ops, cost_us).calibrated(_step_ms(ops))
    assert fit.is_sound
    assert fit.captured_error == pytest.approx(0, abs=0.01)
    assert fit.step_ms == pytest.approx(_step_ms(ops), rel=0.01)
    assert fit.call_cost_us == pytest.approx(cost_us, abs=0.7)


@pytest.mark.parametrize(
    ("ops", "removal", "fixed"),
    [
        (READS, Removal.BLOCKING_CALLS, _without(READS, "read")),
        (SYNCHRONIZES, Removal.BLOCKING_CALLS, _without(SYNCHRONIZES, "sync")),
        (FREES, Removal.ALLOCATIONS, _without(FREES, "free")),
        (TWO_STREAMS, Removal.COLLECTIVES, [replace(op, gpu=op.gpu % 100) for op in TWO_STREAMS]),
        (HOST_BOUND, Removal.BLOCKING_CALLS, HOST_BOUND),
        (GPU_BOUND, Removal.BLOCKING_CALLS, GPU_BOUND),
    ],
)  # fmt: skip
def test_the_step_without_a_cost_is_what_it_takes_without(ops: list[_Op], removal: Removal, fixed: list[_Op]) -> None:
    capture = _capture(ops, 9.0)
    fit = capture.calibrated(_step_ms(ops))
    assert capture.replayed_ms(1e3 * fit.call_cost_us, removal) == pytest.approx(_step_ms(fixed), rel=0.03)


def test_without_host_time_only_the_gpu_counts() -> None:
    per_step_ms = 40 * (2_000 + BETWEEN_KERNELS_NS) / 1e6
    assert _capture(HOST_BOUND, 9.0).replayed_ms(0, Removal.HOST_TIME) == pytest.approx(per_step_ms, rel=0.05)


@given(
    st.lists(st.builds(_Op, st.integers(1, 40), st.just("kernel"), st.integers(1, 60)), min_size=5, max_size=60),
    st.integers(0, 12),
)
@settings(max_examples=30)
def test_any_job_without_blocking_calls_gains_nothing_from_their_removal(ops: list[_Op], cost_us: int) -> None:
    capture = _capture(ops, cost_us)
    assert capture.replayed_ms(0) == pytest.approx(capture.step_ms, rel=0.02)
    assert capture.replayed_ms(500.0, Removal.BLOCKING_CALLS) == capture.replayed_ms(500.0)


def test_steps_that_no_cost_of_a_call_explains_give_no_prediction() -> None:
    capture = _capture(HOST_BOUND, 4.0)
    assert not capture.calibrated(0.1 * _step_ms(HOST_BOUND)).is_sound
    assert not capture.calibrated(2.0 * _step_ms(HOST_BOUND)).is_sound


def test_calls_inside_another_and_of_threads_that_launch_nothing_do_not_count() -> None:
    trace, ends, _ = _simulated(HOST_BOUND, 4.0)
    plain_ms = LightCapture(trace.build(), ends).replayed_ms(0)
    for start in range(ends[0], ends[-1], 50_000):
        trace.runtime("cudaEventQuery", start, start + 40_000, thread=99)
    assert LightCapture(trace.build(), ends).replayed_ms(0) == plain_ms


def test_a_capture_without_whole_steps_or_launches_is_refused() -> None:
    trace, ends, _ = _simulated(HOST_BOUND)
    with pytest.raises(ValueError, match="two whole steps"):
        LightCapture(trace.build(), ends[:2])
    with pytest.raises(ValueError, match="no kernel"):
        LightCapture(trace.build(), [one + 10**9 for one in ends])


@pytest.mark.shared
@pytest.mark.parametrize(
    ("name", "removal", "error"),
    [
        ("nan_check", Removal.BLOCKING_CALLS, 0.1),
        ("item_norms", Removal.BLOCKING_CALLS, 0.1),
        ("empty_cache", Removal.ALLOCATIONS, 0.1),
        ("same_no_graph", Removal.HOST_TIME, 0.1),
    ],
)
def test_recorded_captures_predict_the_measured_step(
    shared_traces: Path, name: str, removal: Removal, error: float
) -> None:
    truth = json.loads((shared_traces / "light" / "truth.json").read_text())[name]
    capture = _recorded(shared_traces, name)
    fit = capture.calibrated(truth["neighbours_ms"])
    assert fit.is_sound
    measured_ms = truth["fixed_ms"] or truth["without_launch_costs_ms"]
    assert capture.replayed_ms(1e3 * fit.call_cost_us, removal) == pytest.approx(measured_ms, rel=error)


@pytest.mark.shared
def test_a_recorded_job_that_the_host_bounds_gains_nothing_without_its_blocking_calls(shared_traces: Path) -> None:
    capture = _recorded(shared_traces, "print_loss")
    fit = capture.calibrated(103.5)
    assert fit.is_sound
    assert capture.replayed_ms(1e3 * fit.call_cost_us, Removal.BLOCKING_CALLS) > 0.97 * fit.step_ms


def _recorded(shared_traces: Path, name: str) -> LightCapture:
    truth = json.loads((shared_traces / "light" / "truth.json").read_text())[name]
    ends = np.array(truth["step_ends_ns"])[truth["first_captured"] : truth["capture_ended_in"]]
    (trace,) = read_ranks(shared_traces / "light" / f"{name}.json.gz")
    return LightCapture(trace, ends.tolist())
