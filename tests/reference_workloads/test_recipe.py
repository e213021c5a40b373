"""Options of a recipe leave the maths unchanged, and options that torch cannot do are rejected."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from stepscope.core.errors import DataError, UsageError
from stepscope.reference_workloads import ParallelPlan, WorkloadResult, run_workload
from stepscope.reference_workloads.plan import find_preset
from stepscope.reference_workloads.recipe import Recipe

torch = pytest.importorskip("torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402  # needs torch

from stepscope.reference_workloads.models.transformer import seeded_stage  # noqa: E402
from stepscope.reference_workloads.parallelism.sharding import recompute  # noqa: E402

_TINY = find_preset("tiny")
_HALF = replace(_TINY, dtype="float16")
_MAX_NORM = 0.5


def _trained(plan: ParallelPlan, recipe: Recipe, **options: Any) -> WorkloadResult:
    return run_workload(plan, recipe=recipe, profiled=False, device="cpu", **{"num_steps": 3, **options})


@cache
def _clipped_alone() -> WorkloadResult:
    return _trained(ParallelPlan(), Recipe(max_gradient_norm=_MAX_NORM))


@pytest.mark.parametrize(
    ("plan", "recipe"),
    [
        (ParallelPlan(tp=2, dp=2, zero=2), Recipe()),
        (ParallelPlan(tp=2, dp=2, zero=0), Recipe(activation_checkpointing="full")),
        (ParallelPlan(tp=2, sequence_parallel=True), Recipe(activation_checkpointing="selective")),
        (ParallelPlan(pp=2, dp=2, schedule="zero-bubble"), Recipe(activation_checkpointing="full")),
        (ParallelPlan(dp=2, zero=1), Recipe(overlaps_reduction=False, bucket_mb=0.01)),
        (ParallelPlan(tp=2, dp=2, zero=0), Recipe(overlaps_reduction=False)),
        (ParallelPlan(pp=2, dp=2, zero=3), Recipe(overlaps_reduction=False, prefetches=False)),
        (ParallelPlan(dp=2, zero=3, cpu_offload=True), Recipe(loader_workers=1, loader_prefetch=3)),
    ],
    ids=str,
)
def test_gradients_over_mixed_meshes_are_clipped_as_one_process_clips_them(plan: ParallelPlan, recipe: Recipe) -> None:
    result = _trained(plan, replace(recipe, max_gradient_norm=_MAX_NORM))
    alone = _clipped_alone()
    assert min(alone.outcomes[0].gradient_norms) > _MAX_NORM  # else nothing is clipped
    assert result.losses == pytest.approx(alone.losses, abs=1e-3)
    for outcome in result.outcomes:
        assert outcome.gradient_norms == pytest.approx(alone.outcomes[0].gradient_norms, rel=1e-4)


def test_all_ranks_of_a_pipeline_skip_the_steps_that_overflow_on_one() -> None:
    # 2^22 is too much for float16; half of it after each skipped step, until gradients fit.
    recipe = Recipe(initial_loss_scale=2.0**22, loss_scale_growth_interval=2)
    result = _trained(ParallelPlan(pp=2, dp=2, zero=3), recipe, preset=_HALF, num_steps=9)
    (skipped,) = {outcome.num_skipped_steps for outcome in result.outcomes}
    (scale,) = {outcome.loss_scale for outcome in result.outcomes}
    assert 1 <= skipped <= 8
    assert scale < 2.0**22
    for outcome in result.outcomes:
        taken = [norm for norm in outcome.gradient_norms if norm < float("inf")]  # not so for nan either
        assert len(taken) == 9 - skipped
    assert result.last_loss < result.first_loss


def test_bfloat16_learns_about_what_float32_learns() -> None:
    plain, low = (_trained(ParallelPlan(), Recipe(), preset=replace(_TINY, dtype=it)) for it in ("float32", "bfloat16"))
    assert low.losses == pytest.approx(plain.losses, abs=0.02)
    assert low.losses != plain.losses


class _Counted(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it so
    """Operators that are really computed: below what recomputation answers from what it kept."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it so
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def _operators(how: str) -> tuple[list[str], dict[str, Any]]:
    """Operators of one layer's forward and backward pass, and its gradients."""
    block = seeded_stage(_TINY, range(1), seed=0, device=torch.device("cpu")).blocks["0"]
    recompute(block, how)
    hidden = torch.linspace(-1, 1, 2 * 16 * 64).reshape(2, 16, 64).requires_grad_()
    with _Counted() as counted:
        torch.autograd.backward(block(hidden).square().sum())
    return counted.names, {name: parameter.grad for name, parameter in block.named_parameters()}


