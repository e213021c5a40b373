"""Job of the labelled runs: a training loop whose faults can be switched, and what a verdict on it should say."""

from __future__ import annotations

import gc
import os
import random
import time
from collections.abc import Callable, Iterable, Mapping, Set
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist


@dataclass(frozen=True, slots=True)
class Bench:
    """Where a job runs.

    Attributes:
        is_tiny: sizes that prove that the code runs, on any machine.
        folder: for the job's own files.
        at_end: what ends with the job, where its process goes on.
    """

    device: torch.device
    is_tiny: bool
    folder: Path
    rank: int = 0
    num_ranks: int = 1
    at_end: ExitStack = field(default_factory=ExitStack, compare=False)

    def size(self, full: int, tiny: int) -> int:
        return tiny if self.is_tiny else full

    def synchronize(self) -> None:
        """Wait for the device, and for the other ranks."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        if self.num_ranks > 1:
            dist.barrier()


class Clock(Protocol):
    """What a training loop tells of itself.

    Attributes:
        options: of `stepscope.profile`, for loops of a framework, which have an adapter; None where nobody profiles.
    """

    options: dict[str, Any] | None

    def data(self, loader: Iterable[Any]) -> Iterable[Any]:
        """The same batches."""

    def step(self, *, is_useful: bool = True) -> None:
        """A step has ended; of no use is one that skipped its update."""


class Training(Protocol):
    """A training loop; what it trained stays from call to call."""

    def train(self, num_steps: int, on: Set[str], clock: Clock) -> None:
        """Train so many steps with the faults of these names."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What is built into a job.

    Attributes:
        name: by which the training loop asks for it.
        cause: names any of which is right.
        reasons: any of which is right; none: all are.
        fix: what the bare step without the fault was measured with.
        advice: pattern of which the fix or the first action must name a part.
        ranks: to be named.
        max_confidence: below which a verdict must stay, as nothing recorded proves the fault.
        is_whole: without the fault nothing of its cause is left, so that the bare pair tells share and gain.
        environment: the fault is these variables, with which a process must start.
    """

    name: str
    cause: tuple[str, ...]
    reasons: tuple[str, ...] = ()
    fix: str = ""
    advice: str | None = None
    ranks: tuple[int, ...] = ()
    max_confidence: float | None = None
    is_whole: bool = True
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Change:
    """A change to a job that keeps its work and may take less time: headroom, no fault.

    Attributes:
        name: by which the training loop asks for it.
        action: as it was made.
        advice: pattern that names it.
        samples: of a step with the change for each of a step without.
        is_apart: the process keeps what the setting chose, so that the change is measured in one of its own.
    """

    name: str
    action: str
    advice: str
    samples: float = 1.0
    is_apart: bool = False


STARVED = Fault("loader", ("data_loading",), ("starved",), "data ready", "num_workers|worker")
CHECKPOINT = Fault("checkpoint", ("checkpoint",), (), "no checkpoint", "async|save|checkpoint")
EVALUATION = Fault("evaluation", ("evaluation",), (), "no evaluation", "evaluat|validat")
COLLECTION = Fault("gc", ("host_bound",), ("gc",), "no collection", "gc|garbage")


@dataclass(frozen=True, slots=True)
class Job:
    """A job of the labelled runs.

    Attributes:
        make: builds model and loop, in the process of each rank.
        faults: none is a control, two are a pair.
        period: a fault strikes every so many steps.
        num_ranks: processes.
        has_adapter: the loop belongs to a framework, which profiles by its callback.
        share: of training time, where it is known by construction and no other step would show it.
        num_rounds, num_rounds_after: of blocks of bare steps, before the profiled run and after it.
        losses: causes that stay without faults, of a size that is not known: a verdict may name them first.
        changes: the first is what a verdict should advise, unless another gains more.
        is_tuned: nothing but its changes is known to gain, so that a verdict may promise no more than they do.
        imports: what takes long to import, as `module` or `module:name`.
        dimension: parallel dimension of all ranks (tp, pp), told to the profile.
        is_launched: the profiled run is one of `stepscope run -- torchrun`.
    """

    name: str
    what: str
    make: Callable[[Bench], Training]
    faults: tuple[Fault, ...] = ()
    period: int = 1
    num_ranks: int = 1
    has_adapter: bool = False
    share: float | None = None
    losses: tuple[str, ...] = ()
    changes: tuple[Change, ...] = ()
    is_tuned: bool = False
    imports: tuple[str, ...] = ()
    dimension: str | None = None
    is_launched: bool = False
    num_rounds: int = 2
    num_rounds_after: int = 0

    @property
    def environment(self) -> dict[str, str]:
        """Variables of its faults."""
        return {name: value for fault in self.faults for name, value in fault.environment.items()}


@dataclass(slots=True)
class Loop:
    """A plain training loop.

    Attributes:
        learn: one step on a batch, with the faults that are on: forward, backward, update; whether it updated.
        loader: batches of so many steps.
        hooks: by the name of a fault what happens after each step, with its index.
        kept: what must live as long.
    """

    learn: Callable[[Any, Set[str]], bool]
    loader: Callable[[int, Set[str]], Iterable[Any]]
    hooks: dict[str, Callable[[int], None]] = field(default_factory=dict)
    kept: Any = None

    def train(self, num_steps: int, on: Set[str], clock: Clock) -> None:
        for index, batch in enumerate(clock.data(self.loader(num_steps, on))):
            is_useful = self.learn(batch, on)
            for name, hook in self.hooks.items():
                if name in on:
                    hook(index)
            clock.step(is_useful=is_useful)


def every(period: int, act: Callable[[], None]) -> Callable[[int], None]:
    """Hook that acts after every so many steps."""
    return lambda index: act() if index % period == period - 1 else None


def collect() -> None:
    """Collect garbage, as anxious training code does."""
    gc.collect()


def heap(num_objects: int) -> list[Any]:
    """Objects that live on and that each collection of garbage goes through."""
    return [{"id": index, "fields": [index]} for index in range(num_objects)]


def slow_python(seconds: float) -> None:
    """Pure Python at work: words are counted."""
    ends = time.perf_counter() + seconds
    words = [str(number) for number in range(500)]
    while time.perf_counter() < ends:
        counts: dict[str, int] = {}
        for word in random.choices(words, k=500):
            counts[word] = counts.get(word, 0) + 1


def save(model: torch.nn.Module, folder: Path) -> Callable[[], None]:
    """Save the weights over those saved before."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"weights-{os.getpid()}.pt"
    return lambda: torch.save(model.state_dict(), path)


def evaluation(model: torch.nn.Module, evaluate_batch: Callable[[], Any], num_batches: int) -> Callable[[], None]:
    """Evaluate the model on so many batches."""

    def evaluate() -> None:
        model.eval()
        with torch.no_grad():
            total = sum(float(evaluate_batch()) for _ in range(num_batches))
        model.train()
        assert total == total or num_batches == 0, "the loss is not a number"

    return evaluate
