"""A comparison names what changed, stays silent about the rest, and says how little it knows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stepscope.analyzer.compare.comparison import compare_runs
from stepscope.analyzer.compare.run_record import RunRecord, cause_figure
from stepscope.core.documents.analysis import Collective, KernelTime, RootCause
from stepscope.core.documents.comparison import Change, Comparison
from stepscope.core.documents.run_directory import RunManifest
from stepscope.core.documents.training_settings import BackwardSettings, TrainingSettings
from stepscope.core.vocabulary import Cause, TimeCategory
from tests.analyzer.compare.runs import make_run, with_pipeline


def between(a: RunRecord | list[RunRecord], b: RunRecord | list[RunRecord]) -> Comparison:
    left, right = (side if isinstance(side, list) else [side] for side in (a, b))
    return compare_runs(left, right, names=("a", "b"))


def codes(comparison: Comparison) -> list[str]:
    return [notice.code for notice in (*comparison.findings, *comparison.warnings)]


def test_a_run_compared_with_itself_has_not_changed() -> None:
    kernels = [KernelTime("gemm", 30, 90.0, TimeCategory.COMPUTE_BOUND, "model")]
    run = make_run(100.0, 101.0, causes={Cause.COMPUTE_BOUND: 1.0}, kernels=kernels, mfu=0.4)
    found = between(run, run)
    parts = [row.ms for row in found.headings] + [row.ms for row in found.causes] + [row.ms for row in found.kernels]
    assert {difference.state for difference in (found.step_time, found.mfu, *parts)} == {Change.NOT_SEEN}
    assert found.summary.startswith("no change seen: 100.5 -> 100.5 ms a step")


def test_what_became_slower_is_named_with_its_ranks() -> None:
    fast = make_run(100.0, 100.2, causes={Cause.COMPUTE_BOUND: 1.0})
    slow = make_run(150.0, 150.2, causes={Cause.COMPUTE_BOUND: 0.667, Cause.DATA_LOADING: 0.333})
    found = between(fast, slow)
    assert found.step_time.state is Change.SLOWER
    assert found.causes[0].cause is Cause.DATA_LOADING
    assert found.causes[0].ms.state is Change.SLOWER
    assert "data loading +50.0 ms (rank 0)" in found.summary
    assert between(slow, fast).step_time.state is Change.FASTER


def test_runs_without_a_gpu_are_compared_in_their_words() -> None:
    fast, slow = (
        make_run(100.0, 100.2, causes={Cause.HOST_BOUND: 0.5}),
        make_run(150.0, 150.2, causes={Cause.HOST_BOUND: 0.6}),
    )
    on_cpu = [
        replace(run, analysis=replace(run.analysis, job=replace(run.analysis.job, device_kind="cpu")))
        for run in (fast, slow)
    ]
    found = between(*on_cpu)
    assert found.device_kind == "cpu"
    assert "Python and framework code between operators +50.0 ms (rank 0)" in found.summary
    assert between(fast, slow).device_kind == "gpu"
    assert between(fast, on_cpu[1]).device_kind is None


def test_causes_and_categories_add_up_to_the_step_whatever_the_window_says() -> None:
    fast = make_run(100.0, 100.2, causes={Cause.COMPUTE_BOUND: 1.0})
    slow = make_run(150.0, 150.2, causes={Cause.COMPUTE_BOUND: 0.667, Cause.DATA_LOADING: 0.333})
    rows = [replace(row, fraction=0.1) for row in slow.analysis.root_causes]
    slow = replace(slow, analysis=replace(slow.analysis, root_causes=rows))
    found = between(fast, slow)
    for parts in (found.causes, found.headings):
        assert sum(row.ms.a or 0.0 for row in parts) == pytest.approx(100.1)
        assert sum(row.ms.b or 0.0 for row in parts) == pytest.approx(150.1)


def test_a_cause_of_the_cut_last_step_alone_costs_no_step_anything() -> None:
    slow = make_run(100.0, 100.2, causes={Cause.COMPUTE_BOUND: 0.9, Cause.DATA_LOADING: 0.1})
    compute, loading = slow.analysis.root_causes
    rows = [compute, replace(loading, ms_per_step=None, ms_interval=None)]
    found = between(slow, replace(slow, analysis=replace(slow.analysis, root_causes=rows)))
    assert {row.cause: row.ms.b for row in found.causes}[Cause.DATA_LOADING] == 0.0


def test_the_noise_of_a_cause_is_that_of_its_whole_steps() -> None:
    """Two steps of 10 and 30 ms: the mean's standard deviation is 10, sqrt(3) times as much as steps are alike."""
    rows = [RootCause(Cause.DATA_LOADING, [], 0.2, 20.0, None, [0], [], (10.0, 30.0))]
    run = make_run(100.0, 100.0, causes={Cause.COMPUTE_BOUND: 0.8})
    rows += run.analysis.root_causes
    analysis = replace(run.analysis, root_causes=rows)
    figure = cause_figure(analysis, Cause.DATA_LOADING)
    assert (figure.value, figure.variance, figure.freedom) == pytest.approx((20.0, 300.0, 1.0))