def test_selective_recomputation_repeats_norms_but_no_matrix_product() -> None:
    kept, expected = _operators("none")
    for how in ("selective", "full"):
        names, gradients = _operators(how)
        assert gradients.keys() == expected.keys()
        assert all(torch.equal(gradients[name], expected[name]) for name in expected)
        assert names.count("native_layer_norm") == 2 * kept.count("native_layer_norm")
        repeats_products = names.count("mm") > kept.count("mm")
        assert repeats_products == (how == "full")


@pytest.mark.parametrize(
    ("plan", "recipe", "reason"),
    [
        (ParallelPlan(dp=2), Recipe(bucket_mb=1), "only DistributedDataParallel collects gradients in buckets"),
        (ParallelPlan(), Recipe(overlaps_reduction=False), "^--no-overlap: dp is 1: nothing is reduced"),
        (
            ParallelPlan(dp=2, zero=0, replicate=True),
            Recipe(overlaps_reduction=False),
            "has no option for when to reduce",
        ),
        (ParallelPlan(dp=2, tp=2, zero=1), Recipe(overlaps_reduction=False), "parameters stay DTensors"),
        (ParallelPlan(dp=2, zero=0), Recipe(prefetches=False), "^--no-prefetch: .* none are gathered ahead"),
        (ParallelPlan(), Recipe(loader_prefetch=2), "no workers"),
        (ParallelPlan(), Recipe(checkpoint_mode="async"), "no checkpoint is written"),
        (
            ParallelPlan(),
            Recipe(initial_loss_scale=1024.0),
            "^--initial-loss-scale: gradients in float32 do not underflow",
        ),
        (
            ParallelPlan(pp=2, schedule="zero-bubble"),
            Recipe(activation_checkpointing="selective"),
            "goes backwards through a layer twice",
        ),
    ],
)
def test_options_that_cannot_be_are_refused_before_any_rank_starts(
    plan: ParallelPlan, recipe: Recipe, reason: str
) -> None:
    with pytest.raises(UsageError, match=reason):
        _trained(plan, recipe)


def test_compiled_blocks_and_sleeping_layers_exclude_each_other() -> None:
    with pytest.raises(UsageError, match="does not know that layers sleep"):
        _trained(ParallelPlan(), Recipe(compiles=True), simulate_compute_ms=1)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"activation_checkpointing": "some"}, "none, selective, full"),
        ({"checkpoint_mode": "later"}, "sync, async"),
        ({"max_gradient_norm": 0.0}, "above 0"),
        ({"initial_loss_scale": float("inf")}, "^--initial-loss-scale must be above 0, not inf"),
        ({"loader_prefetch": 0}, "^--loader-prefetch must be above 0"),
        ({"loader_workers": -1}, "at least 0"),
    ],
)
def test_values_out_of_range_are_refused(values: dict[str, Any], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        Recipe(**values)


def test_an_unknown_dtype_is_refused() -> None:
    with pytest.raises(UsageError, match="not 'float8'"):
        replace(_TINY, dtype="float8")


def test_what_is_no_checkpoint_is_refused_before_any_rank_starts(tmp_path: Any) -> None:
    with pytest.raises(DataError, match=r"it has no \.metadata"):
        _trained(ParallelPlan(), Recipe(resume_from=str(tmp_path)))
