"""Which faults let the device's memory run out?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from stepscope.core.causes import Cause, Reason
from stepscope.core.counting import counted
from stepscope.core.run_layout import memory_snapshot_path
from stepscope.reference_workloads.injections.allocator import NOT_EXPANDABLE
from stepscope.reference_workloads.injections.injection import Ending, Injection, Need, Site, severity
from stepscope.reference_workloads.injections.layers import layers_of
from stepscope.reference_workloads.injections.needs import GPUS

if TYPE_CHECKING:
    from stepscope.reference_workloads.job import TrainingJob

_STEPS_TO_FILL = 300
"""More than any device has memory for."""

_SNAPSHOT_SECONDS = 15.0
"""For the other ranks, which run out of memory at about the same time, to write theirs."""

_HISTORY_ENTRIES = 100_000

_LEFT_FREE_BYTES = 2**30
"""For what takes memory beside torch's allocator: communicators, the profiler, libraries' workspaces."""


_SIGNS_OF_OUT_OF_MEMORY = ("outofmemory", "out of memory")


class OutOfMemory(Injection):
    """A fault after which an allocation fails."""

    __slots__ = ()

    cause: ClassVar[Cause] = Cause.OUT_OF_MEMORY
    needs: ClassVar[tuple[Need, ...]] = (GPUS,)

    def wrong_end(self, job: TrainingJob, ending: Ending) -> str | None:
        """The error must be the device's."""
        if any(sign in ending.error.lower() for sign in _SIGNS_OF_OUT_OF_MEMORY):
            return None
        return f"memory was to run out, but: {ending.error}"


@dataclass(frozen=True, slots=True)
class OomGrowth(OutOfMemory):
    """Each layer's output of each step is kept for ever, as in lists of losses that nobody detached."""

    name: ClassVar[str] = "oom_growth"
    reasons: ClassVar[tuple[Reason, ...]] = (Reason.LEAK,)
    shows: ClassVar[str] = (
        "allocated memory grows by the same amount each step; memory/rank{r}.pickle tells who holds it"
    )

    copies_per_layer: int = severity(4, least=1)
    """kept of each output, so that memory is full within some dozen steps"""

    def change(self, job: TrainingJob) -> TrainingJob:
        return replace(job, num_steps=max(job.num_steps, _STEPS_TO_FILL), linger_seconds=_SNAPSHOT_SECONDS)

    def environment(self, job: TrainingJob) -> Mapping[str, str]:
        return NOT_EXPANDABLE

    def prepare(self, site: Site) -> None:
        keep_snapshot(site)
        kept: list[Any] = site.kept.setdefault(self.name, [])

        def keep(_module: Any, _inputs: Any, output: Any) -> None:
            kept.append(output)
            kept.extend(output.detach().clone() for _ in range(self.copies_per_layer - 1))

        for layer in layers_of(site):
            layer.register_forward_hook(keep)


@dataclass(frozen=True, slots=True)
class OomFragmentation(OutOfMemory):
    """Blocks of alternating sizes leave half of the memory free, in pieces that are too small for the next step."""

    name: ClassVar[str] = "oom_fragmentation"
    reasons: ClassVar[tuple[Reason, ...]] = (Reason.FRAGMENTATION,)
    shows: ClassVar[str] = "out of memory with gigabytes reserved and unallocated, none in one piece as large as asked"

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

    def prepare(self, site: Site) -> None:
        keep_snapshot(site)

    def before_step(self, site: Site, step: int) -> None:
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


def keep_snapshot(site: Site) -> None:
    """Have torch write what holds the memory when it runs out."""
    import torch

    if not site.job.profiled:
        return
    target = Path(site.job.out, site.job.run, memory_snapshot_path(site.rank))

    def write(*_: Any) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_suffix(".part")
        torch.cuda.memory._dump_snapshot(str(part))  # type: ignore[no-untyped-call]  # torch leaves it so
        part.rename(target)

    torch.cuda.memory._record_memory_history(stacks="python", max_entries=_HISTORY_ENTRIES)
    torch._C._cuda_attach_out_of_memory_observer(write)  # type: ignore[attr-defined]  # CUDA builds only