def test_a_sure_change_without_a_sure_cause_still_names_the_likeliest() -> None:
    a = make_run(100.0, 100.2, causes={Cause.COMPUTE_BOUND: 1.0})
    b = make_run(150.0, 150.2, causes={Cause.COMPUTE_BOUND: 0.667, Cause.DATA_LOADING: 0.333})
    rows = [
        replace(row, ms_interval=(0.0, 100.0)) if row.cause is Cause.DATA_LOADING else row
        for row in b.analysis.root_causes
    ]
    b = replace(b, analysis=replace(b.analysis, root_causes=rows))
    assert "likely data loading +50.0 ms (rank 0), but no single cause is certain" in between(a, b).summary


def test_causes_of_profiled_steps_that_changed_otherwise_are_said_to_be_of_those() -> None:
    """All steps are 10 ms slower, the profiled ones, which the profiler slows more, 50 ms."""
    a = make_run(100.0, 100.2, causes={Cause.COMPUTE_BOUND: 1.0}, unprofiled_ms=[90.0, 90.2] * 100)
    causes = {Cause.COMPUTE_BOUND: 0.667, Cause.HOST_BOUND: 0.333}
    b = make_run(150.0, 150.2, causes=causes, unprofiled_ms=[100.0, 100.2] * 100)
    found = between(a, b)
    assert "; in profiled steps, which changed by +50.0 ms: CPU-bound +50.0 ms (rank 0)" in found.summary
    assert ": CPU-bound" not in between(a, make_run(100.0, 100.2, unprofiled_ms=[100.0, 100.2] * 100)).summary


def test_the_summary_ends_with_the_likeliest_settings() -> None:
    def run(step_ms: float, *, debugs: bool) -> RunRecord:
        settings = TrainingSettings(anomaly_mode=debugs, backward=BackwardSettings(1 + debugs))
        manifest = RunManifest("r", "h", 1, {}, 8, {}, {}, [], settings=settings)
        return make_run(step_ms, step_ms, manifest=manifest)

    assert between(run(100.0, debugs=False), run(150.0, debugs=True)).summary.endswith(
        "; differs: anomaly_mode False -> True, backward.passes 1 -> 2"
    )
    assert "differs" not in between(run(100.0, debugs=False), run(100.0, debugs=True)).summary


def test_two_steps_of_one_run_say_how_little_they_are() -> None:
    found = between(make_run(100.0, 101.0), make_run(100.0, 101.0))
    assert codes(found)[0] == "little_known"
    assert "one run a side of 2 profiled steps" in found.findings[0].message
    assert found.run_spread_source == "assumed"


def test_telemetry_is_preferred_where_both_sides_have_it() -> None:
    steps = [90.0, 91.0] * 100
    a, b = make_run(100.0, unprofiled_ms=steps), make_run(130.0, unprofiled_ms=steps)
    found = between(a, b)
    assert (found.a.step_source, found.a.num_steps, found.a.median_ms) == ("unprofiled", [200], 90.5)
    assert found.step_time.state is Change.NOT_SEEN
    assert between(a, make_run(130.0)).a.step_source == "captured"


def test_runs_and_not_steps_are_the_replicates_of_sets() -> None:
    """Each run is quiet in itself, but runs differ: thousands of steps must not make 2 % sure."""
    a = [make_run(100.0, unprofiled_ms=[level] * 500) for level in (98.0, 100.0, 102.0)]
    b = [make_run(100.0, unprofiled_ms=[level] * 500) for level in (100.0, 102.0, 104.0)]
    found = between(a, b)
    assert found.step_time.state is Change.NOT_SEEN
    assert found.run_spread_source == "measured"
    assert found.run_spread == pytest.approx(0.02)


def test_kernels_that_came_or_went_are_said() -> None:
    def run(name: str) -> RunRecord:
        return make_run(100.0, 100.0, kernels=[KernelTime(name, 30, 90.0, TimeCategory.COMPUTE_BOUND, "model")])

    found = between(run("old"), run("new"))
    assert {row.name: row.ms.state for row in found.kernels} == {"old": Change.GONE, "new": Change.NEW}
    assert {row.name: (row.calls_a, row.calls_b) for row in found.kernels} == {"old": (10.0, 0.0), "new": (0.0, 10.0)}


@pytest.mark.parametrize(("noise", "state"), [(0.1, Change.SLOWER), (8.0, Change.NOT_SEEN)])
def test_a_kernels_own_steps_say_how_sure_its_difference_is(noise: float, state: Change) -> None:
    """The same means: surely slower where each step takes nearly the same, and noise where they scatter."""

    def run(mean: float) -> RunRecord:
        steps = [mean + (noise if place % 2 else -noise) for place in range(4)]
        kernel = KernelTime("gemm", 30, 5 * mean, TimeCategory.COMPUTE_BOUND, "model", step_ms=steps)
        return make_run(100.0, 100.0, 100.0, 100.0, kernels=[kernel])

    (row,) = between(run(20.0), run(23.0)).kernels
    assert (row.ms.a, row.ms.b) == pytest.approx((20.0, 23.0))
    assert row.ms.state is state


