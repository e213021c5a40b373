"""Every layout trains on the same, learnable batches."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from stepscope.reference_workloads.data_loading import (  # noqa: E402
    SyntheticText,
    make_loader,
)
from stepscope.reference_workloads.job import TrainingJob  # noqa: E402
from stepscope.reference_workloads.plan import ParallelPlan, find_preset  # noqa: E402


def _job(plan: ParallelPlan) -> TrainingJob:
    return TrainingJob(plan, find_preset("tiny"), out="", run="", num_steps=3, seed=1)


def test_data_parallel_ranks_share_each_batch_between_them() -> None:
    whole = list(make_loader(_job(ParallelPlan()), dp_rank=0))
    parts = [list(make_loader(_job(ParallelPlan(dp=2)), dp_rank=rank)) for rank in (0, 1)]
    assert len(whole) == len(parts[0]) == 3
    for step, (inputs, _) in enumerate(whole):
        together = torch.cat([parts[0][step][0], parts[1][step][0]])
        assert sorted(together.tolist()) == sorted(inputs.tolist())


def test_targets_are_the_inputs_one_token_later_and_mostly_follow_the_rule() -> None:
    dataset = SyntheticText(find_preset("tiny"), num_sequences=64, seed=0)
    followers: dict[int, list[int]] = {}
    for index in range(len(dataset)):
        inputs, targets = dataset[index]
        assert torch.equal(inputs[1:], targets[:-1])
        for token, follower in zip(inputs.tolist(), targets.tolist(), strict=True):
            followers.setdefault(token, []).append(follower)
    ruled = sum(max(map(seen.count, set(seen))) for seen in followers.values())
    assert ruled / sum(map(len, followers.values())) > 0.8


def test_another_seed_is_another_language() -> None:
    preset = find_preset("tiny")
    first, second = (SyntheticText(preset, num_sequences=1, seed=seed)[0][0] for seed in (0, 1))
    assert not torch.equal(first, second)
