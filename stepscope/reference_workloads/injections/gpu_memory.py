"""Faults of GPU memory: a churning allocator, and leaks and fragmentation until memory runs out.

What a cudaMalloc and a cudaFree cost depends on the driver, on the size and on how many ranks ask at once: emptying the
cache once a layer made a step on an H200 8 % longer, less than the threshold of a verdict. So `AllocatorChurn` measures
a step without itself, then allocates and frees for as long as is wanted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stepscope.core.documents.run_directory import RankFile
from stepscope.core.text.numbers import counted
from stepscope.core.vocabulary import Cause, Reason
from stepscope.reference_workloads.injections import faults
from stepscope.reference_workloads.job import FaultSite, FaultyRunEnding, Injection, TrainingJob, severity

NOT_EXPANDABLE = {
    "PYTORCH_ALLOC_CONF": "expandable_segments:False",
    "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:False",  # its name before torch 2.9
}

MEASURED_STEP = 2
"""The last of the steps in which a run settles (communicators, kernels that are tuned); the fault acts after it."""

_SEGMENT_BYTES = 64 * 2**20
"""Above what torch's allocator takes from a segment that it has, so that the driver is asked."""


class Churn:
    """Injected churn: spends a part of each step in the allocator, in equal parts after each layer.

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

    name = "allocator_churn"
    cause = Cause.HOST_BOUND
    reasons = (Reason.ALLOCATOR,)
    needs = (faults.GPUS,)
    shows = "cudaFree and cudaMalloc in each layer; the device idles meanwhile"

    extra_ratio: float = severity(0.4, above=0)
    """of a step without the fault; the threshold of a cause is a tenth of the longer step, and 0.4 is 29 % of it"""

    def refusal(self, job: TrainingJob) -> str | None:
        if job.num_steps <= MEASURED_STEP + 1:
            return f"it measures the step after {MEASURED_STEP} and acts from then on, and there are {job.num_steps}"
        return Injection.refusal(self, job)

    def environment(self, job: TrainingJob) -> Mapping[str, str]:
        return NOT_EXPANDABLE

    def prepare(self, site: FaultSite) -> None:
        import torch

        def cycle() -> None:
            block = torch.empty(_SEGMENT_BYTES, dtype=torch.uint8, device=site.device)
            del block
            torch.cuda.empty_cache()

        churn = Churn(self.extra_ratio, cycle=cycle, wait=lambda: torch.cuda.synchronize(site.device))
        site.kept[self.name] = churn

        def after_layer(*_: Any) -> None:
            churn.after_layer()

        for layer in faults.layers_of(site):
            layer.register_forward_hook(after_layer)

    def before_step(self, site: FaultSite, step: int) -> None:
        site.kept[self.name].begin_step(step)


_STEPS_TO_FILL = 300
"""More than any device has memory for."""

_SNAPSHOT_SECONDS = 15.0
"""For the other ranks, which run out of memory at about the same time, to write theirs."""

_HISTORY_ENTRIES = 100_000

_LEFT_FREE_BYTES = 2**30
"""For what takes memory beside torch's allocator: communicators, the profiler, libraries' workspaces."""


_SIGNS_OF_OUT_OF_MEMORY = ("outofmemory", "out of memory")


class OutOfMemory(Injection):
    """An injected fault after which an allocation fails."""

    __slots__ = ()

    cause = Cause.OUT_OF_MEMORY
    needs = (faults.GPUS,)

    def unexpected_ending(self, job: TrainingJob, ending: FaultyRunEnding) -> str | None:
        """The error must be the device's."""
        if any(sign in ending.error.lower() for sign in _SIGNS_OF_OUT_OF_MEMORY):
            return None
        return f"memory was to run out, but: {ending.error}"


