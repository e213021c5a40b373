"""Communication that can be avoided is found by its mechanism, and its gain is that of the job without it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.labelled_runs.score import KEPT, truth_of
from stepscope.analyzer.headroom.knobs import TORCH_KNOBS
from stepscope.analyzer.summaries import JobContext
from stepscope.core.documents.analysis import Analysis, Headroom
from stepscope.core.documents.training_settings import BackwardSettings, FsdpSettings, TrainingSettings
from stepscope.core.vocabulary import Cause, Change
from stepscope.workflow.analyze import analyze
from tests.analyzer.headroom.device_exchanges import DeviceExchange
from tests.analyzer.headroom.device_exchanges import run as run_on_devices
from tests.analyzer.headroom.exchanges import Exchange, run
from tests.analyzer.readings import analyse

ACCUMULATING = Exchange(buckets=(1_000_000, 200_000), passes=4, reducing=4)
SMALL = Exchange(buckets=(1_000, 20_000, 1_000, 1_000, 1_000, 20_000), compute=50, latency=2_000)


def analysis_of(job: Exchange, settings: TrainingSettings | None = None) -> Analysis:
    traces, _ = run(job)
    return analyse(*traces, context=JobContext(settings=settings))


def step_after(analysis: Analysis, change: Change) -> float | None:
    """Predicted step after a change, of the fix or the headroom; None where it is not advised."""
    verdict = analysis.verdict
    if verdict.fix is not None and verdict.fix.action.partition(" (now ")[0] == TORCH_KNOBS[change]:
        return verdict.fix.step_ms
    return next((row.step_ms for row in verdict.headroom if row.change is change), None)


@pytest.mark.parametrize("passes", [2, 3, 4, 8])
def test_gradients_reduced_in_every_pass_gain_what_reducing_them_once_does(passes: int) -> None:
    job = replace(ACCUMULATING, passes=passes, reducing=passes)
    expected = run(replace(job, reducing=1))[1]
    assert step_after(analysis_of(job), Change.NO_SYNC) == pytest.approx(expected, rel=0.02)


def test_gradients_reduced_once_are_not_avoidable() -> None:
    assert step_after(analysis_of(replace(ACCUMULATING, reducing=1)), Change.NO_SYNC) is None


def test_buckets_of_equal_sizes_are_not_several_passes() -> None:
    job = Exchange(buckets=(1_000_000,) * 4)
    assert step_after(analysis_of(job), Change.NO_SYNC) is None
    assert step_after(analysis_of(replace(job, forwards="once")), Change.NO_SYNC) is None


def test_without_marked_passes_their_number_must_be_in_the_settings() -> None:
    job = replace(ACCUMULATING, forwards="none")
    assert step_after(analysis_of(job), Change.NO_SYNC) is None
    settings = TrainingSettings(backward=BackwardSettings(passes=4, synchronized_passes=4))
    expected = run(replace(job, reducing=1))[1]
    assert step_after(analysis_of(job, settings), Change.NO_SYNC) == pytest.approx(expected, rel=0.1)


def test_an_update_after_each_pass_needs_each_reduction() -> None:
    assert step_after(analysis_of(replace(ACCUMULATING, updates_each=True)), Change.NO_SYNC) is None


def test_small_buckets_gain_what_one_bucket_does() -> None:
    expected = run(replace(SMALL, buckets=(sum(SMALL.buckets),), compute=6 * SMALL.compute, copies=6 * SMALL.copies))[1]
    after = step_after(analysis_of(SMALL), Change.LARGER_BUCKETS)
    if after is None:  # the last reduction of a pass hides all others
        after = analysis_of(SMALL).job.step_ms
    assert after == pytest.approx(expected, rel=0.05)


def test_a_search_for_unused_parameters_gains_its_time_where_all_are_used() -> None:
    job = Exchange(buckets=(100_000, 100_000), searches=1_500)
    expected = run(replace(job, searches=0))[1]
    assert step_after(analysis_of(job), Change.UNUSED_PARAMETERS) == pytest.approx(expected, rel=0.02)
    assert step_after(analysis_of(replace(job, unused=1)), Change.UNUSED_PARAMETERS) is None


def test_the_change_is_the_fix_of_a_job_that_communicates_too_much() -> None:
    run_folder = KEPT / "cpu" / "ddp_reduces_often"
    verdict = analyze([str(run_folder)], keep=False).analysis.verdict
    truth = truth_of(run_folder)
    assert verdict.cause is Cause.COMMUNICATION
    assert verdict.fix is not None
    assert "no_sync" in verdict.fix.action == verdict.actions[0]
    assert not any("no_sync" in action for action in verdict.actions[1:])
    assert "reduced in each of 4 micro-batches" in verdict.summary
    assert 1 - 1 / (verdict.fix.speedup or 1) == pytest.approx(1 - truth["fixed_ms"] / truth["bare_ms"], abs=0.03)


@pytest.mark.parametrize("name", ["ddp_plain", "trainer_plain_ranks", "fsdp_plain"])
def test_healthy_ranks_have_no_headroom_of_communication(name: str) -> None:
    rows: list[Headroom] = analyze([str(KEPT / "cpu" / name)], keep=False).analysis.verdict.headroom
    assert rows == []


HIDDEN = DeviceExchange(buckets=((1_500, 1_000_000), (1_500, 1_000_000), (500, 300_000)), passes=4, reducing=4)
EXPOSED = DeviceExchange(buckets=((3_000, 1_000_000), (900, 300_000)), compute=500, passes=4, reducing=4)


@pytest.mark.parametrize("job", [HIDDEN, EXPOSED, replace(EXPOSED, passes=2, reducing=2, num_ranks=4)])
def test_gpus_gain_what_reducing_once_does(job: DeviceExchange) -> None:
    traces, before = run_on_devices(job)
    expected = run_on_devices(replace(job, reducing=1))[1]
    analysis = analyse(*traces)
    after = step_after(analysis, Change.NO_SYNC)
    if after is None:
        assert expected > 0.94 * before  # 5% of a step are not listed
    else:
        assert after == pytest.approx(expected, rel=0.03)


def test_gpus_that_reduce_once_are_advised_nothing() -> None:
    traces, _ = run_on_devices(replace(EXPOSED, reducing=1))
    assert step_after(analyse(*traces), Change.NO_SYNC) is None


def test_small_buckets_on_gpus_gain_their_latency() -> None:
    sizes = ((1_000, 10_000), (1_080, 90_000), (1_000, 10_000), (1_000, 10_000))
    job = DeviceExchange(buckets=sizes, compute=200)
    one = DeviceExchange(buckets=((1_110, 120_000),), compute=800, copies=100)
    expected = run_on_devices(one)[1] + 3 * 0.1  # the same copies into the bucket
    after = step_after(analyse(*run_on_devices(job)[0]), Change.LARGER_BUCKETS)
    assert after == pytest.approx(expected, rel=0.05)


def test_gains_of_two_changes_are_not_added_up() -> None:
    job = DeviceExchange(buckets=((1_000, 10_000), (1_080, 90_000), (1_000, 10_000)), compute=200, passes=4, reducing=4)
    traces, before = run_on_devices(job)
    verdict = analyse(*traces).verdict
    alone = [verdict.fix.step_ms or before] if verdict.fix is not None else []
    rows = [row for row in verdict.headroom if row.change in {Change.NO_SYNC, Change.LARGER_BUCKETS}]
    gains = [before - step_ms for step_ms in [*alone, *(row.step_ms for row in rows)]]
    once = run_on_devices(replace(job, reducing=1))[1]
    assert len(gains) == 2
    assert all(row.together_ms is None or row.together_ms >= before - sum(gains) for row in rows)
    assert max(gains) == pytest.approx(before - once, rel=0.05)


HALF = TrainingSettings(autocast={"cuda": "bfloat16"}, backward=BackwardSettings(passes=1, compute_types=["bfloat16"]))


def test_gradients_in_16_bits_take_half_of_the_bytes_where_compute_has_no_more() -> None:
    job = DeviceExchange(buckets=((2_200, 1_000_000), (700, 250_000)), compute=300)
    expected = run_on_devices(replace(job, buckets=((1_200, 500_000), (450, 125_000))))[1]
    traces, _ = run_on_devices(job)
    change = Change.REDUCED_PRECISION_GRADIENTS
    assert step_after(analyse(*traces, context=JobContext(settings=HALF)), change) == pytest.approx(expected, rel=0.02)
    full = TrainingSettings(backward=BackwardSettings(passes=1, compute_types=["float32"]))
    assert step_after(analyse(*traces, context=JobContext(settings=full)), change) is None
    assert step_after(analyse(*traces), change) is None


def test_one_unit_for_all_layers_exposes_what_units_of_layers_hide() -> None:
    traces, before = run_on_devices(DeviceExchange(buckets=((4_000, 1_000_000),), compute=3_000))
    whole = TrainingSettings(fsdp=[FsdpSettings(version=2, num_units=1, num_layers=8)])
    after = step_after(analyse(*traces, context=JobContext(settings=whole)), Change.SHARDING_UNITS)
    assert after == pytest.approx(before - 7 / 8 * 4.0, rel=0.05)
    by_layers = TrainingSettings(fsdp=[FsdpSettings(version=2, num_units=9, num_layers=8)])
    assert step_after(analyse(*traces, context=JobContext(settings=by_layers)), Change.SHARDING_UNITS) is None
