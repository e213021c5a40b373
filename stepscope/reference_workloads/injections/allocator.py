"""Which fault lies in asking the driver for memory, and how much of a step does that take?

What a cudaMalloc and a cudaFree cost depends on the driver, on the size and on how many ranks ask at once: emptying the
cache once a layer made a step on an H200 8 % longer, less than what a verdict names. So the fault measures a step
without itself, then asks and gives back for as long as is wanted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from stepscope.core.causes import Cause, Reason
from stepscope.reference_workloads.injections.injection import Injection, Need, Site, severity
from stepscope.reference_workloads.injections.layers import layers_of
from stepscope.reference_workloads.injections.needs import GPUS

if TYPE_CHECKING:
    from stepscope.reference_workloads.job import TrainingJob

NOT_EXPANDABLE = {
    "PYTORCH_ALLOC_CONF": "expandable_segments:False",
    "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:False",  # its name before torch 2.9
}

MEASURED_STEP = 2
"""The last of the steps in which a run settles (communicators, kernels that are tuned); the fault acts after it."""

_SEGMENT_BYTES = 64 * 2**20
"""Above what torch's allocator takes from a segment that it has, so that the driver is asked."""


class Churn:
    """Spends a part of each step in the allocator, in equal parts after each layer.

    Args:
        extra_ratio: of a step without it.
        cycle: takes memory from the driver and gives it back; the first one waits for the device.
        wait: for the device.
        clock: seconds.
    """

    def __init__(
        self,
        extra_ratio: float,
        *,
        cycle: Callable[[], None],
        wait: Callable[[], None],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._extra_ratio = extra_ratio
        self._cycle, self._wait, self._clock = cycle, wait, clock
        self._started = 0.0
        self._num_calls = 0
        self._seconds_per_call = 0.0

    def begin_step(self, step: int) -> None:
        """Measure MEASURED_STEP."""
        if step == MEASURED_STEP:
            self._wait()
            self._started, self._num_calls = self._clock(), 0
        elif step == MEASURED_STEP + 1:
            self._wait()
            step_seconds = self._clock() - self._started
            self._seconds_per_call = self._extra_ratio * step_seconds / max(1, self._num_calls)

    def after_layer(self) -> None:
        """Churn, once it is known for how long."""
        self._num_calls += 1
        if not self._seconds_per_call:
            return
        self._cycle()  # waits for what the device had to do: only what comes then makes it idle
        end = self._clock() + self._seconds_per_call
        while self._clock() < end:
            self._cycle()


@dataclass(frozen=True, slots=True)
class AllocatorChurn(Injection):
    """After each layer's forward pass memory is taken from the driver and given back, with what torch has cached."""

    name: ClassVar[str] = "allocator_churn"
    cause: ClassVar[Cause] = Cause.HOST_BOUND
    reasons: ClassVar[tuple[Reason, ...]] = (Reason.ALLOCATOR,)
    needs: ClassVar[tuple[Need, ...]] = (GPUS,)
    shows: ClassVar[str] = "cudaFree and cudaMalloc in each layer; the device idles meanwhile"

    extra_ratio: float = severity(0.4, above=0)
    """of a step without the fault; a loss is named from a tenth of the longer step on, and 0.4 is 29 % of it"""

    def refusal(self, job: TrainingJob) -> str | None:
        if job.num_steps <= MEASURED_STEP + 1:
            return f"it measures the step after {MEASURED_STEP} and acts from then on, and there are {job.num_steps}"
        return Injection.refusal(self, job)

    def environment(self, job: TrainingJob) -> Mapping[str, str]:
        return NOT_EXPANDABLE

    def prepare(self, site: Site) -> None:
        import torch

        def cycle() -> None:
            block = torch.empty(_SEGMENT_BYTES, dtype=torch.uint8, device=site.device)
            del block
            torch.cuda.empty_cache()

        churn = Churn(self.extra_ratio, cycle=cycle, wait=lambda: torch.cuda.synchronize(site.device))
        site.kept[self.name] = churn

        def after_layer(*_: Any) -> None:
            churn.after_layer()

        for layer in layers_of(site):
            layer.register_forward_hook(after_layer)

    def before_step(self, site: Site, step: int) -> None:
        site.kept[self.name].begin_step(step)
