"""How is a training run laid out over processes, and which layouts does torch not do, or do wrongly?"""

from __future__ import annotations

from dataclasses import dataclass

from stepscope.core.errors import UsageError
from stepscope.reference_workloads.presets import Preset

SINGLE_STAGE_SCHEDULES = ("gpipe", "1f1b")
MULTI_STAGE_SCHEDULES = ("interleaved", "zero-bubble")
SCHEDULES = SINGLE_STAGE_SCHEDULES + MULTI_STAGE_SCHEDULES
NUM_CHUNKS = 2
"""Stages a rank holds under a multi-stage schedule."""


@dataclass(frozen=True, slots=True)
class ParallelPlan:
    """Sizes of the mesh and how each dimension works. Checks itself; a plan that exists can run.

    Attributes:
        tp, pp, dp: tensor, pipeline and data parallel sizes; the world is their product.
        zero: what data parallelism shards: 0 nothing (DDP), 1 optimizer state (ZeroRedundancyOptimizer), 2 that and
            gradients (fully_shard that keeps parameters after the forward pass), 3 parameters too.
            None: 2 with data parallelism, else 0.
        schedule: one of SCHEDULES; only matters with pp > 1.
        micro_batches: parts each rank's batch is cut into. None: pp.
        stage_layers: layers of each pipeline stage in order, for uneven cuts. None: the same number each.

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

    def __post_init__(self) -> None:
        if self.zero is None:
            object.__setattr__(self, "zero", 2 if self.dp > 1 else 0)
        if self.micro_batches is None:
            object.__setattr__(self, "micro_batches", max(self.pp, 1))
        self._check_values()
        self._check_schedule()
        self._check_data_parallel()

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
                f"tp {self.tp} x pp {self.pp} x dp {self.dp} is {self.world_size} processes, but the job has"
                f" {world_size}",
                what_next="change the sizes or the number of processes",
            )

    def check_preset(self, preset: Preset) -> None:
        """Raises UsageError when the model or the batch cannot be cut this way."""
        parts = [
            ("heads", preset.num_heads, self.tp, "tensor parallel ranks"),
            ("sequences in a batch", preset.batch_size, self.dp * self.num_micro_batches, "dp x micro-batches"),
        ]
        if self.stage_layers is None:
            parts.insert(0, ("layers", preset.num_layers, self.num_stages, "pipeline stages"))
        elif sum(self.stage_layers) != preset.num_layers:
            raise UsageError(
                f"the stages take {sum(self.stage_layers)} layers together, the model has {preset.num_layers}",
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
                f"{self.num_stages} pipeline stages cannot hold {', '.join(map(str, self.stage_layers))} layers",
                what_next=f"give {self.num_stages} numbers of layers, each at least 1",
            )
        if self.schedule not in SCHEDULES:
            raise UsageError(
                f"there is no schedule {self.schedule!r}", what_next=f"choose one of {', '.join(SCHEDULES)}"
            )
        if self.zero not in {0, 1, 2, 3}:
            raise UsageError(f"zero is a level of 0 to 3, not {self.zero}")
        if self.zero and self.dp == 1:
            raise UsageError(
                f"zero {self.zero} shards over data-parallel ranks, and dp is 1", what_next="use --zero 0 or --dp 2"
            )

    def _check_schedule(self) -> None:
        micro_batches = self.num_micro_batches
        if self.schedule in MULTI_STAGE_SCHEDULES and self.pp == 1:
            raise UsageError(
                f"the {self.schedule} schedule spreads stages over ranks, and pp is 1", what_next="use --pp 2 or more"
            )
        if self.pp > 1 and self.schedule == "1f1b" and micro_batches < self.pp:
            raise UsageError(
                f"1f1b needs at least as many micro-batches as stages ({self.pp}), not {micro_batches}",
                what_next=f"use --micro-batches {self.pp}",
            )
        num_rounds = max(1, micro_batches // self.pp)
        if self.is_multi_stage and micro_batches % num_rounds:
            raise UsageError(
                f"{micro_batches} micro-batches cannot be dealt in {num_rounds} rounds over pp {self.pp}, which the"
                f" {self.schedule} schedule does",
                what_next=f"use a multiple of {self.pp}",
            )

    def _check_data_parallel(self) -> None:
        if self.dp == 1:
            return
        if self.zero in {0, 1} and self.is_multi_stage:
            raise UsageError(
                f"zero {self.zero} means DistributedDataParallel, whose reducer fails an internal assertion"
                " (params_.size() == rebuilt_param_indices_.size()) when a rank holds several stages, as under the"
                f" {self.schedule} schedule",
                what_next="use --zero 2, or the 1f1b or gpipe schedule",
            )
        if self.zero == 3 and self.schedule == "zero-bubble":
            raise UsageError(
                "zero 3 frees parameters after the forward pass, and with the zero-bubble schedule torch then computes"
                " wrong gradients without an error",
                what_next="use --zero 2",
            )
