"""How are steps made, besides model, batch and layout? What leaves the maths alone and changes time and memory."""

from __future__ import annotations

from dataclasses import dataclass

from stepscope.core.errors import UsageError

ACTIVATION_CHECKPOINTING = ("none", "selective", "full")
CHECKPOINT_MODES = ("sync", "async")


@dataclass(frozen=True, slots=True)
class Recipe:
    """Options of training that every layout knows. Checks itself.

    Attributes:
        activation_checkpointing: which activations the backward pass computes again: none, those of all but matrix
            products ("selective"), all inside each block ("full").
        max_gradient_norm: gradients are scaled down to this norm over all ranks; None leaves them.
        bucket_mb: size of DDP's gradient buckets in MiB; None for torch's own.
        overlaps_reduction: gradients are reduced while the backward pass runs, else after it.
        prefetches: FSDP gathers the next block's parameters while this one computes.
        checkpoint_every: a distributed checkpoint after each so many steps; None for none.
        checkpoint_mode: "sync" stops training while it is written, "async" only while it is copied.
        compiles: blocks go through torch.compile.
        loader_workers: processes of each rank's data loader; None for the preset's.

    Raises:
        UsageError: a value is outside its range.
    """

    activation_checkpointing: str = "none"
    max_gradient_norm: float | None = None
    bucket_mb: float | None = None
    overlaps_reduction: bool = True
    prefetches: bool = True
    checkpoint_every: int | None = None
    checkpoint_mode: str = "sync"
    compiles: bool = False
    loader_workers: int | None = None

    def __post_init__(self) -> None:
        for name, choices in (
            ("activation_checkpointing", ACTIVATION_CHECKPOINTING),
            ("checkpoint_mode", CHECKPOINT_MODES),
        ):
            if getattr(self, name) not in choices:
                raise UsageError(f"{name} is one of {', '.join(choices)}, not {getattr(self, name)!r}")
        for name, least in (("max_gradient_norm", 0.0), ("bucket_mb", 0.0), ("checkpoint_every", 0)):
            value = getattr(self, name)
            if value is not None and not least < value < float("inf"):
                raise UsageError(f"{name} must be above {least}, not {value}")
        if self.loader_workers is not None and self.loader_workers < 0:
            raise UsageError(f"loader_workers must be at least 0, not {self.loader_workers}")
