"""Which pipeline schedules are there, and which rank holds which stage under them? Needs no torch."""

from __future__ import annotations

SINGLE_STAGE_SCHEDULES = ("gpipe", "1f1b")
LOOPED_SCHEDULES = ("looped-bfs", "interleaved", "zero-bubble")
V_SCHEDULES = ("zbv", "dualpipe-v")
MULTI_STAGE_SCHEDULES = LOOPED_SCHEDULES + V_SCHEDULES
SCHEDULES = SINGLE_STAGE_SCHEDULES + MULTI_STAGE_SCHEDULES
SPLIT_BACKWARD_SCHEDULES = ("zero-bubble", *V_SCHEDULES)
"""Those that compute the gradients of activations and of weights apart."""
NUM_CHUNKS = 2
"""Stages a rank holds under a multi-stage schedule."""


def stages_of_rank(schedule: str, pp_rank: int, pp: int) -> tuple[int, ...]:
    """Stages of a pipeline rank in order: dealt in rounds, or down and up again so that rank 0 has both ends."""
    if schedule in SINGLE_STAGE_SCHEDULES:
        return (pp_rank,)
    if schedule in V_SCHEDULES:
        return pp_rank, 2 * pp - 1 - pp_rank
    return tuple(range(pp_rank, NUM_CHUNKS * pp, pp))


def rank_of_last_stage(schedule: str, pp: int) -> int:
    """The pipeline rank that knows the loss."""
    return 0 if schedule in V_SCHEDULES else pp - 1
