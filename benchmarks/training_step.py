"""Training step of a given approximate length: a transformer's forward, backward and optimizer step.

On a GPU its kernels take longer than their launches, as in any GPU-bound training; the CPU-bound variant has kernels so
small that all other work of the host counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import torch
from torch import nn

_SEED = 7
_SETTLE = 3
"""Steps before something is timed."""

Step = Callable[[], None]


class Workload:
    """The same step for every case.

    Attributes:
        step: computes `loss`, a tensor on the device, and the gradients of `model`.
        step_ms: how long it takes.
        launch_ms: what the host takes of it, as long as nothing makes it wait for the GPU.
    """

    def __init__(self, device: str, step_ms: float, *, host_bound: bool = False) -> None:
        torch.manual_seed(_SEED)
        self.device = torch.device(device)
        self._on_gpu = self.device.type == "cuda"
        width, self._shape = (64, (2, 32)) if not self._on_gpu else (512, (4, 128)) if host_bound else (2048, (8, 640))
        one = self._made(width, 1)
        per_layer = median(seconds_per_step(one, 20, self.synchronize) for _ in range(5))
        self.num_layers = max(1, round(step_ms / 1e3 / per_layer))
        self.step = self._made(width, self.num_layers)
        self.step_ms = 1e3 * seconds_per_step(self.step, 20, self.synchronize)
        self.launch_ms = 1e3 * seconds_per_step(self.step, 3, lambda: None)
        self.synchronize()

    def __str__(self) -> str:
        """For people."""
        made_of = f"{self.num_layers} layers, launched in {self.launch_ms:.1f} ms"
        return f"step of {self.step_ms:.1f} ms ({made_of})"

    def synchronize(self) -> None:
        """Wait for the GPU, if there is one."""
        if self._on_gpu:
            torch.cuda.synchronize()

    def _made(self, width: int, num_layers: int) -> Step:
        layers = [
            nn.TransformerEncoderLayer(width, width // 64, 4 * width, batch_first=True) for _ in range(num_layers)
        ]
        dtype = torch.bfloat16 if self._on_gpu else torch.float32
        self.model = model = nn.Sequential(*layers).to(self.device, dtype)
        optimizer = torch.optim.AdamW(model.parameters(), fused=self._on_gpu, foreach=not self._on_gpu)
        batch = torch.randn(*self._shape, width, device=self.device, dtype=dtype)

        def step() -> None:
            loss = model(batch).square().mean()
            loss.backward()
            self.loss = loss.detach()
            optimizer.step()
            optimizer.zero_grad()

        for _ in range(_SETTLE):
            step()
        return step


def seconds_per_step(step: Step, num_steps: int, synchronize: Step) -> float:
    """Mean step time of so many steps, GPU work included."""
    synchronize()
    started = time.perf_counter()
    for _ in range(num_steps):
        step()
    synchronize()
    return (time.perf_counter() - started) / num_steps
