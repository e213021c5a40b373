"""Cost of the node's agent beside training: blocks of the same steps on all GPUs with the agent at work and frozen."""

from __future__ import annotations

import time
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.agent.beside_training import noise_of, ratio_of
from benchmarks.agent.real_agent import RealAgent
from benchmarks.labelled_runs.job import Bench
from benchmarks.several_gpus.layout_jobs import data_parallel

_ROUNDS = 8
_BLOCK_SECONDS = 0.6
_MOST_STEPS = 400


def measure_agent_cost(bench: Bench, agent: tuple[int, int] | None) -> dict[str, Any]:
    """Step times by turns: with the agent, frozen, frozen, with it; their ratio with its 95% interval.

    Args:
        agent: its process and port. Rank 0 freezes it.
    """
    assert agent is not None, "no agent runs"
    model = data_parallel(bench, "gpt2", {"layers": 8, "width": 1536, "batch": 12})
    batch = model.source.batch()

    def block(num_steps: int) -> float:
        for _ in range(3):
            model.learn(batch)
        bench.synchronize()
        began = time.perf_counter()
        for _ in range(num_steps):
            model.learn(batch)
        bench.synchronize()
        return (time.perf_counter() - began) / num_steps

    step_seconds = torch.tensor([block(5)], device=bench.device)
    dist.broadcast(step_seconds, 0)
    num_steps = bench.size(min(max(5, round(_BLOCK_SECONDS / float(step_seconds))), _MOST_STEPS), 3)
    real = RealAgent(*agent)
    with_agent: list[float] = []
    frozen: list[float] = []
    try:
        for _ in range(_ROUNDS):
            with_agent.append(block(num_steps))
            if bench.rank == 0:
                real.freeze()
            bench.synchronize()
            frozen += [block(num_steps), block(num_steps)]
            if bench.rank == 0:
                real.thaw()
            bench.synchronize()
            with_agent.append(block(num_steps))
    finally:
        if bench.rank == 0:
            real.thaw()
    return {
        "rounds": _ROUNDS,
        "steps_of_a_block": num_steps,
        "with_agent_seconds": with_agent,
        "frozen_seconds": frozen,
        "ratio": ratio_of(with_agent, frozen)._asdict(),
        "noise": noise_of(frozen)._asdict(),
    }
