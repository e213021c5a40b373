"""Estimated pipeline orders are those of torch's schedule classes."""

from __future__ import annotations

from typing import Any

import pytest

from stepscope.core.errors import UsageError
from stepscope.reference_workloads.estimate.pipeline import (
    KNOWN_SCHEDULES,
    StageSeconds,
    refuse_not_estimated,
    replay_schedule,
    schedule_order,
)
from stepscope.reference_workloads.plan import NUM_CHUNKS, ParallelPlan, find_preset

_LETTERS = {"FORWARD": "F", "FULL_BACKWARD": "B", "BACKWARD_INPUT": "I", "BACKWARD_WEIGHT": "W"}


@pytest.mark.parametrize("pp", [2, 3, 4])
@pytest.mark.parametrize("name", ["looped-bfs", "interleaved", "zero-bubble"])
def test_multi_stage_orders_are_torchs(name: str, pp: int) -> None:
    schedules: Any = pytest.importorskip("torch.distributed.pipelining.schedules")
    kind = {
        "looped-bfs": schedules.ScheduleLoopedBFS,
        "interleaved": schedules.ScheduleInterleaved1F1B,
        "zero-bubble": schedules.ScheduleInterleavedZeroBubble,
    }[name]
    for micro_batches in range(1, 3 * pp + 1):
        try:
            plan = ParallelPlan(pp=pp, schedule=name, micro_batches=micro_batches)
        except UsageError:
            continue
        schedule = object.__new__(kind)  # its order needs neither stages nor processes
        schedule.n_local_stages, schedule.pp_group_size, schedule._n_microbatches = NUM_CHUNKS, pp, micro_batches
        schedule._stages = [None] * NUM_CHUNKS
        schedule.number_of_rounds = max(1, micro_batches // pp)
        schedule.microbatches_per_round = micro_batches // schedule.number_of_rounds
        for rank in range(pp):
            schedule.rank = rank
            actions = [each for each in schedule._calculate_single_rank_operations(rank) if each is not None]
            expected = [(_LETTERS[a.computation_type.name], a.stage_index, a.microbatch_index) for a in actions]
            assert [(t.kind.value, t.stage, t.micro_batch) for t in schedule_order(plan)[rank]] == expected


@pytest.mark.parametrize("schedule", KNOWN_SCHEDULES)
def test_bubble_of_even_stages(schedule: str) -> None:
    plan = ParallelPlan(pp=4, micro_batches=8, schedule=schedule)
    stages = {stage: StageSeconds(1.0, 2.0) for stage in range(plan.num_stages)}
    period = replay_schedule(plan, stages, transfer_seconds=0.0)
    if schedule == "zero-bubble":
        assert period.textbook is None  # 1F1B's formula is not its own
        assert period.bubble < 3 / (2 * 8 + 3)  # which interleaved 1F1B has
    else:
        assert period.bubble == pytest.approx(period.textbook)


def test_uneven_stages_wait_longer() -> None:
    plan = ParallelPlan(pp=4, micro_batches=8)
    stages = {stage: StageSeconds(1.0, 2.0) for stage in range(3)} | {3: StageSeconds(2.0, 4.0)}
    period = replay_schedule(plan, stages, transfer_seconds=0.0)
    # the last stage works 48 units after a fill of 3 and before a drain of 6; the others half of that
    assert period.seconds == pytest.approx(48 + 3 + 6)
    assert period.bubble == pytest.approx(1 - (3 * 24 + 48) / 4 / 57)


def test_one_process_never_waits() -> None:
    period = replay_schedule(ParallelPlan(micro_batches=3), {0: StageSeconds(1.0, 2.0)}, transfer_seconds=1.0)
    assert (period.seconds, period.textbook) == (9.0, 0.0)
    assert period.bubble == pytest.approx(0.0)


@pytest.mark.parametrize("options", [{"schedule": "zbv"}, {"tp": 2, "sequence_parallel": True}])
def test_an_unknown_layout_gets_no_estimate(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"knows (the zbv schedule|sequence parallel)"):
        refuse_not_estimated(ParallelPlan(pp=2, **options), find_preset("tiny"))


def test_a_model_of_images_gets_no_estimate() -> None:
    with pytest.raises(UsageError, match="knows a model of images"):
        refuse_not_estimated(ParallelPlan(), find_preset("tiny", "resnet50"))
