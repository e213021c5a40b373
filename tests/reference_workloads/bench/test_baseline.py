"""Bench baseline: the gate fails beyond noise, and baselines of another measurement are rejected."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("numpy")
msgspec = pytest.importorskip("msgspec")

from stepscope.core.documents.comparison import (  # noqa: E402
    Change,
    GateOutcome,
)
from stepscope.core.errors import DataError, UsageError  # noqa: E402
from stepscope.reference_workloads.bench.baseline import (  # noqa: E402
    compare_with_baseline,
    has_failed_gate,
    parse_bench_gates,
    read_bench,
)
from stepscope.reference_workloads.bench.measurement import (  # noqa: E402
    BenchRequest,
    summarise_bench,
)
from stepscope.reference_workloads.bench.result import Bench  # noqa: E402
from stepscope.reference_workloads.job import TrainingJob, TrainingOutcome  # noqa: E402
from stepscope.reference_workloads.launch import WorkloadResult  # noqa: E402
from stepscope.reference_workloads.plan import ParallelPlan, Preset, find_preset  # noqa: E402
from stepscope.reference_workloads.recipe import Recipe  # noqa: E402

_H100 = {"name": "NVIDIA H100 80GB HBM3", "power_limit": "700.00"}


def _bench(
    step_seconds: dict[int, float],
    *,
    preset: str | Preset = "one-gpu",
    plan: ParallelPlan = ParallelPlan(),  # noqa: B008  # frozen
    recipe: Recipe = Recipe(),  # noqa: B008  # frozen
    **options: Any,
) -> Bench:
    """A bench whose ranks took these steps, with a ripple of a thousandth."""
    model = find_preset(preset) if isinstance(preset, str) else preset
    request = BenchRequest("gpt", plan, model, recipe, tuple(step_seconds), **options)
    results = {}
    for dp, seconds in step_seconds.items():
        job = TrainingJob(request.plan_of(dp), request.preset_of(dp), "", "", 40, device_type="cuda", profiled=False)
        steps = [9.0] * 10 + [seconds * (1 + 0.001 * (step % 3 - 1)) for step in range(30)]
        outcome = TrainingOutcome(losses=[2.0, 1.0], step_seconds=steps, peak_allocated_bytes=dp << 30)
        results[dp] = [WorkloadResult(Path(), job, (outcome,) * dp)] * request.num_repeats
    return summarise_bench(request, results, {"gpus": [_H100], "versions": {"torch": "2.11"}, "cpu": "a"})


def test_figures_of_a_bench() -> None:
    bench = _bench({1: 0.250, 2: 0.260})
    one, two = bench.scales
    assert (one.batch_size, two.batch_size, two.num_ranks) == (16, 32, 2)
    assert one.step_p50_ms == pytest.approx(250)  # warm-up left out
    assert one.items_per_second == pytest.approx(16 * 2048 / 0.250)
    assert one.mfu == pytest.approx(one.model_flops / 0.250 / 989.4e12, rel=0.01)
    assert two.model_flops == pytest.approx(2 * one.model_flops)
    assert two.efficiency == pytest.approx(250 / 260)
    assert two.runs[0].peak_allocated_bytes == 2 << 30
    assert bench.fit is not None
    assert bench.fit.law == "gustafson"
    strong = _bench({1: 0.250, 2: 0.150}, scaling="strong")
    assert [scale.batch_size for scale in strong.scales] == [16, 16]
    assert strong.scales[1].efficiency == pytest.approx(250 / 300)
    assert strong.fit is not None
    assert strong.fit.serial_fraction == pytest.approx(0.2)


def test_images_are_counted_as_such() -> None:
    pytest.importorskip("torch")
    preset = find_preset("one-gpu", "resnet50")
    request = BenchRequest("resnet50", ParallelPlan(), preset, Recipe(), (1,))
    job = TrainingJob(request.plan, preset, "", "", 40, device_type="cuda", profiled=False)
    result = WorkloadResult(Path(), job, (TrainingOutcome(losses=[2.0, 1.0], step_seconds=[0.1] * 40),))
    bench = summarise_bench(request, {1: [result]}, {"gpus": [_H100]})
    (scale,) = bench.scales
    assert (bench.item, scale.num_items) == ("image", 256)
    assert scale.items_per_second == pytest.approx(2560)
    # 4.09 GMAC an image, two FLOPs each, three times for training; dense float16 peak 989 TFLOP/s
    assert scale.mfu == pytest.approx(256 * 6 * 4.09e9 / 0.1 / 989.4e12, rel=0.01)


def test_a_llama_has_the_flops_of_its_own_matrices() -> None:
    torch = pytest.importorskip("torch")
    from torch.utils.flop_counter import FlopCounterMode

    from stepscope.reference_workloads.estimate.flops import step_flops
    from stepscope.reference_workloads.models.transformer import Stage

    preset = find_preset("tiny", "llama")
    counter = FlopCounterMode(display=False)
    with torch.device("cpu"), torch.no_grad(), counter:
        Stage(preset, range(preset.num_layers))(torch.zeros(8, 16, dtype=torch.int64))
    counts = counter.get_flop_counts()["Global"]
    products = sum(count for operator, count in counts.items() if "attention" not in str(operator))
    # Two products of each place with all of them, of which the causal mask leaves half.
    attention = 4 * preset.num_layers * 8 * 16 * 16 * preset.hidden_size / 2
    assert step_flops(preset, Recipe()).model == 3 * (products + attention)


def test_the_document_reads_back_as_it_was(tmp_path: Path) -> None:
    bench = _bench({1: 0.25, 2: 0.26})
    file = tmp_path / "b.json"
    file.write_bytes(msgspec.json.encode(bench))
    assert msgspec.to_builtins(read_bench(file)) == msgspec.to_builtins(bench)


@pytest.mark.parametrize(
    ("factor", "outcome", "change"),
    [
        (1.0, GateOutcome.INCONCLUSIVE, Change.NOT_SEEN),  # one run each: 1.5 % assumed between runs
        (1.03, GateOutcome.INCONCLUSIVE, Change.NOT_SEEN),
        (1.10, GateOutcome.FAILED, Change.SLOWER),
        (0.90, GateOutcome.PASSED, Change.FASTER),
    ],
)
def test_a_gate_fails_only_beyond_noise(factor: float, outcome: GateOutcome, change: Change) -> None:
    gates = parse_bench_gates(["step_time:+3%"])
    bench = compare_with_baseline(_bench({1: 0.25 * factor}), _bench({1: 0.25}), gates, name="b.json")
    (row,) = bench.baseline
    assert row.step.state is change
    assert row.gates[0].outcome is outcome
    assert has_failed_gate(bench) is (outcome is GateOutcome.FAILED)


def test_repeated_runs_make_a_gate_surer() -> None:
    before, now = _bench({1: 0.25}, num_repeats=3), _bench({1: 0.25}, num_repeats=3)
    (row,) = compare_with_baseline(
        now, before, parse_bench_gates(["step_time:+3%,step_time_mean:+3%"]), name="b"
    ).baseline
    assert [gate.outcome for gate in row.gates] == [GateOutcome.PASSED] * 2


def test_other_work_is_refused_and_another_place_is_told() -> None:
    bench = _bench({1: 0.25})
    with pytest.raises(DataError, match=r"b\.json: measured other work: hidden_size 64 instead of 4096"):
        compare_with_baseline(bench, replace(bench, model=bench.model | {"hidden_size": 64}), [], name="b.json")
    with pytest.raises(DataError, match="shares no scale"):
        compare_with_baseline(bench, _bench({2: 0.25}), [], name="b.json")
    elsewhere = replace(bench, environment=bench.environment | {"versions": {"torch": "2.13"}, "cpu": "b"})
    told = compare_with_baseline(_bench({1: 0.25, 2: 0.25}), elsewhere, [], name="b.json").warnings
    messages = [warning.message for warning in told]
    assert "torch: 2.13 in the baseline, 2.11 here" in messages
    assert "cpu: b in the baseline, a here" in messages
    assert "b.json has no dp 2" in messages


@pytest.mark.parametrize(
    ("ours", "theirs", "reason"),
    [
        ({"plan": ParallelPlan(dp=2, zero=0)}, {"plan": ParallelPlan(dp=2, zero=3)}, "at dp 2: zero 3 instead of 0"),
        ({"scales": (2,)}, {"scales": (1, 2)}, "at dp 2: batch_size 32 instead of 16"),
        ({"simulate_compute_ms": 2.0}, {}, r"work: simulate_ms 0.0 instead of 2.0"),
        ({"preset": "two-gpu", "scales": (1,)}, {"scales": (1,)}, "work: hidden_size 4096 instead of 3072"),
    ],
)
def test_the_same_scale_must_have_done_the_same_work(ours: dict[str, Any], theirs: dict[str, Any], reason: str) -> None:
    bench, baseline = (
        _bench(dict.fromkeys(options.get("scales", (2,)), 0.25), **{k: v for k, v in options.items() if k != "scales"})
        for options in (ours, theirs)
    )
    with pytest.raises(DataError, match=reason):
        compare_with_baseline(bench, baseline, [], name="b.json")


def test_what_differs_at_other_scales_alone_is_no_other_work() -> None:
    larger = replace(find_preset("one-gpu"), batch_size=32)
    alone = _bench({2: 0.25}, preset=larger, plan=ParallelPlan(dp=2))
    (row,) = compare_with_baseline(
        alone, _bench({1: 0.25, 2: 0.25}, plan=ParallelPlan(dp=2)), [], name="b.json"
    ).baseline
    assert row.dp == 2
    untold = replace(alone, scales=[replace(scale, plan=None) for scale in alone.scales])  # as older documents are
    assert compare_with_baseline(alone, untold, [], name="b.json").baseline


@pytest.mark.parametrize("content", [b"", b"{}", b'{"schema": "stepscope.run/1"}', b"\xff", b"[1]"])
def test_what_is_no_bench_is_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "b.json"
    file.write_bytes(content)
    with pytest.raises(DataError, match=r"is not a stepscope\.bench/1"):
        read_bench(file)
    empty = asdict(_bench({1: 0.25})) | {"scales": []}
    file.write_bytes(msgspec.json.encode(empty))
    with pytest.raises(DataError, match="with steps in it"):
        read_bench(file)


@pytest.mark.parametrize(
    ("part", "where"),
    [
        ({"model": {}}, "model"),
        ({"model": {"name": 3, "batch_size": 1}}, "model.name"),
        ({"environment": {"gpus": None}}, "environment.gpus"),
        ({"environment": {"gpus": 3}}, "environment.gpus"),
        ({"environment": {"gpus": [{}]}}, r"environment.gpus\[0\]"),
        ({"environment": {"versions": [1]}}, "environment.versions"),
    ],
    ids=str,
)
def test_odd_inner_parts_are_told_with_their_place(tmp_path: Path, part: dict[str, Any], where: str) -> None:
    file = tmp_path / "b.json"
    file.write_bytes(msgspec.json.encode(asdict(_bench({1: 0.25})) | part))
    with pytest.raises(DataError, match=rf"is not a stepscope\.bench/1 document \(.*`\$\.{where}`\)"):
        read_bench(file)


@pytest.mark.parametrize("gate", ["mfu:-3%", "kernel:x:+3%", "nonsense", ""])
def test_gates_on_what_is_not_measured_are_refused(gate: str) -> None:
    with pytest.raises(UsageError):
        parse_bench_gates([gate])


@pytest.mark.parametrize(
    "options",
    [
        {"scales": ()},
        {"scales": (0,)},
        {"scales": (2, 2)},
        {"num_repeats": 0},
        {"num_warmup_steps": 1},
        {"scaling": "both"},
    ],
)
def test_requests_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    whole = {"scales": (1,)} | options
    with pytest.raises(UsageError):
        BenchRequest("gpt", ParallelPlan(), find_preset("tiny"), Recipe(), **whole)


def test_a_launchers_rank_measures_one_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UsageError, match="one scale once"):
        BenchRequest("gpt", ParallelPlan(), find_preset("tiny"), Recipe(), (1, 2))


def test_a_layout_with_a_zero_level_loses_it_at_one_rank() -> None:
    request = BenchRequest("gpt", ParallelPlan(dp=2, zero=3), find_preset("tiny"), Recipe(), (1, 2))
    assert [request.plan_of(dp).zero for dp in (1, 2)] == [0, 3]


@pytest.mark.parametrize(
    ("plan", "recipe", "left_out"),
    [
        (ParallelPlan(dp=2, zero=0), Recipe(bucket_mb=5.0, overlaps_reduction=False), "bucket_mb, overlaps_reduction"),
        (ParallelPlan(dp=2, zero=3, cpu_offload=True), Recipe(prefetches=False), "cpu_offload, prefetches"),
        (ParallelPlan(dp=2, zero=0, replicate=True), Recipe(), "replicate"),
        (ParallelPlan(dp=2, zero=3), Recipe(max_gradient_norm=1.0), ""),
    ],
    ids=str,
)
def test_what_needs_data_parallelism_is_left_out_at_one_rank_and_told(
    plan: ParallelPlan, recipe: Recipe, left_out: str
) -> None:
    bench = _bench({1: 0.25, 2: 0.25}, plan=plan, recipe=recipe)
    request = BenchRequest("gpt", plan, find_preset("one-gpu"), recipe, (1, 2))
    for dp in (1, 2):
        request.recipe_of(dp).check(request.plan_of(dp), request.preset_of(dp), is_simulated=False)
    assert request.recipe_of(2) == recipe
    assert request.recipe_of(1).max_gradient_norm == recipe.max_gradient_norm
    told = [warning.message for warning in bench.warnings if warning.code == "left_out"]
    assert told == ([f"dp 1 is measured without {left_out}, which need data parallelism"] if left_out else [])
    alone = BenchRequest("gpt", ParallelPlan(), find_preset("one-gpu"), Recipe(prefetches=False), (1,))
    assert not alone.recipe_of(1).prefetches  # refused, as a run of it would be
