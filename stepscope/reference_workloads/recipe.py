"""Recipe of a training: its model and batch by preset, and options that change its time and memory, not its maths."""

from __future__ import annotations

import math
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from stepscope.core.errors import UsageError
from stepscope.core.text.names import unknown_name
from stepscope.core.text.numbers import counted
from stepscope.reference_workloads.plan import SPLIT_BACKWARD_SCHEDULES, ParallelPlan

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
        self._check_no_effect(preset)
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

    def _check_no_effect(self, preset: Preset) -> None:
        """Options that were given and would do nothing."""
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


DTYPES = ("float32", "bfloat16", "float16")
_LLAMA_MULTIPLE = 256
_AT_LEAST_ONE = (
    "vocab_size",
    "hidden_size",
    "num_layers",
    "num_heads",
    "num_key_value_heads",
    "sequence_length",
    "batch_size",
)
_MAX_LAYERS = 10_000
"""Far above any model; what is estimated layer by layer ends within a second."""
IMAGES = "resnet50"
"""The workload that learns images; the others learn text."""


@dataclass(frozen=True, slots=True)
class ImageModel:
    """What a model of images has: the pixels of a side, and how many bottlenecks of each width."""

    size: int
    blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Preset:
    """Model and batch. `batch_size` is in sequences over all data-parallel ranks; `dtype` is that of the matmuls.

    Attributes:
        num_key_value_heads: of the Llama-like model; the GPT has as many as query heads.
        architecture: "gpt", "llama" or "resnet50", as the workload is called.
        image: for a model of images, whose classes are `vocab_size` and an item of the batch one image, so a sequence
            of length 1; `hidden_size` is the width of its first bottlenecks. None for a language model.

    Raises:
        UsageError: a value is out of its range.
    """

    name: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    sequence_length: int
    batch_size: int
    learning_rate: float
    dtype: str
    num_loader_workers: int
    num_key_value_heads: int
    architecture: str = "gpt"
    image: ImageModel | None = None

    def __post_init__(self) -> None:
        for name in _AT_LEAST_ONE:
            if getattr(self, name) < 1:
                raise UsageError(f"{name.replace('_', ' ')} must be at least 1, not {getattr(self, name)}")
        if self.num_layers > _MAX_LAYERS:
            raise UsageError(f"a model has at most {_MAX_LAYERS:,} layers here, not {self.num_layers:,}")
        if not 0 < self.learning_rate < math.inf or self.num_loader_workers < 0:
            raise UsageError("a learning rate is above 0, and a loader's number of workers not below")
        if self.hidden_size % self.num_heads:
            raise UsageError(
                f"a hidden size of {self.hidden_size} cannot be divided over {counted(self.num_heads, 'head')}"
            )
        if self.dtype not in DTYPES:
            raise UsageError(f"a dtype is one of {', '.join(DTYPES)}, not {self.dtype!r}")
        if self.image is not None and self.num_layers != sum(self.image.blocks):
            raise UsageError(
                f"a ResNet of {counted(sum(self.image.blocks), 'bottleneck')} has not "
                f"{counted(self.num_layers, 'layer')}",
                what_next="leave --layers out",
            )

    @property
    def is_llama(self) -> bool:
        """Whether blocks have RMSNorm, rotary places, grouped queries and SwiGLU."""
        return self.architecture == "llama"

    @property
    def num_groups(self) -> int:
        """Key heads; the query heads share them evenly."""
        return self.num_key_value_heads if self.is_llama else self.num_heads

    @property
    def feed_forward_size(self) -> int:
        """Width between a block's last matrices; Llama's three hold about as much as the GPT's two."""
        if not self.is_llama:
            return 4 * self.hidden_size
        return math.ceil(8 * self.hidden_size / 3 / _LLAMA_MULTIPLE) * _LLAMA_MULTIPLE


@cache
def presets(workload: str = "gpt") -> dict[str, Preset]:
    file = "presets_resnet50.toml" if workload == IMAGES else "presets.toml"
    text = files("stepscope.reference_workloads").joinpath(file).read_text(encoding="utf-8")
    return {name: _preset(name, workload, table) for name, table in tomllib.loads(text).items()}


def _preset(name: str, workload: str, table: dict[str, Any]) -> Preset:
    image = table.pop("image", None)
    if image is None:
        return Preset(name=name, architecture=workload, **table)
    model = ImageModel(image["size"], tuple(image["blocks"]))
    whole: dict[str, Any] = {"num_heads": 1, "num_key_value_heads": 1, "sequence_length": 1}
    return Preset(name=name, architecture=workload, image=model, **(whole | table))


def find_preset(name: str, workload: str = "gpt") -> Preset:
    """The preset of this name for a workload.

    Raises:
        UsageError: there is none.
    """
    known = presets(workload)
    if name not in known:
        raise unknown_name("preset", name, sorted(known))
    return known[name]
