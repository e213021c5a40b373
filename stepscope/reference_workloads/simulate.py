"""How can a CPU process behave like a device of its own? Its layers sleep as long as a device would compute."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch
from torch.profiler import record_function

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
    """The same activations, after the given time; their gradient takes twice the time."""
    slept: torch.Tensor = _Sleep.apply(activations, milliseconds / 1e3)  # type: ignore[no-untyped-call]  # torch leaves it so
    return slept
