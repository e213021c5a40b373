"""The calibrated replay of a light capture finds the cost of a call, and the step without a cost, of simulated jobs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.analyzer.what_if.light_capture import LightCapture
from stepscope.analyzer.what_if.light_replay import BETWEEN_KERNELS_NS, LightReplay, Removal
from stepscope.trace.reading import read_ranks
from tests.analyzer.what_if.light_jobs import (
    FREES,
    GPU_BOUND,
    HOST_BOUND,
    READS,
    SYNCHRONIZES,
    TWO_STREAMS,
    Op,
    light_capture,
    simulated,
    unprofiled_ms,
    without,
)


@pytest.mark.parametrize("cost_us", [0.0, 4.0, 11.0])
@pytest.mark.parametrize("ops", [HOST_BOUND, READS, SYNCHRONIZES, FREES, TWO_STREAMS])
def test_the_cost_of_a_call_is_found_where_the_host_counts(ops: list[Op], cost_us: float) -> None:
    fit = light_capture(ops, cost_us).calibrated(unprofiled_ms(ops))
    assert fit.is_sound
    assert fit.captured_error == pytest.approx(0, abs=0.01)
    assert fit.step_ms == pytest.approx(unprofiled_ms(ops), rel=0.01)
    assert fit.call_cost_us == pytest.approx(cost_us, abs=0.7)


@pytest.mark.parametrize(
    ("ops", "removal", "fixed"),
    [
        (READS, Removal.BLOCKING_CALLS, without(READS, "read")),
        (SYNCHRONIZES, Removal.BLOCKING_CALLS, without(SYNCHRONIZES, "sync")),
        (FREES, Removal.ALLOCATIONS, without(FREES, "free")),
        (TWO_STREAMS, Removal.COLLECTIVES, [replace(op, gpu=op.gpu % 100) for op in TWO_STREAMS]),
        (HOST_BOUND, Removal.BLOCKING_CALLS, HOST_BOUND),
        (GPU_BOUND, Removal.BLOCKING_CALLS, GPU_BOUND),
    ],
)  # fmt: skip
def test_the_step_without_a_cost_is_what_it_takes_without(ops: list[Op], removal: Removal, fixed: list[Op]) -> None:
    capture = light_capture(ops, 9.0)
    fit = capture.calibrated(unprofiled_ms(ops))
    assert capture.replayed_ms(1e3 * fit.call_cost_us, removal) == pytest.approx(unprofiled_ms(fixed), rel=0.03)


def test_without_host_time_only_the_gpu_counts() -> None:
    per_step_ms = 40 * (2_000 + BETWEEN_KERNELS_NS) / 1e6
    assert light_capture(HOST_BOUND, 9.0).replayed_ms(0, Removal.HOST_TIME) == pytest.approx(per_step_ms, rel=0.05)


@given(
    st.lists(st.builds(Op, st.integers(1, 40), st.just("kernel"), st.integers(1, 60)), min_size=5, max_size=60),
    st.integers(0, 12),
)
@settings(max_examples=30)
def test_any_job_without_blocking_calls_gains_nothing_from_their_removal(ops: list[Op], cost_us: int) -> None:
    capture = light_capture(ops, cost_us)
    assert capture.replayed_ms(0) == pytest.approx(capture.step_ms, rel=0.02)
    assert capture.replayed_ms(500.0, Removal.BLOCKING_CALLS) == capture.replayed_ms(500.0)


def test_steps_that_no_cost_of_a_call_explains_give_no_prediction() -> None:
    capture = light_capture(HOST_BOUND, 4.0)
    assert not capture.calibrated(0.1 * unprofiled_ms(HOST_BOUND)).is_sound
    assert not capture.calibrated(2.0 * unprofiled_ms(HOST_BOUND)).is_sound


def test_calls_inside_another_and_of_threads_that_launch_nothing_do_not_count() -> None:
    trace, ends, _ = simulated(HOST_BOUND, 4.0)
    plain_ms = LightReplay([LightCapture(trace.build(), ends)]).replayed_ms(0)
    for start in range(ends[0], ends[-1], 50_000):
        trace.runtime("cudaEventQuery", start, start + 40_000, thread=99)
    assert LightReplay([LightCapture(trace.build(), ends)]).replayed_ms(0) == plain_ms


def test_a_capture_without_whole_steps_or_launches_is_refused() -> None:
    trace, ends, _ = simulated(HOST_BOUND)
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


def _recorded(shared_traces: Path, name: str) -> LightReplay:
    truth = json.loads((shared_traces / "light" / "truth.json").read_text())[name]
    ends = np.array(truth["step_ends_ns"])[truth["first_captured"] : truth["capture_ended_in"]]
    (trace,) = read_ranks(shared_traces / "light" / f"{name}.json.gz")
    return LightReplay([LightCapture(trace, ends.tolist())])
