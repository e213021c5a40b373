"""Simulated compute: layers that sleep, so that a CPU process behaves like a device of its own.

`TruthLog` keeps what each step slept, by the process's own clock, beside the traces; no analysis reads it. Sleeping
layers are all the compute there is, so a step's idle share is known without any trace: what the rank did not sleep of
the step without its optimizer.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch.profiler import record_function

from stepscope.core.documents.run_directory import TRUTH_FOLDER

SPAN_NAME = "simulated_compute"
BACKWARD_FACTOR = 2
"""A backward pass multiplies twice as many matrices as its forward pass."""


@dataclass(slots=True)
class _Slept:
    """What the layers of this process have slept so far, by its own clock."""

    seconds: float = 0.0


SLEPT = _Slept()


class _Sleep(torch.autograd.Function):
    """Identity that takes `seconds` forwards and twice that backwards, on the thread that runs it."""

    @staticmethod
    def forward(ctx: Any, activations: torch.Tensor, seconds: float) -> torch.Tensor:
        ctx.seconds = seconds
        _sleep(seconds)
        return activations.view_as(activations)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        _sleep(BACKWARD_FACTOR * ctx.seconds)
        return gradients[0], None


def _sleep(seconds: float) -> None:
    with record_function(SPAN_NAME):
        started = time.perf_counter()
        time.sleep(seconds)
        SLEPT.seconds += time.perf_counter() - started


def simulate_compute(activations: torch.Tensor, milliseconds: float) -> torch.Tensor:
    """Simulate a model layer's compute time: sleep in the forward pass, twice as long in the backward pass."""
    slept: torch.Tensor = _Sleep.apply(activations, milliseconds / 1e3)  # type: ignore[no-untyped-call]  # torch leaves it so
    return slept


@dataclass(frozen=True, slots=True)
class _StepTruth:
    """One step of one rank: all of it, and what of it its layers slept and its optimizer took."""

    index: int
    seconds: float
    slept_seconds: float
    optimizer_seconds: float


class TruthLog:
    """True step times of a model with simulated layers; time between `end` and `begin` is in none."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._steps: list[_StepTruth] = []
        self._optimizer_seconds = 0.0
        self._optimizer_started = 0.0
        optimizer.register_step_pre_hook(self._before_optimizer)
        optimizer.register_step_post_hook(self._after_optimizer)
        self.begin()

    def begin(self) -> None:
        self._started = time.perf_counter()
        self._slept_before = SLEPT.seconds
        self._optimizer_seconds = 0.0

    def end(self) -> None:
        now = time.perf_counter()
        slept = SLEPT.seconds - self._slept_before
        self._steps.append(_StepTruth(len(self._steps), now - self._started, slept, self._optimizer_seconds))

    def write(self, run_directory: Path, rank: int) -> None:
        """One JSON object a line and step, in truth/rank{r}.jsonl."""
        folder = run_directory / TRUTH_FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        lines = [json.dumps(asdict(step)) for step in self._steps]
        (folder / f"rank{rank}.jsonl").write_text("\n".join(lines) + "\n")

    def _before_optimizer(self, *_: object) -> None:
        self._optimizer_started = time.perf_counter()

    def _after_optimizer(self, *_: object) -> None:
        self._optimizer_seconds += time.perf_counter() - self._optimizer_started