def test_kernels_of_an_older_analysis_are_compared_without_steps() -> None:
    old = make_run(100.0, 100.0, kernels=[KernelTime("gemm", 30, 60.0, TimeCategory.COMPUTE_BOUND, "model")])
    kernel = KernelTime("gemm", 30, 60.0, TimeCategory.COMPUTE_BOUND, "model", step_ms=[21.0, 23.0])
    (row,) = between(old, make_run(100.0, 100.0, kernels=[kernel])).kernels
    assert (row.ms.a, row.ms.b) == (20.0, 20.0)


def test_calls_are_matched_by_operator_and_shapes_and_a_missing_one_is_not_called_gone() -> None:
    def run(*calls: tuple[str, float]) -> RunRecord:
        made = make_run(100.0, 100.0)
        rows = [KernelTime(name, 30, ms, TimeCategory.COMPUTE_BOUND, "model") for name, ms in calls]
        return replace(made, analysis=replace(made.analysis, roofline=replace(made.analysis.roofline, by_call=rows)))

    found = between(run(("mm [8, 8]", 30.0), ("mm [4, 4]", 3.0)), run(("mm [8, 8]", 90.0)))
    (row,) = found.calls
    assert (row.name, row.ms.a, row.ms.b, row.ms.state) == ("mm [8, 8]", 10.0, 30.0, Change.SLOWER)


def test_a_rare_stall_moves_the_mean_alone_and_is_said() -> None:
    quiet = [100.0] * 200
    stalls = [300.0 if place % 10 == 9 else 100.0 for place in range(200)]
    found = between(make_run(100.0, unprofiled_ms=quiet), make_run(100.0, unprofiled_ms=stalls))
    assert found.step_time.state is Change.NOT_SEEN
    assert found.step_time_mean.state is Change.SLOWER
    assert "rare_stalls" in codes(found)


def test_more_micro_batches_without_more_throughput_is_the_host_and_not_the_bubble() -> None:
    few, many = (with_pipeline(make_run(100.0, 100.1), micro_batches=m) for m in (2, 8))
    assert "host_bound_not_bubble" in codes(between(few, many))
    assert "host_bound_not_bubble" in codes(between(many, few))
    better = with_pipeline(make_run(75.0, 75.1), micro_batches=8)
    assert "host_bound_not_bubble" not in codes(between(few, better))
    assert "host_bound_not_bubble" not in codes(between(few, few))


def test_throughput_is_taken_from_tokens_where_they_are_told() -> None:
    few = replace(with_pipeline(make_run(100.0, 100.1), micro_batches=2), tokens=1000.0)
    many = replace(with_pipeline(make_run(200.0, 200.1), micro_batches=8), tokens=2000.0)
    assert "host_bound_not_bubble" in codes(between(few, many))
    assert "host_bound_not_bubble" not in codes(between(few, replace(many, tokens=2600.0)))


def manifest(**changed: object) -> RunManifest:
    known = RunManifest("r", "node0", 1, {}, 8, {"torch": "2.11.0"}, {"NCCL_ALGO": "Ring"}, [])
    return replace(known, **changed)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"versions": {"torch": "2.12.0"}}, "version_differs"),
        ({"environment": {"NCCL_ALGO": "Tree"}}, "environment_differs"),
        ({"environment": {}}, "environment_differs"),
        ({"host": "node1"}, "host_differs"),
    ],
)
def test_what_is_not_like_with_like_is_warned_about(changed: dict[str, object], code: str) -> None:
    a = make_run(100.0, manifest=manifest())
    assert code in codes(between(a, make_run(100.0, manifest=manifest(**changed))))
    assert code not in codes(between(a, a))


def test_another_gpu_or_world_size_is_warned_about() -> None:
    a = make_run(100.0)
    job = replace(a.analysis.job, gpu="NVIDIA A100", world_size=2)
    b = replace(a, analysis=replace(a.analysis, job=job))
    assert {"gpu_differs", "world_size_differs", "no_manifest"} <= set(codes(between(a, b)))


def test_memory_figures_are_compared_where_both_tell_them() -> None:
    a, b = (
        replace(make_run(100.0), memory_bytes={"memory_peak": peak, f"memory_{peak:.0f}": 1.0}) for peak in (5.0, 7.0)
    )
    (row,) = between(a, b).memory
    assert (row.name, row.a, row.b) == ("memory_peak", 5.0, 7.0)


def test_an_analysis_that_tells_collectives_but_no_steps_can_be_compared() -> None:
    collective = Collective("0,1", None, "all_reduce", 1024, 6, 1.0, 1.0, None, 3.0, 3.0, 0.0, 0.0, None)
    run = make_run(100.0, collectives=[collective])
    damaged = replace(run, analysis=replace(run.analysis, job=replace(run.analysis.job, num_steps=0)))
    assert between(damaged, run).collectives[0].transfer_ms.a == 3.0
