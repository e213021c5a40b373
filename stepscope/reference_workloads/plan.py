"""Plan of a training: model and batch by preset, the layout over processes, its schedules, and refused layouts.

Refused layouts fail in torch, or give other gradients than one process: docs/guides/workloads.md.
"""

from __future__ import annotations

import math
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from stepscope.core.errors import UsageError
from stepscope.core.text.numbers import counted, unknown_name


@dataclass(frozen=True, slots=True)
class ParallelPlan:
    """Sizes of the mesh and how each dimension works. Checks itself; a plan that exists can run.

    Attributes:
        tp, pp, dp: tensor, pipeline and data parallel sizes; the world is their product.
        zero: what data parallelism shards: 0 nothing (DDP), 1 optimizer state (ZeroRedundancyOptimizer), 2 that and
            gradients (fully_shard that keeps parameters after the forward pass), 3 parameters too.
            None: 2 with data parallelism, else 0.
        schedule: one of SCHEDULES; only matters with pp > 1.
        micro_batches: parts each rank's batch is cut into. None: pp, and for dualpipe-v twice that.
        stage_layers: layers of each pipeline stage in order, for uneven cuts. None: the same number each.
        sequence_parallel: between its matrices a block holds a tensor-parallel rank's part of the sequence only.
        loss_parallel: logits are cut by vocabulary over tensor-parallel ranks, and so is the loss.
        replicate: zero 0 by torch's composable `replicate` instead of DDP; it knows stages that share a rank.
        cpu_offload: parameters and optimizer are kept in host memory (zero 2 or 3).

    Raises:
        UsageError: torch cannot do it, or does it wrongly; the message says why.
    """

    tp: int = 1
    pp: int = 1
    dp: int = 1
    zero: int | None = None
    schedule: str = "1f1b"
    micro_batches: int | None = None
    stage_layers: tuple[int, ...] | None = None
    sequence_parallel: bool = False
    loss_parallel: bool = False
    replicate: bool = False
    cpu_offload: bool = False

    def __post_init__(self) -> None:
        if self.zero is None:
            object.__setattr__(self, "zero", 2 if self.dp > 1 else 0)
        if self.micro_batches is None:
            rounds = NUM_CHUNKS if self.schedule == "dualpipe-v" else 1
            object.__setattr__(self, "micro_batches", max(rounds * self.pp, 1))
        for name in ("tp", "pp", "dp", "micro_batches"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.stage_layers is not None and (len(self.stage_layers) != self.num_stages or min(self.stage_layers) < 1):
            raise UsageError(
                f"{counted(self.num_stages, 'pipeline stage')} cannot hold "
                f"{', '.join(map(str, self.stage_layers))} layers",
                what_next=f"give {counted(self.num_stages, 'number')} of layers, at least 1",
            )
        if self.schedule not in SCHEDULES:
            raise unknown_name("schedule", self.schedule, SCHEDULES)
        if self.zero not in {0, 1, 2, 3}:
            raise UsageError(f"zero is a level of 0 to 3, not {self.zero}")
        refuse_unsound(self)

    @property
    def world_size(self) -> int:
        """Processes the plan needs."""
        return self.tp * self.pp * self.dp

    @property
    def num_micro_batches(self) -> int:
        """Parts each rank's batch is cut into."""
        assert self.micro_batches is not None
        return self.micro_batches

    @property
    def num_stages(self) -> int:
        return self.pp * (NUM_CHUNKS if self.is_multi_stage else 1)

    @property
    def is_multi_stage(self) -> bool:
        return self.pp > 1 and self.schedule in MULTI_STAGE_SCHEDULES

    @property
    def rank_with_loss(self) -> int:
        return 0 if self.schedule in V_SCHEDULES else self.pp - 1

    def stages_of(self, pp_rank: int) -> tuple[int, ...]:
        """Dealt in rounds, or down and up again so that rank 0 has both ends."""
        if self.pp == 1 or self.schedule in SINGLE_STAGE_SCHEDULES:
            return (pp_rank,)
        if self.schedule in V_SCHEDULES:
            return pp_rank, 2 * self.pp - 1 - pp_rank
        return tuple(range(pp_rank, NUM_CHUNKS * self.pp, self.pp))

    def layers_of(self, stage_index: int, num_layers: int) -> range:
        """The layers that a pipeline stage holds, of a model that `check_preset` has let through."""
        if self.stage_layers is None:
            share = num_layers // self.num_stages
            return range(stage_index * share, (stage_index + 1) * share)
        first = sum(self.stage_layers[:stage_index])
        return range(first, first + self.stage_layers[stage_index])

    def check_world(self, world_size: int) -> None:
        """Raises UsageError when the job has another number of processes than the plan."""
        if world_size != self.world_size:
            raise UsageError(
                f"tp {self.tp} x pp {self.pp} x dp {self.dp} is {counted(self.world_size, 'process')}, but the job has"
                f" {world_size}",
                what_next="change the sizes or the number of processes",
            )

    def check_preset(self, preset: Preset) -> None:
        """Raises UsageError when the model or the batch cannot be cut this way."""
        if preset.image is not None:
            _refuse_for_images(self)
        parts = [
            ("key/value heads", preset.num_groups, self.tp, "tensor parallel ranks"),
            ("query heads", preset.num_heads, preset.num_groups, "key/value heads"),
            ("sequences in a batch", preset.batch_size, self.dp * self.num_micro_batches, "dp x micro-batches"),
        ]
        if self.sequence_parallel:
            parts.append(("places in a sequence", preset.sequence_length, self.tp, "tensor parallel ranks"))
        if self.sequence_parallel or self.loss_parallel:
            parts.append(("words of the vocabulary", preset.vocab_size, self.tp, "tensor parallel ranks"))
        if self.stage_layers is None:
            parts.insert(0, ("layers", preset.num_layers, self.num_stages, "pipeline stages"))
        elif sum(self.stage_layers) != preset.num_layers:
            raise UsageError(
                f"the stages take {counted(sum(self.stage_layers), 'layer')} "
                f"together, the model has {preset.num_layers}",
                where=f"preset {preset.name}",
                what_next="give each layer to one stage",
            )
        if self.is_multi_stage and preset.num_layers < NUM_CHUNKS * self.pp:
            raise UsageError(
                f"the {self.schedule} schedule holds {NUM_CHUNKS} stages a rank and needs {NUM_CHUNKS * self.pp} layers"
                f" for pp {self.pp}, but preset {preset.name} has {preset.num_layers}",
                what_next="use 1f1b or gpipe, a smaller pp, or more layers",
            )
        for what, amount, divisor, of_what in parts:
            if amount % divisor:
                raise UsageError(
                    f"{amount} {what} cannot be divided over {divisor} {of_what}",
                    where=f"preset {preset.name}",
                    what_next="choose sizes that divide it",
                )


SINGLE_STAGE_SCHEDULES = ("gpipe", "1f1b")
LOOPED_SCHEDULES = ("looped-bfs", "interleaved", "zero-bubble")
V_SCHEDULES = ("zbv", "dualpipe-v")
MULTI_STAGE_SCHEDULES = LOOPED_SCHEDULES + V_SCHEDULES
SCHEDULES = SINGLE_STAGE_SCHEDULES + MULTI_STAGE_SCHEDULES
SPLIT_BACKWARD_SCHEDULES = ("zero-bubble", *V_SCHEDULES)
"""Those that compute the gradients of activations and of weights apart."""
NUM_CHUNKS = 2
"""Stages a rank holds under a multi-stage schedule."""


_DDP_MULTI_STAGE = (
    "its reducer fails an internal assertion (params_.size() == rebuilt_param_indices_.size()) once torch has tried the"
    " stages' shapes out"
)
_DDP_SPLIT_BACKWARD = (
    "its reducer takes the gradients of activations, which that schedule computes first, for the whole backward pass,"
    " and gives wrong gradients without an error"
)


def refuse_unsound(layout: ParallelPlan) -> None:
    """Reference workload: refuse plans of layouts that torch does not train, or trains wrongly.

    The UsageError says why.
    """
    for name in ("sequence_parallel", "loss_parallel"):
        if getattr(layout, name) and layout.tp == 1:
            raise UsageError(
                f"{name.replace('_', ' ')} cuts over tensor-parallel ranks, and tp is 1", what_next="use --tp 2 or more"
            )
    _refuse_schedule(layout)
    _refuse_data_parallel(layout)


def _refuse_for_images(layout: ParallelPlan) -> None:
    """Raises UsageError when a ResNet is to be laid out otherwise than by DistributedDataParallel."""
    for is_asked, what, why in (
        (
            layout.tp > 1,
            "tensor parallelism",
            "it cuts a transformer's matrices; convolutions have no such plan in torch",
        ),
        (layout.pp > 1, "a pipeline", "what flows between its stages has the shape of hidden text"),
        (
            layout.zero in {2, 3},
            f"zero {layout.zero}",
            "it means fully_shard, and 26 million parameters fit everywhere",
        ),
        (layout.replicate, "replicate", "it is made of fully_shard"),
    ):
        if is_asked:
            raise UsageError(
                f"resnet50 knows no {what.removeprefix('a ')}: {why}", what_next="use --dp N with --zero 0 or 1 alone"
            )


def _refuse_schedule(layout: ParallelPlan) -> None:
    pp, schedule, micro_batches = layout.pp, layout.schedule, layout.num_micro_batches
    if schedule in MULTI_STAGE_SCHEDULES and pp == 1:
        raise UsageError(
            f"the {schedule} schedule spreads stages over ranks, and pp is 1", what_next="use --pp 2 or more"
        )
    if pp > 1 and schedule == "1f1b" and micro_batches < pp:
        raise UsageError(
            f"1f1b needs at least as many micro-batches as stages ({pp}), not {micro_batches}",
            what_next=f"use --micro-batches {pp}",
        )
    if schedule == "dualpipe-v" and micro_batches < NUM_CHUNKS * pp:
        raise UsageError(
            f"dualpipe-v needs at least as many micro-batches as stages ({NUM_CHUNKS * pp}), not {micro_batches}",
            what_next=f"use --micro-batches {NUM_CHUNKS * pp}",
        )
    num_rounds = max(1, micro_batches // pp)
    if schedule in {"interleaved", "zero-bubble"} and micro_batches % num_rounds:
        raise UsageError(
            f"{counted(micro_batches, 'micro-batch')} cannot be dealt in "
            f"{counted(num_rounds, 'round')} over pp {pp}, which the"
            f" {schedule} schedule does",
            what_next=f"use a multiple of {pp}",
        )


def _refuse_data_parallel(layout: ParallelPlan) -> None:
    zero = layout.zero
    if zero and layout.dp == 1:
        raise UsageError(
            f"zero {zero} shards over data-parallel ranks, and dp is 1", what_next="use --zero 0 or --dp 2"
        )
    if layout.replicate and (layout.dp == 1 or zero != 0):
        raise UsageError(
            "replicate keeps all on every data-parallel rank, which is zero 0 with dp above 1",
            what_next="use --zero 0 and --dp 2 or more",
        )
    if layout.cpu_offload and zero not in {2, 3}:
        raise UsageError(
            f"only fully_shard keeps parameters in host memory, and zero {zero} is not made of it",
            what_next="use --zero 2 or 3 and --dp 2 or more",
        )
    if layout.dp == 1 or not layout.is_multi_stage:
        return
    splits_backward = layout.schedule in SPLIT_BACKWARD_SCHEDULES
    if zero in {0, 1} and not layout.replicate:
        raise UsageError(
            f"zero {zero} means DistributedDataParallel, and the {layout.schedule} schedule holds several stages on a"
            f" rank: {_DDP_SPLIT_BACKWARD if splits_backward else _DDP_MULTI_STAGE}",
            what_next="use --zero 2, --zero 0 --replicate, or the 1f1b or gpipe schedule",
        )
    if zero == 3 and splits_backward:
        raise UsageError(
            f"zero 3 frees parameters after the forward pass, and with the {layout.schedule} schedule, which computes"
            " gradients of activations and weights apart, torch then gives wrong gradients without an error",
            what_next="use --zero 2",
        )


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
    """Image options of a workload's model: pixels of a side, and the number of bottlenecks of each width."""

    size: int
    blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Preset:
    """Model and batch of a workload. `batch_size` is over all data-parallel ranks; `dtype` that of the matmuls.

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
    """All presets of a workload, by name."""
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
