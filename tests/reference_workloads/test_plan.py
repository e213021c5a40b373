"""A plan rejects what torch cannot do, with the reason."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.core.errors import UsageError
from stepscope.reference_workloads.plan import SCHEDULES, ParallelPlan, find_preset, presets


@pytest.mark.parametrize(
    ("sizes", "reason"),
    [
        ({"pp": 2, "dp": 2, "zero": 0, "schedule": "interleaved"}, "reducer fails an internal assertion"),
        ({"pp": 2, "dp": 2, "zero": 1, "schedule": "zero-bubble"}, "reducer takes the gradients of activations"),
        ({"pp": 2, "dp": 2, "zero": 3, "schedule": "zero-bubble"}, "wrong gradients"),
        ({"pp": 2, "dp": 2, "zero": 3, "schedule": "zbv"}, "with the zbv schedule"),
        ({"pp": 2, "dp": 2, "zero": 3, "schedule": "dualpipe-v"}, "with the dualpipe-v schedule"),
        ({"sequence_parallel": True}, "sequence parallel cuts over tensor-parallel ranks, and tp is 1"),
        ({"loss_parallel": True}, "loss parallel cuts"),
        ({"dp": 2, "zero": 1, "cpu_offload": True}, "only fully_shard"),
        ({"dp": 2, "replicate": True}, "zero 0 with dp above 1"),
        ({"pp": 2, "schedule": "dualpipe-v", "micro_batches": 2}, r"as stages \(4\)"),
        ({"zero": 2}, "dp is 1"),
        ({"dp": 2, "zero": 4}, "0 to 3"),
        ({"schedule": "interleaved"}, "pp is 1"),
        ({"schedule": "fastest"}, 'unknown schedule "fastest"; known: gpipe, 1f1b'),
        ({"pp": 4, "micro_batches": 2}, "at least as many micro-batches as stages"),
        ({"pp": 2, "micro_batches": 5, "schedule": "interleaved"}, "2 rounds"),
        ({"pp": 4, "stage_layers": (1, 1, 2)}, "4 pipeline stages cannot hold 1, 1, 2 layers"),
        ({"pp": 2, "stage_layers": (4, 0)}, "at least 1"),
        ({"tp": 0}, "tp must be at least 1"),
    ],
)
def test_refused_with_its_reason(sizes: dict[str, Any], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        ParallelPlan(**sizes)


@pytest.mark.parametrize(
    ("plan", "reason"),
    [
        (ParallelPlan(pp=4, schedule="interleaved"), "needs 8 layers"),
        (ParallelPlan(pp=3), "4 layers cannot be divided over 3"),
        (ParallelPlan(pp=2, stage_layers=(1, 4)), "take 5 layers together, the model has 4"),
        (ParallelPlan(tp=3), "4 key/value heads cannot be divided over 3"),
        (ParallelPlan(tp=4, sequence_parallel=True), "18 places in a sequence cannot be divided over 4"),
        (ParallelPlan(dp=2, micro_batches=8), "8 sequences in a batch cannot be divided over 16"),
    ],
)
def test_model_that_cannot_be_cut_is_refused(plan: ParallelPlan, reason: str) -> None:
    preset = find_preset("tiny")
    with pytest.raises(UsageError, match=reason):
        plan.check_preset(replace(preset, sequence_length=18) if plan.sequence_parallel else preset)


def test_key_value_heads_bound_tensor_parallelism_of_grouped_queries() -> None:
    ParallelPlan(tp=4).check_preset(find_preset("tiny"))
    with pytest.raises(UsageError, match="2 key/value heads cannot be divided over 4"):
        ParallelPlan(tp=4).check_preset(replace(find_preset("tiny"), architecture="llama"))


def test_job_of_another_size_is_refused() -> None:
    ParallelPlan(tp=2, pp=2, dp=2).check_world(8)
    with pytest.raises(UsageError, match="is 8 processes, but the job has 4"):
        ParallelPlan(tp=2, pp=2, dp=2).check_world(4)


def test_defaults_follow_the_sizes() -> None:
    plan = ParallelPlan(pp=2, dp=2)
    assert (plan.zero, plan.num_micro_batches, plan.num_stages) == (2, 2, 2)
    assert ParallelPlan().zero == 0
    assert ParallelPlan(pp=2, schedule="interleaved").num_stages == 4


def test_stages_hold_the_same_number_of_layers_unless_told_otherwise() -> None:
    even, uneven = ParallelPlan(pp=2), ParallelPlan(pp=2, stage_layers=(1, 3))
    assert [even.layers_of(stage, 4) for stage in range(2)] == [range(2), range(2, 4)]
    assert [uneven.layers_of(stage, 4) for stage in range(2)] == [range(1), range(1, 4)]
    uneven.check_preset(find_preset("tiny"))


def test_unknown_preset_names_the_known_ones() -> None:
    with pytest.raises(UsageError, match="one-gpu, tiny, two-gpu"):
        find_preset("huge")


@pytest.mark.parametrize("name", sorted(presets()))
def test_every_preset_runs_on_one_process_and_splits_in_two(name: str) -> None:
    for plan in (ParallelPlan(), ParallelPlan(tp=2), ParallelPlan(pp=2), ParallelPlan(dp=2)):
        plan.check_preset(find_preset(name))


@given(
    tp=st.integers(1, 4),
    pp=st.integers(1, 4),
    dp=st.integers(1, 4),
    zero=st.none() | st.integers(0, 3),
    schedule=st.sampled_from(SCHEDULES),
    micro_batches=st.none() | st.integers(1, 8),
)
def test_a_plan_is_sound_or_refused(**sizes: Any) -> None:
    try:
        plan = ParallelPlan(**sizes)
    except UsageError:
        return
    assert plan.world_size == plan.tp * plan.pp * plan.dp
    assert not (plan.is_multi_stage and plan.dp > 1 and plan.zero in {0, 1})
    held = [stage for rank in range(plan.pp) for stage in plan.stages_of(rank)]
    assert sorted(held) == list(range(plan.num_stages))
    assert plan.num_stages - 1 in plan.stages_of(plan.rank_with_loss)
    assert plan.zero == 0 or plan.dp > 1
