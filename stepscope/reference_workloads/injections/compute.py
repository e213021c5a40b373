"""Which faults make the device compute more, or wait for its memory?"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from stepscope.core.causes import Cause, Reason
from stepscope.reference_workloads.injections.injection import Injection, Need, Site, severity
from stepscope.reference_workloads.injections.layers import layers_of, widest_matrix
from stepscope.reference_workloads.injections.needs import GPUS, NO_COMPILER, TRANSFORMER

if TYPE_CHECKING:
    from stepscope.reference_workloads.job import TrainingJob


@dataclass(frozen=True, slots=True)
class MemoryBound(Injection):
    """Each layer's widest tensor goes through memory again and again, as unfused element-wise chains do."""

    name: ClassVar[str] = "memory_bound"
    cause: ClassVar[Cause] = Cause.MEMORY_BOUND
    reasons: ClassVar[tuple[Reason, ...]] = (Reason.UNFUSED,)
    needs: ClassVar[tuple[Need, ...]] = (TRANSFORMER, GPUS, NO_COMPILER)
    shows: ClassVar[str] = "element-wise kernels near the memory's bandwidth, in long rows, hold most of the time"

    passes_per_layer: int = severity(64, least=1)

    def prepare(self, site: Site) -> None:
        def go_through_memory(_module: Any, _inputs: Any, output: Any) -> Any:
            for _ in range(self.passes_per_layer):
                output = output * 1.0  # the same values; the backward pass does it again
            return output

        for layer in layers_of(site):
            widest_matrix(layer).register_forward_hook(go_through_memory)


@dataclass(frozen=True, slots=True)
class Recompute(Injection):
    """Every block runs its forward pass twice, though there is memory enough to keep its activations."""

    name: ClassVar[str] = "recompute"
    cause: ClassVar[Cause] = Cause.COMPUTE_BOUND
    reasons: ClassVar[tuple[Reason, ...]] = (Reason.RECOMPUTE,)
    needs: ClassVar[tuple[Need, ...]] = (TRANSFORMER, GPUS)
    shows: ClassVar[str] = "forward operators inside backward; HFU well above MFU"

    def change(self, job: TrainingJob) -> TrainingJob:
        return replace(job, recipe=replace(job.recipe, activation_checkpointing="full"))