@dataclass(frozen=True, slots=True)
class OomGrowth(OutOfMemory):
    """Each layer's output of each step is kept for ever, as in lists of losses that nobody detached."""

    name = "oom_growth"
    reasons = (Reason.LEAK,)
    shows = "allocated memory grows by the same amount each step; memory/rank{r}.pickle shows what holds it"

    copies_per_layer: int = severity(4, least=1)
    """kept of each output, so that memory is full within some dozen steps"""

    def change(self, job: TrainingJob) -> TrainingJob:
        return replace(job, num_steps=max(job.num_steps, _STEPS_TO_FILL), linger_seconds=_SNAPSHOT_SECONDS)

    def environment(self, job: TrainingJob) -> Mapping[str, str]:
        return NOT_EXPANDABLE

    def prepare(self, site: FaultSite) -> None:
        _keep_snapshot(site)
        kept: list[Any] = site.kept.setdefault(self.name, [])

        def keep(_module: Any, _inputs: Any, output: Any) -> None:
            kept.append(output)
            kept.extend(output.detach().clone() for _ in range(self.copies_per_layer - 1))

        for layer in faults.layers_of(site):
            layer.register_forward_hook(keep)


@dataclass(frozen=True, slots=True)
class OomFragmentation(OutOfMemory):
    """Blocks of alternating sizes leave half of the memory free, in pieces that are too small for the next step."""

    name = "oom_fragmentation"
    reasons = (Reason.FRAGMENTATION,)
    shows = "out of memory with gigabytes reserved and unallocated, none in one piece as large as asked"

    segment_mb: int = severity(32, least=20)
    """of which torch's allocator makes segments of their own; it does from 10 MiB on, kept parts too"""
    kept_ratio: float = severity(0.55, above=0.5, below=1)
    """of each segment; above a half, so that no free rest holds a second one"""
    at_step: int = severity(7, least=0)

    def refusal(self, job: TrainingJob) -> str | None:
        if not 0 <= self.at_step < job.num_steps:
            return f"of {counted(job.num_steps, 'step')} none is step {self.at_step}"
        return Injection.refusal(self, job)

    def change(self, job: TrainingJob) -> TrainingJob:
        return replace(job, linger_seconds=_SNAPSHOT_SECONDS)

    def environment(self, job: TrainingJob) -> Mapping[str, str]:
        return NOT_EXPANDABLE

    def prepare(self, site: FaultSite) -> None:
        _keep_snapshot(site)

    def before_step(self, site: FaultSite, step: int) -> None:
        if step == self.at_step:
            site.kept[self.name] = _in_pieces(site.device, self.segment_mb * 2**20, self.kept_ratio)


def _in_pieces(device: Any, segment_bytes: int, kept_ratio: float) -> list[Any]:
    """Fill what the device has free with segments, then put a smaller block into each in place of the one it had."""
    import torch

    torch.cuda.empty_cache()
    free_bytes = torch.cuda.mem_get_info(device)[0] - _LEFT_FREE_BYTES
    blocks = [torch.empty(segment_bytes, dtype=torch.uint8, device=device) for _ in range(free_bytes // segment_bytes)]
    kept = []
    while blocks:
        blocks.pop()
        kept.append(torch.empty(int(segment_bytes * kept_ratio), dtype=torch.uint8, device=device))
    return kept


def _keep_snapshot(site: FaultSite) -> None:
    """Have torch write what holds the memory when it runs out."""
    import torch

    if not site.job.profiled:
        return
    target = Path(site.job.out, site.job.run, RankFile.MEMORY_SNAPSHOT.path(site.rank))

    def write(*_: Any) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_suffix(".part")
        torch.cuda.memory._dump_snapshot(str(part))  # type: ignore[no-untyped-call]  # torch leaves it so
        part.rename(target)

    torch.cuda.memory._record_memory_history(stacks="python", max_entries=_HISTORY_ENTRIES)
    torch._C._cuda_attach_out_of_memory_observer(write)  # type: ignore[attr-defined]  # CUDA builds only
