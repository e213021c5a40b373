"""One rank of two that train the same model on different data, watched, in each way of reducing gradients.

Prints, for each way and step, the norm of its own gradients as a model of its own computes them, and the norm of the
reduced ones. Arguments: rank, folder to meet and to write runs in.
"""

from __future__ import annotations

import copy
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import stepscope
from stepscope.training.steps import gradients as gradient_norm

NUM_STEPS = 4


def _model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(6, 10), torch.nn.Tanh(), torch.nn.Linear(10, 3, bias=False))


def _sharded(model: torch.nn.Module) -> torch.nn.Module:
    fully_shard(model[0])  # type: ignore[index]
    model.extra = torch.nn.Parameter(torch.ones(5))
    fully_shard(model)
    return model


WAYS: dict[str, Callable[[torch.nn.Module], torch.nn.Module]] = {
    "ddp": DistributedDataParallel,
    "ddp_bucket_view": lambda model: DistributedDataParallel(model, gradient_as_bucket_view=True),
    "fully_shard": _sharded,
}


def _gradient_norm(model: torch.nn.Module) -> float:
    gradients: list[Any] = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    whole = [gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient for gradient in gradients]
    return float(torch.nn.utils.get_total_norm(whole))


def _train(way: str, rank: int, folder: Path) -> dict[str, list[float]]:
    alone = _model()
    model = WAYS[way](copy.deepcopy(alone))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    norms: dict[str, list[float]] = {"own": [], "reduced": []}
    with stepscope.profile(way, folder, stepscope.every(100)) as prof:
        prof.watch(model, every=2)
        for step in range(NUM_STEPS):
            torch.manual_seed(10 * step + rank)
            batch = torch.randn(8, 6)
            for trained in (alone, model):
                trained.zero_grad()
                trained(batch).square().sum().backward()
            optimizer.step()
            norms["own"].append(_gradient_norm(alone))
            norms["reduced"].append(_gradient_norm(model))
            prof.step()
    return norms


def main() -> None:
    """Train in all ways."""
    rank, folder = int(sys.argv[1]), Path(sys.argv[2])
    os.environ["RANK"], os.environ["WORLD_SIZE"] = str(rank), "2"
    gradient_norm._HOST_SHARE = 1e9
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    norms = {way: _train(way, rank, folder) for way in WAYS}
    dist.destroy_process_group()
    sys.stdout.write(json.dumps(norms))


if __name__ == "__main__":
    main()
