"""Recipe: options of a training step that leave its maths alone and change its time and memory."""

from __future__ import annotations

from dataclasses import dataclass

from stepscope.core.errors import UsageError
from stepscope.reference_workloads.plan import SPLIT_BACKWARD_SCHEDULES, ParallelPlan, Preset

ACTIVATION_CHECKPOINTING = ("none", "selective", "full")
CHECKPOINT_MODES = ("sync", "async")


@dataclass(frozen=True, slots=True)
class Recipe:
    """Training options of a workload that every layout knows. Checks itself.

    Attributes:
        activation_checkpointing: which activations the backward pass computes again: none, those of all but matrix
            products ("selective"), all inside each block ("full").
        max_gradient_norm: gradients are scaled down to this norm over all ranks; None leaves them.
        bucket_mb: size of DDP's gradient buckets in MiB; None for torch's own.
        overlaps_reduction: gradients are reduced while the backward pass runs; else after it, or under fully_shard
            while it waits.
        prefetches: FSDP gathers the next block's parameters while this one computes.
        checkpoint_every: a distributed checkpoint after each so many steps; None for none.
        checkpoint_mode: "sync" stops training while it is written, "async" only while it is copied.
        compiles: blocks go through torch.compile.
        resume_from: the folder of a checkpoint to go on from.
        initial_loss_scale: what float16 losses are multiplied by at first.
        loss_scale_growth_interval: steps without an overflow after which that doubles.
        loader_workers: processes of each rank's data loader; None for the preset's.
        loader_prefetch: batches that each of them makes ahead; None for torch's own number.
        loader_pins_memory: batches for a GPU are in pinned memory and copied while it computes.
        data_dir: folder of JPEG images in one subfolder a class, for models of images; where it is empty or not there
            some are made. None for synthetic images from memory.

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
    resume_from: str | None = None
    initial_loss_scale: float = 65536.0
    loss_scale_growth_interval: int = 2000
    loader_workers: int | None = None
    loader_prefetch: int | None = None
    loader_pins_memory: bool = True
    data_dir: str | None = None

    def __post_init__(self) -> None:
        for name, choices in (
            ("activation_checkpointing", ACTIVATION_CHECKPOINTING),
            ("checkpoint_mode", CHECKPOINT_MODES),
        ):
            if getattr(self, name) not in choices:
                raise UsageError(f"{_option(name)} is one of {', '.join(choices)}, not {getattr(self, name)!r}")
        for name, least in (
            ("max_gradient_norm", 0.0),
            ("bucket_mb", 0.0),
            ("checkpoint_every", 0),
            ("initial_loss_scale", 0.0),
            ("loss_scale_growth_interval", 0),
            ("loader_prefetch", 0),
        ):
            value = getattr(self, name)
            if value is not None and not least < value < float("inf"):
                raise UsageError(f"{_option(name)} must be above {least:g}, not {value:g}")
        if self.loader_workers is not None and self.loader_workers < 0:
            raise UsageError(f"{_option('loader_workers')} must be at least 0, not {self.loader_workers}")

    def num_loader_workers(self, preset: Preset) -> int:
        return preset.num_loader_workers if self.loader_workers is None else self.loader_workers

    def check(self, plan: ParallelPlan, preset: Preset, *, is_simulated: bool) -> None:
        """Raises UsageError when an option means nothing, or cannot be, with this layout, model or simulation."""
        self._check_reduction(plan)
        if self.checkpoint_mode == "async" and self.checkpoint_every is None:
            raise UsageError(
                "no checkpoint is written", where="--checkpoint-mode", what_next="add --checkpoint-every STEPS"
            )
        defaults = Recipe()
        for name in ("initial_loss_scale", "loss_scale_growth_interval"):
            if preset.dtype != "float16" and getattr(self, name) != getattr(defaults, name):
                raise UsageError(
                    f"gradients in {preset.dtype} do not underflow, so losses are not scaled",
                    where=_option(name),
                    what_next="use --dtype float16",
                )
        self._check_images(preset)
        if not self.prefetches and plan.zero not in {2, 3}:
            raise UsageError(
                f"zero {plan.zero} keeps all parameters on each rank, so none are gathered ahead",
                where="--no-prefetch",
                what_next="use --zero 2 or 3 with --dp 2 or more",
            )
        if self.activation_checkpointing == "selective" and plan.schedule in SPLIT_BACKWARD_SCHEDULES:
            raise UsageError(
                f"the {plan.schedule} schedule goes backwards through a layer twice, for activations and for weights,"
                " and torch allows that once where activations are kept selectively",
                where="--activation-checkpointing",
                what_next="use full, or another schedule",
            )
        if self.loader_prefetch is not None and not self.num_loader_workers(preset):
            raise UsageError(
                "the loader has no workers that could make batches ahead",
                where="--loader-prefetch",
                what_next="use --loader-workers 1 or more",
            )
        if self.compiles and is_simulated:
            raise UsageError(
                "a compiler does not know that layers sleep: compiled blocks and simulated compute exclude each other",
                what_next="drop --compile or --simulate-compute",
            )

    def _check_images(self, preset: Preset) -> None:
        if preset.image is None and self.data_dir is not None:
            raise UsageError("only resnet50 learns images from a folder", where="--data-dir")
        if preset.image is None:
            return
        if self.activation_checkpointing != "none":
            raise UsageError(
                "a bottleneck computed again would count its batch twice in the running statistics of its norms",
                where="--activation-checkpointing",
                what_next="use none with resnet50",
            )
        if self.compiles:
            raise UsageError("only a transformer's blocks are compiled", where="--compile", what_next="drop --compile")

    def _check_reduction(self, plan: ParallelPlan) -> None:
        if self.bucket_mb is not None and (plan.dp == 1 or plan.zero not in {0, 1} or plan.replicate):
            raise UsageError(
                "only DistributedDataParallel collects gradients in buckets; fully_shard and replicate reduce block by"
                " block",
                where="--bucket-mb",
                what_next="use --zero 0 or 1 with --dp 2 or more",
            )
        if not self.overlaps_reduction and plan.zero == 1 and plan.tp > 1:
            raise UsageError(
                "without DDP tensor-parallel parameters stay DTensors, and ZeroRedundancyOptimizer cannot send those to"
                " its peers (torch knows no c10d.broadcast_ of them)",
                where="--no-overlap",
                what_next="use --zero 0, 2 or 3",
            )
        if not self.overlaps_reduction and (plan.dp == 1 or plan.replicate):
            raise UsageError(
                "torch's `replicate` has no option for when to reduce"
                if plan.replicate
                else "dp is 1: nothing is reduced",
                where="--no-overlap",
                what_next="use --dp 2 or more without --replicate",
            )


def _option(name: str) -> str:
    """What the command line calls a field; the growth interval is for callers from Python alone."""
    return name if name == "loss_scale_growth_interval" else f"--{name.replace('_', '-')}"
