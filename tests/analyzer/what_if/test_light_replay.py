"""The calibrated replay of a light capture finds the cost of a call, and the step without a cost, of simulated jobs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from benchmarks.accuracy.light_replay import replayed
from stepscope.analyzer.what_if.light_capture import LightCapture
from stepscope.analyzer.what_if.light_replay import BETWEEN_KERNELS_NS, LightReplay
from stepscope.analyzer.what_if.planned_calls import Removal
from stepscope.trace.columns import Category
from stepscope.trace.reading import read_ranks
from tests.analyzer.build import COMMUNICATION_STREAM, COMPUTE_STREAM, COPY_STREAM
from tests.analyzer.what_if.light_jobs import (
    EVENT_SYNC,
    FREES,
    GPU_BOUND,
    HOST_BOUND,
    OVERLAPS,
    PREFETCHES,
    READS,
    SYNCHRONIZES,
    TWO_STREAMS,
    Op,
    light_capture,
    light_captures,
    simulated,
    simulated_ranks,
    steady_ms,
    unprofiled_ms,
    without,
)


@pytest.mark.parametrize("cost_us", [0.0, 4.0, 11.0])
@pytest.mark.parametrize("ops", [HOST_BOUND, READS, SYNCHRONIZES, FREES, EVENT_SYNC, PREFETCHES])
def test_the_cost_of_a_call_is_found_where_the_host_counts(ops: list[Op], cost_us: float) -> None:
    fit = light_capture(ops, cost_us).calibrated(unprofiled_ms(ops))
    assert fit.is_sound
    assert fit.captured_error == pytest.approx(0, abs=0.01)
    assert fit.step_ms == pytest.approx(unprofiled_ms(ops), rel=0.01)
    assert fit.call_cost_us == pytest.approx(cost_us, abs=0.7)


@pytest.mark.parametrize("cost_us", [0.0, 4.0, 11.0])
@pytest.mark.parametrize("ops", [GPU_BOUND, TWO_STREAMS, OVERLAPS])
def test_where_the_gpu_counts_too_the_steps_are_met(ops: list[Op], cost_us: float) -> None:
    fit = light_capture(ops, cost_us).calibrated(unprofiled_ms(ops))
    assert fit.captured_error == pytest.approx(0, abs=0.005)
    assert fit.step_ms == pytest.approx(unprofiled_ms(ops), rel=0.005)


_PLAIN_RANK = [*[Op(8, gpu=12)] * 30, Op(3, "collective", 60, COMMUNICATION_STREAM, COMPUTE_STREAM)]
_PLAIN_RANK += [Op(5, gpu=10, after_stream=COMMUNICATION_STREAM), *[Op(8, gpu=6)] * 10]
_READING_RANK = [*[Op(8, gpu=12), Op(4, "read", 2)] * 30, *_PLAIN_RANK[30:]]


@pytest.mark.parametrize("costs_us", [(0.0, 0.0), (6.0, 6.0)])
def test_the_rank_that_is_late_holds_up_the_others_until_its_cause_is_gone(costs_us: tuple[float, float]) -> None:
    bare = steady_ms(*simulated_ranks([_PLAIN_RANK, _READING_RANK], (0.0, 0.0)))
    replay = light_captures(*simulated_ranks([_PLAIN_RANK, _READING_RANK], costs_us))
    fit = replay.calibrated(bare)
    assert fit.captured_error == pytest.approx(0, abs=0.01)
    assert fit.step_ms == pytest.approx(bare, rel=0.01)
    assert fit.call_cost_us == pytest.approx(costs_us[0], abs=0.7)
    mended = [_PLAIN_RANK, without(_READING_RANK, "read")]
    expected = steady_ms(*simulated_ranks(mended, (0.0, 0.0)))
    assert expected < 0.8 * bare
    assert replay.replayed_ms(1e3 * fit.call_cost_us, Removal.BLOCKING_CALLS) == pytest.approx(expected, rel=0.02)


def test_a_collective_takes_as_long_as_on_the_rank_that_enters_last() -> None:
    ranks = [[*[Op(8, gpu=50)] * 20, *_PLAIN_RANK[30:]], [*[Op(8, gpu=20)] * 20, *_PLAIN_RANK[30:]]]
    replay = light_captures(*simulated_ranks(ranks, (0.0, 0.0)))
    without_ms = [unprofiled_ms([replace(op, gpu=op.gpu % 60) for op in own]) for own in ranks]
    assert replay.replayed_ms(0.0, Removal.COLLECTIVES) == pytest.approx(max(without_ms), rel=0.01)


_SPINNING_RANK = [*[Op(2, gpu=60)] * 4, Op(3, "collective", 60, COMMUNICATION_STREAM, COMPUTE_STREAM)]
_SPINNING_RANK += [*[Op(2, gpu=40)] * 30, Op(5, gpu=10, after_stream=COMMUNICATION_STREAM)]


@pytest.mark.parametrize("cost_us", [0.0, 5.0])
def test_kernels_that_a_waiting_collective_slowed_are_replayed_at_their_own_speed(cost_us: float) -> None:
    late = [Op(1_500, "no call"), *_SPINNING_RANK]
    bare = steady_ms(*simulated_ranks([_SPINNING_RANK, _SPINNING_RANK], (0.0, 0.0)))
    captured = simulated_ranks([_SPINNING_RANK, late], (cost_us, cost_us), spin=1.6)
    replay = light_captures(*captured)
    assert replay.replayed_ms(0.0) == pytest.approx(replay.step_ms, rel=0.04)  # one begins ahead
    assert replay.replayed_ms(0.0, Removal.HOST_TIME) == pytest.approx(bare, rel=0.04)  # one begins ahead


@pytest.mark.parametrize("slow_gpu", [60, 90])
def test_a_rank_whose_kernels_are_slow_stays_slow(slow_gpu: int) -> None:
    slow = [replace(op, gpu=slow_gpu) if op.gpu == 60 else op for op in _SPINNING_RANK]
    captured = simulated_ranks([_SPINNING_RANK, slow], (0.0, 0.0), spin=1.6)
    bare = steady_ms(*captured)
    assert light_captures(*captured).replayed_ms(0.0) == pytest.approx(bare, rel=0.02)


@pytest.mark.parametrize("place", [0, 20, 35, len(_PLAIN_RANK)])
@pytest.mark.parametrize("cost_us", [0.0, 6.0])
def test_what_one_host_does_longer_is_gone_where_hosts_are_even(place: int, cost_us: float) -> None:
    late = [*_PLAIN_RANK[:place], Op(900, "no call"), *_PLAIN_RANK[place:]]
    replay = light_captures(*simulated_ranks([_PLAIN_RANK, late], (cost_us, cost_us)))
    bare = steady_ms(*simulated_ranks([_PLAIN_RANK, _PLAIN_RANK], (0.0, 0.0)))
    even = replay.replayed(1e3 * cost_us, Removal.UNEVEN_HOST)
    assert (even.evened, even.num_waits) == (1, 0)
    assert even.step_ms == pytest.approx(bare, rel=0.03)


def test_waits_that_one_rank_has_alone_are_counted() -> None:
    replay = light_captures(*simulated_ranks([_PLAIN_RANK, _READING_RANK], (0.0, 0.0)))
    assert replay.replayed(0.0, Removal.UNEVEN_HOST).num_waits == 30


def test_hosts_that_do_the_same_are_even() -> None:
    replay = light_captures(*simulated_ranks([_PLAIN_RANK, _PLAIN_RANK], (4.0, 4.0)))
    assert replay.replayed_ms(4e3, Removal.UNEVEN_HOST) == pytest.approx(replay.replayed_ms(4e3), rel=0.001)


def test_host_time_after_the_last_call_of_a_step_counts_in_the_last_step_too() -> None:
    ops = [*HOST_BOUND, Op(2_000, "no call")]
    replay = light_capture(ops, 0.0)
    assert replay.replayed_ms(0.0) == pytest.approx(unprofiled_ms(ops), rel=0.01)


def test_ranks_that_launch_other_collectives_are_not_replayed_together() -> None:
    two = simulated_ranks([_PLAIN_RANK, _READING_RANK], (0.0, 0.0))
    with pytest.raises(ValueError, match="the same collectives"):
        light_captures(two[0], simulated(OVERLAPS))


_OPS = st.one_of(
    st.builds(Op, st.integers(1, 40), st.just("kernel"), st.integers(1, 60)),
    st.builds(Op, st.integers(1, 20), st.just("kernel"), st.integers(1, 30), st.just(COPY_STREAM)),
    st.builds(Op, st.integers(1, 20), st.just("kernel"), st.integers(1, 30), after_stream=st.just(COPY_STREAM)),
    st.builds(Op, st.integers(1, 20), st.sampled_from(["read", "sync", "free"]), st.integers(1, 5)),
)
_COLLECTIVE = Op(3, "collective", 50, COMMUNICATION_STREAM, COMPUTE_STREAM)


@given(
    st.lists(st.tuples(st.lists(_OPS, min_size=3, max_size=12), st.integers(0, 12)), min_size=1, max_size=3),
    st.integers(0, 2),
)
@settings(max_examples=25, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
def test_any_job_is_replayed_as_captured_and_gains_from_what_is_taken_away(
    ranks: list[tuple[list[Op], int]], num_collectives: int
) -> None:
    num_collectives = max(num_collectives, len(ranks) > 1)  # what binds ranks together
    ops = [[*own, *[_COLLECTIVE, *own[:3]] * num_collectives] for own, _ in ranks]
    replay = light_captures(*simulated_ranks(ops, [cost for _, cost in ranks]))
    kept_ms = replay.replayed_ms(0.0)
    assert kept_ms == pytest.approx(replay.step_ms, rel=0.02 if len(ranks) == 1 else 0.04)  # one may begin ahead
    assert replay.replayed_ms(2_000.0) <= 1.001 * kept_ms
    for removal in Removal:
        is_uneven = removal is Removal.UNEVEN_HOST  # which changes when a rank's first counted step begins
        assert replay.replayed_ms(0.0, removal) <= (1.01 if is_uneven else 1.001) * kept_ms


@pytest.mark.parametrize(
    ("ops", "removal", "fixed"),
    [
        (READS, Removal.BLOCKING_CALLS, without(READS, "read")),
        (SYNCHRONIZES, Removal.BLOCKING_CALLS, without(SYNCHRONIZES, "sync")),
        (FREES, Removal.ALLOCATIONS, without(FREES, "free")),
        (TWO_STREAMS, Removal.COLLECTIVES, [replace(op, gpu=op.gpu % 100) for op in TWO_STREAMS]),
        (EVENT_SYNC, Removal.BLOCKING_CALLS, without(EVENT_SYNC, "event sync")),
        (PREFETCHES, Removal.COPIES, [op for op in PREFETCHES if op.kind != "prefetch"]),
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
    job = simulated(HOST_BOUND, 4.0)
    trace, ends = job.trace, job.ends
    plain_ms = light_captures(job).replayed_ms(0)
    for start in range(ends[0], ends[-1], 50_000):
        trace.runtime("cudaEventQuery", start, start + 40_000, thread=99)
    assert light_captures(job).replayed_ms(0) == plain_ms


def test_a_capture_without_whole_steps_or_launches_is_refused() -> None:
    job = simulated(HOST_BOUND)
    trace, ends = job.trace, job.ends
    with pytest.raises(ValueError, match="two whole steps"):
        LightCapture(trace.build(), ends[:2])
    with pytest.raises(ValueError, match="no kernel"):
        LightCapture(trace.build(), [one + 10**9 for one in ends])


@pytest.mark.shared
@pytest.mark.parametrize(
    ("name", "removal", "without"),
    [
        ("nan_check", Removal.BLOCKING_CALLS, "fixed_ms"),
        ("item_norms", Removal.BLOCKING_CALLS, "fixed_ms"),
        ("empty_cache", Removal.ALLOCATIONS, "fixed_ms"),
        ("same_no_graph", Removal.HOST_TIME, "without_launch_costs_ms"),
    ],
)
def test_recorded_captures_predict_the_measured_step(
    shared_traces: Path, name: str, removal: Removal, without: str
) -> None:
    truth = json.loads((shared_traces / "light" / "truth.json").read_text())[name]
    figures = replayed(shared_traces / "light", name, truth)
    assert abs(figures["replay_error"]) < 0.05
    assert figures[removal.value] == pytest.approx(truth[without], rel=0.1)


@pytest.mark.shared
@pytest.mark.parametrize("name", ["print_loss", "item_control"])
def test_recorded_jobs_that_the_host_bounds_gain_nothing_without_their_blocking_calls(
    shared_traces: Path, name: str
) -> None:
    truth = json.loads((shared_traces / "light" / "truth.json").read_text())[name]
    figures = replayed(shared_traces / "light", name, truth)
    assert figures[Removal.BLOCKING_CALLS.value] == figures["unprofiled"]


@pytest.mark.shared
@pytest.mark.parametrize("case", ["ddp", "fsdp", "fsdp_p2poff", "tp", "pp_few", "straggler", "slow_loader"])
def test_recorded_jobs_of_two_gpus_are_replayed_as_captured(shared_traces: Path, case: str) -> None:
    traces = [
        trace for path in sorted((shared_traces / "h100x2" / case).glob("*.json.gz")) for trace in read_ranks(path)
    ]
    captures = []
    for trace in traces:
        marks = trace.rows_named(lambda name: name.startswith("ProfilerStep#"), Category.USER_ANNOTATION)
        ends = sorted(trace.end_ns[marks].tolist())
        captures.append(LightCapture(trace, [int(trace.start_ns[marks].min()), *ends]))
    replay = LightReplay(captures)
    assert len(captures) == 2
    assert replay.replayed_ms(0.0) == pytest.approx(replay.step_ms, rel=0.05)
    for removal in Removal:
        assert replay.replayed_ms(0.0, removal) <= 1.001 * replay.replayed_ms(0.0)
