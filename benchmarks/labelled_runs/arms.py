"""Arms of a job: the same work as it is and with each of its changes made, in models that take turns in one process."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch._dynamo

from benchmarks.labelled_runs.job import Bench, Clock, Training
from benchmarks.labelled_runs.models import Model


@dataclass(slots=True)
class Arm:
    """A model in training, and what is set for its process while it trains.

    Attributes:
        learn: one step on a batch; None: forward, backward and update of the model.
        products: of float32 matrices, as `torch.set_float32_matmul_precision` names them.
        picks_fastest: cuDNN measures its kernels.
    """

    model: Model
    learn: Callable[[Any], object] | None = None
    products: str = "highest"
    picks_fastest: bool = False

    @contextmanager
    def settings(self) -> Iterator[None]:
        before = torch.get_float32_matmul_precision(), torch.backends.cudnn.benchmark
        try:
            torch.set_float32_matmul_precision(self.products)
            torch.backends.cudnn.benchmark = self.picks_fastest
            yield
        finally:
            torch.set_float32_matmul_precision(before[0])
            torch.backends.cudnn.benchmark = before[1]


class Arms:
    """Training of one of several arms.

    Args:
        build: makes the arm of a change or a fault, None for the job as it is; each is made when it is first trained.
    """

    def __init__(self, build: Callable[[str | None], Arm]) -> None:
        self._build = build
        self._arms: dict[str | None, Arm] = {}

    def train(self, num_steps: int, on: Set[str], clock: Clock) -> None:
        change = next(iter(on), None)
        assert len(on) <= 1, "changes are made one at a time"
        if change not in self._arms:
            self._arms[change] = self._build(change)
        arm = self._arms[change]
        learn = arm.learn or arm.model.learn
        with arm.settings():
            for batch in clock.data(arm.model.source.loader(num_steps)):
                learn(batch)
                clock.step()

    def keep_only(self, change: str | None) -> None:
        """Free all other arms and what the allocator keeps for them: the profiled run has one model."""
        kept = self._arms[change]
        self._arms = {change: kept}
        gc.collect()
        if kept.model.device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()


def arms(build: Callable[[Bench, str | None], Arm]) -> Callable[[Bench], Training]:
    """Maker of a job from that of its arms."""
    return lambda bench: Arms(lambda change: build(bench, change))
