"""How is a training run laid out over processes? What torch does not do, or does wrongly, is in `refusals`."""

from __future__ import annotations

from dataclasses import dataclass

from stepscope.core.counting import counted
from stepscope.core.errors import UsageError
from stepscope.reference_workloads.presets import Preset
from stepscope.reference_workloads.refusals import refuse_for_images, refuse_unsound
from stepscope.reference_workloads.schedules import (
    MULTI_STAGE_SCHEDULES,
    NUM_CHUNKS,
    SCHEDULES,
    rank_of_last_stage,
    stages_of_rank,
)


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
        cpu_offload: parameters and optimizer live in host memory (zero 2 or 3).

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
        self._check_values()
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
        """Pipeline stages over all ranks."""
        return self.pp * (NUM_CHUNKS if self.is_multi_stage else 1)

    @property
    def is_multi_stage(self) -> bool:
        """Whether a rank holds several stages."""
        return self.pp > 1 and self.schedule in MULTI_STAGE_SCHEDULES

    @property
    def rank_with_loss(self) -> int:
        """The pipeline rank that holds the last stage."""
        return rank_of_last_stage(self.schedule, self.pp) if self.pp > 1 else 0

    def stages_of(self, pp_rank: int) -> tuple[int, ...]:
        """The stages that a pipeline rank holds, in order."""
        return stages_of_rank(self.schedule, pp_rank, self.pp) if self.pp > 1 else (0,)

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
            refuse_for_images(self)
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

    def _check_values(self) -> None:
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
            raise UsageError(
                f"there is no schedule {self.schedule!r}", what_next=f"choose one of {', '.join(SCHEDULES)}"
            )
        if self.zero not in {0, 1, 2, 3}:
            raise UsageError(f"zero is a level of 0 to 3, not {self.zero}")
