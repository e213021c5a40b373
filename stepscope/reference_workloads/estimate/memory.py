"""Peak GPU memory of each rank, by category, and the activations that autograd keeps.

A step is walked through in the schedule's own order, without torch: each pass adds and frees what it adds and frees in
a real step, and the highest sum counts. It is what torch.cuda.max_memory_allocated tells, not the driver's figure.
Memory outside torch's allocator is a category of its own (`outside_allocator_bytes`).

Activations are in bytes per token, for each part between its forward and its backward pass.
Derived from the operators, not fitted. h is the hidden size, e the bytes of an element in matrix products (2 under
bfloat16 autocast, which leaves the residual stream and the norms in float32; else 4), t the tensor-parallel size.

| a block keeps | bytes a token | why |
| --- | --- | --- |
| its input | 4h | LayerNorm 1 keeps what it normalised; it is the residual stream itself |
| mean and 1/deviation, twice | 16 | LayerNorm |
| input of the q, k, v matrix | eh | for that matrix's gradient |
| q, k and v | 3eh / t | attention computes its scores again from them |
| output of attention | eh / t | for attention's gradient and that of the matrix after it: one tensor |
| log of the softmax's sums | 4 x heads / t | flash attention keeps them instead of the scores |
| input of LayerNorm 2 | 4h | |
| input of the up matrix | eh | |
| input of GELU | 4eh / t | |
| output of GELU | 4eh / t | input of the down matrix |

That is 36h + 16 + 4 x heads under autocast on one GPU (Korthikanti et al. 2022, arXiv:2205.05198, count 34h for a
residual stream in 16 bits with dropout). torch.compile keeps the attention's projection (eh) in place of the sum that
enters LayerNorm 2 and adds again: measured 34h + 16 + 4 x heads at three widths.

Beside them each micro-batch in flight keeps its own bfloat16 copy of each matrix: autocast forgets its cache where the
context ends. fully_shard's parameters are bfloat16 already.

The Llama-like model keeps more, as `_turned` and `_feed_forward` tell. Its RMSNorm is taken as CUDA's fused one, which
keeps its input and one statistic; on a CPU torch composes it and keeps the normalised input too.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum

from stepscope.analyzer.pipeline.schedules import Pass, Task
from stepscope.reference_workloads.estimate import flops as model_flops
from stepscope.reference_workloads.estimate.communication import bucket_bytes, stage_bytes
from stepscope.reference_workloads.estimate.pipeline import schedule_order
from stepscope.reference_workloads.plan import ParallelPlan, Preset
from stepscope.reference_workloads.recipe import Recipe

CUBLAS_WORKSPACE_BYTES = 32 * 2**20
"""torch's choice on Hopper; one for the thread of the forward pass and one for autograd's."""
ADAM_STATES = 2
CONTEXT_BYTES = 600 * 2**20
"""CUDA context, kernels and library handles: 0.5 to 0.7 GiB on Hopper. Assumed, not measured here."""
COMMUNICATOR_BYTES = 400 * 2**20
"""Buffers of one NCCL communicator: up to 32 channels with about 10 MiB each (NCCL_BUFFSIZE and its kin). Assumed."""


class EstimatedMemoryCategory(StrEnum):
    """What a rank's estimated memory is for."""

    PARAMETERS = "parameters"
    GRADIENTS = "gradients"
    OPTIMIZER = "optimizer"
    ACTIVATIONS = "activations"
    WEIGHT_COPIES = "weight_copies"
    """low-precision copies of parameters, by autocast or gathered by fully_shard"""
    TEMPORARY = "temporary"
    """logits, gradients on their way, recomputed activations, workspaces"""
    COMMUNICATION = "communication"
    """DDP's buckets, the pipeline's receive buffers, what a reduce-scatter reads"""


@dataclass(frozen=True, slots=True)
class RankMemory:
    """Estimated memory of one pipeline rank (its tensor- and data-parallel peers need the same).

    Attributes:
        at_peak: bytes by category at the fullest moment; adds up to `peak_bytes`.
        moment: the pass in which that is.
        micro_batches_in_flight: at most, over all its stages.
    """

    pp_rank: int
    at_peak: dict[EstimatedMemoryCategory, int]
    moment: str
    micro_batches_in_flight: int

    @property
    def peak_bytes(self) -> int:
        """Most bytes that tensors take."""
        return sum(self.at_peak.values())


def memory_by_rank(plan: ParallelPlan, preset: Preset, recipe: Recipe) -> tuple[RankMemory, ...]:
    """Estimate the GPU memory of each pipeline rank."""
    orders = schedule_order(plan)
    return tuple(_Walk(plan, preset, recipe, rank).run(orders[rank]) for rank in range(plan.pp))


def outside_allocator_bytes(plan: ParallelPlan) -> int:
    """Estimate a rank's memory outside torch's allocator: the CUDA context and NCCL's buffers."""
    num_communicators = sum(size > 1 for size in (plan.tp, plan.pp, plan.dp)) + (plan.world_size > 1)
    return CONTEXT_BYTES + num_communicators * COMMUNICATOR_BYTES


class _Walk:
    """One step of one rank."""

    def __init__(self, plan: ParallelPlan, preset: Preset, recipe: Recipe, pp_rank: int) -> None:
        self._plan, self._preset, self._recipe, self._pp_rank = plan, preset, recipe, pp_rank
        self._parts = {stage: model_flops.stage_parts(plan, preset, stage) for stage in plan.stages_of(pp_rank)}
        self._tokens = preset.batch_size // plan.dp // plan.num_micro_batches * preset.sequence_length
        self._is_fully_sharded = model_flops.is_fully_sharded(plan)
        self._shards = plan.dp if plan.zero in {2, 3} else 1
        self._held: Counter[EstimatedMemoryCategory] = Counter()
        self._peak: Counter[EstimatedMemoryCategory] = Counter()
        self._moment = ""
        self._now = ""
        self._with_gradient: set[tuple[int, int]] = set()
        self._backwards_left: Counter[int] = Counter()
        self._gathered: set[tuple[int, int]] = set()
        self._in_flight = self._most_in_flight = 0

    def run(self, order: list[Task]) -> RankMemory:
        self._hold_states()
        self._backwards_left = Counter(task.stage for task in order if task.kind.sends_gradient)
        for task in order:
            self._now = f"{'forward' if task.kind is Pass.FORWARD else 'backward'} of stage {task.stage}"
            if task.kind is Pass.FORWARD:
                self._forward(task.stage)
            elif task.kind is not Pass.BACKWARD_INPUT:  # of a split backward the weights' half lets activations go
                self._backward(task.stage)
        if self._is_reduced_whole() and not self._recipe.overlaps_reduction:
            self._now = "reduction"
            self._spike(self._reduction_temporary(), EstimatedMemoryCategory.COMMUNICATION)
        self._now = "optimizer"
        # Fused AdamW needs none; ZeroRedundancyOptimizer's makes the deviations of its part beside the states.
        self._spike(model_flops.FLOAT32_BYTES * self._num_parameters() / self._plan.dp if self._plan.zero == 1 else 0.0)
        at_peak = {category: self._peak[category] for category in EstimatedMemoryCategory}
        return RankMemory(self._pp_rank, at_peak, self._moment, self._most_in_flight)

    def _hold_states(self) -> None:
        plan, num_parameters = self._plan, self._num_parameters()
        optimizer_shards = plan.dp if plan.zero else 1
        self._add(EstimatedMemoryCategory.PARAMETERS, model_flops.FLOAT32_BYTES * num_parameters / self._shards)
        self._add(
            EstimatedMemoryCategory.OPTIMIZER,
            ADAM_STATES * model_flops.FLOAT32_BYTES * num_parameters / optimizer_shards,
        )
        self._add(EstimatedMemoryCategory.TEMPORARY, 2 * CUBLAS_WORKSPACE_BYTES)
        if self._is_reduced_whole() and self._recipe.overlaps_reduction:
            self._add(
                EstimatedMemoryCategory.COMMUNICATION, model_flops.FLOAT32_BYTES * num_parameters
            )  # DDP's buckets, beside the gradients
        for stage in self._parts:
            # torch keeps a receive buffer for each micro-batch and way
            ways = (stage > 0) + (stage < plan.num_stages - 1)
            self._add(
                EstimatedMemoryCategory.COMMUNICATION,
                ways * plan.num_micro_batches * stage_bytes(self._plan, self._preset),
            )

    def _forward(self, stage: int) -> None:
        self._in_flight += 1
        self._most_in_flight = max(self._most_in_flight, self._in_flight)
        for place, part in enumerate(self._parts[stage]):
            self._gather(stage, place, part)
            self._add(EstimatedMemoryCategory.WEIGHT_COPIES, self._autocast_copies(part))
            self._add(EstimatedMemoryCategory.ACTIVATIONS, self._kept(stage, place, part))
            if part.kind is model_flops.PartKind.HEAD:
                # Beside the log-softmax: the logits and their float32 copy (in float32 the same tensor).
                logits = model_flops.element_bytes(self._preset) * self._preset.vocab_size
                copy = 0 if self._preset.dtype == "float32" else model_flops.FLOAT32_BYTES * self._preset.vocab_size
                self._spike(self._tokens * (logits + copy))
                if self._plan.pp > 1:  # the schedule keeps each stage's output until its backward pass
                    self._add(EstimatedMemoryCategory.TEMPORARY, self._logits_bytes())
            self._free_gathered(stage, place, part, keeps=self._plan.zero != 3)
        if stage < self._plan.num_stages - 1:
            self._add(EstimatedMemoryCategory.ACTIVATIONS, stage_bytes(self._plan, self._preset))

    def _backward(self, stage: int) -> None:
        self._in_flight -= 1
        self._backwards_left[stage] -= 1
        is_last = not self._backwards_left[stage]
        if stage < self._plan.num_stages - 1:
            self._add(EstimatedMemoryCategory.ACTIVATIONS, -stage_bytes(self._plan, self._preset))
        for place, part in reversed(list(enumerate(self._parts[stage]))):
            self._gather(stage, place, part)
            if part.kind is model_flops.PartKind.HEAD:
                # Beside the log-softmax: the gradients of the log-softmax and of the logits, both float32.
                self._spike(self._tokens * (2 * model_flops.FLOAT32_BYTES * self._preset.vocab_size))
                if self._plan.pp > 1:
                    self._add(EstimatedMemoryCategory.TEMPORARY, -self._logits_bytes())
            elif part.kind is model_flops.PartKind.BLOCK:
                self._spike(self._block_backward_temporary(part))
            self._add(EstimatedMemoryCategory.ACTIVATIONS, -self._kept(stage, place, part))
            self._add(EstimatedMemoryCategory.WEIGHT_COPIES, -self._autocast_copies(part))
            self._add_gradient(stage, place, part, is_last=is_last)
            keeps = not is_last and self._plan.pp > 1 and self._plan.zero != 3
            self._free_gathered(stage, place, part, keeps=keeps)

    def _add_gradient(self, stage: int, place: int, part: model_flops.Part, *, is_last: bool) -> None:
        """Gradients come with a stage's first backward pass; fully_shard keeps them whole until its last one."""
        whole = model_flops.FLOAT32_BYTES * part.num_parameters
        is_first = (stage, place) not in self._with_gradient
        self._with_gradient.add((stage, place))
        if not self._is_fully_sharded:
            if is_first:
                self._add(EstimatedMemoryCategory.GRADIENTS, whole)
            return
        if is_last:
            # Low-precision gradients, what the reduce-scatter reads, and what the one before it still holds.
            low = model_flops.element_bytes(self._preset) * part.num_parameters if is_first else 0
            self._spike(low + 2 * whole, EstimatedMemoryCategory.COMMUNICATION)
            self._add(EstimatedMemoryCategory.GRADIENTS, whole / self._shards - (0 if is_first else whole))
        elif is_first:
            self._add(EstimatedMemoryCategory.GRADIENTS, whole)

    def _gather(self, stage: int, place: int, part: model_flops.Part) -> None:
        """fully_shard makes a part's parameters whole; for a moment they are there twice, as received and as used."""
        if not self._is_fully_sharded:
            return
        size = model_flops.element_bytes(self._preset) * part.num_parameters
        if (stage, place) not in self._gathered:
            self._gathered.add((stage, place))
            self._spike(2 * size, EstimatedMemoryCategory.COMMUNICATION)
            self._add(EstimatedMemoryCategory.WEIGHT_COPIES, size)

    def _free_gathered(self, stage: int, place: int, part: model_flops.Part, *, keeps: bool) -> None:
        if (stage, place) in self._gathered and not keeps:
            self._gathered.remove((stage, place))
            self._add(
                EstimatedMemoryCategory.WEIGHT_COPIES, -model_flops.element_bytes(self._preset) * part.num_parameters
            )

    def _autocast_copies(self, part: model_flops.Part) -> float:
        if self._is_fully_sharded or self._preset.dtype == "float32":
            return 0.0
        is_recomputed = part.kind is model_flops.PartKind.BLOCK and self._recipe.activation_checkpointing == "full"
        return 0.0 if is_recomputed else model_flops.element_bytes(self._preset) * part.matrices

    def _kept(self, stage: int, place: int, part: model_flops.Part) -> float:
        kept = self._tokens * kept_bytes_per_token(part.kind, self._plan, self._preset, self._recipe)
        if stage > 0 and place == 0:  # its input is in the receive buffer
            kept -= stage_bytes(self._plan, self._preset) if not self._is_fully_sharded else 0.0
        return kept

    def _block_backward_temporary(self, part: model_flops.Part) -> float:
        """What is recomputed; the residual stream's gradient and its copy; GELU's; the widest matrix's gradient."""
        preset, element = self._preset, model_flops.element_bytes(self._preset)
        wide = element * preset.feed_forward_size / self._plan.tp
        per_token = _recomputed_bytes_per_token(part.kind, self._plan, preset, self._recipe)
        per_token += (model_flops.FLOAT32_BYTES + element) * preset.hidden_size + wide
        matrix = preset.feed_forward_size * preset.hidden_size / self._plan.tp
        copies = element * part.matrices if self._recipe.activation_checkpointing == "full" else 0.0
        return self._tokens * per_token + (element + model_flops.FLOAT32_BYTES) * matrix + copies

    def _is_reduced_whole(self) -> bool:
        """Whether gradients are whole on every data-parallel rank."""
        return self._plan.dp > 1 and not self._is_fully_sharded

    def _reduction_temporary(self) -> float:
        """After the backward pass, without DDP: the bucket that is made while the one before it is still there."""
        preset, whole = self._preset, model_flops.FLOAT32_BYTES * self._num_parameters()
        table = preset.vocab_size * preset.hidden_size
        largest = max(table, preset.feed_forward_size * preset.hidden_size // self._plan.tp)
        bucket = max(bucket_bytes(self._recipe), model_flops.FLOAT32_BYTES * largest)  # at least one gradient
        return min(2 * bucket, whole)

    def _logits_bytes(self) -> float:
        return model_flops.element_bytes(self._preset) * self._tokens * self._preset.vocab_size

    def _num_parameters(self) -> int:
        return sum(part.num_parameters for parts in self._parts.values() for part in parts)

    def _add(self, category: EstimatedMemoryCategory, num_bytes: float) -> None:
        self._held[category] += round(num_bytes)
        self._spike(0.0)

    def _spike(self, num_bytes: float, category: EstimatedMemoryCategory = EstimatedMemoryCategory.TEMPORARY) -> None:
        """Something more is held for a moment."""
        if self._held.total() + num_bytes > self._peak.total():
            self._peak = self._held.copy()
            self._peak[category] += round(num_bytes)
            self._moment = self._now


TOKEN_BYTES = 8
NORM_STATISTICS_BYTES = 8


@dataclass(frozen=True, slots=True)
class _SavedTensor:
    """One tensor that a part keeps.

    Attributes:
        bytes_per_token: on one rank.
        made_by_product: whether a matrix product or attention made it, which selective checkpointing keeps.
    """

    what: str
    bytes_per_token: float
    made_by_product: bool = False


def _saved_tensors(
    kind: model_flops.PartKind, plan: ParallelPlan, preset: Preset, recipe: Recipe
) -> tuple[_SavedTensor, ...]:
    """What one part keeps of each token while nothing is recomputed."""
    hidden, element = preset.hidden_size, model_flops.element_bytes(preset)
    statistics = NORM_STATISTICS_BYTES / (2 if preset.is_llama else 1)
    if kind is model_flops.PartKind.EMBEDDING:
        return (_SavedTensor("token ids", TOKEN_BYTES),)
    if kind is model_flops.PartKind.HEAD:
        return (
            _SavedTensor("input of the last norm", model_flops.FLOAT32_BYTES * hidden),
            _SavedTensor("its statistics", statistics),
            _SavedTensor("input of the head", element * hidden),
            _SavedTensor("log-softmax of the logits", model_flops.FLOAT32_BYTES * preset.vocab_size),
        )
    wide = element * hidden / plan.tp
    middle = (
        _SavedTensor("projection of attention", element * hidden, made_by_product=True)
        if recipe.compiles and preset.dtype != "float32"
        else _SavedTensor("input of norm 2", model_flops.FLOAT32_BYTES * hidden)
    )
    return (
        _SavedTensor("input of the block", model_flops.FLOAT32_BYTES * hidden),
        _SavedTensor("statistics of norm 1", statistics),
        _SavedTensor("input of the q, k, v matrix", element * hidden),
        _SavedTensor("q, k, v", element * model_flops.packed_size(preset) / plan.tp, made_by_product=True),
        *_turned(plan, preset),
        _SavedTensor("output of attention", wide, made_by_product=True),
        _SavedTensor(
            "log of the softmax's sums", model_flops.FLOAT32_BYTES * preset.num_heads / plan.tp, made_by_product=True
        ),
        middle,
        _SavedTensor("statistics of norm 2", statistics),
        _SavedTensor("input of the up matrix", element * hidden),
        *_feed_forward(plan, preset),
    )


def _turned(plan: ParallelPlan, preset: Preset) -> tuple[_SavedTensor, ...]:
    """Llama's queries and keys, turned by their place, are new tensors beside the values' packed one.

    They lie head by head, and so does attention's output: the matrix after it gets a copy.
    """
    if not preset.is_llama:
        return ()
    element = model_flops.element_bytes(preset)
    return (
        _SavedTensor(
            "turned queries and keys", element * (preset.hidden_size + model_flops.key_size(preset)) / plan.tp
        ),
        _SavedTensor("output of attention, token by token", element * preset.hidden_size / plan.tp),
    )


def _feed_forward(plan: ParallelPlan, preset: Preset) -> tuple[_SavedTensor, ...]:
    size = model_flops.element_bytes(preset) * preset.feed_forward_size / plan.tp
    if preset.is_llama:
        # Autocast casts the norm's output once for each of the two matrices.
        casts = model_flops.element_bytes(preset) * preset.hidden_size if preset.dtype != "float32" else 0.0
        return (
            _SavedTensor("input of the gate matrix", casts),
            _SavedTensor("input of SiLU", size, made_by_product=True),
            _SavedTensor("output of SiLU", size),
            _SavedTensor("output of the up matrix", size, made_by_product=True),
            _SavedTensor("input of the down matrix", size),
        )
    return (_SavedTensor("input of GELU", size, made_by_product=True), _SavedTensor("output of GELU", size))


def kept_bytes_per_token(kind: model_flops.PartKind, plan: ParallelPlan, preset: Preset, recipe: Recipe) -> float:
    """Estimate the activation bytes a token keeps from a part's forward to its backward pass."""
    saved = _saved_tensors(kind, plan, preset, recipe)
    if kind is not model_flops.PartKind.BLOCK or recipe.activation_checkpointing == "none":
        return sum(tensor.bytes_per_token for tensor in saved)
    kept = saved[0].bytes_per_token
    if recipe.activation_checkpointing == "selective":
        kept += sum(tensor.bytes_per_token for tensor in saved if tensor.made_by_product)
        kept += (
            2 * model_flops.element_bytes(preset) * preset.hidden_size
        )  # both matrices that lead back to the residual stream
    return kept


def _recomputed_bytes_per_token(
    kind: model_flops.PartKind, plan: ParallelPlan, preset: Preset, recipe: Recipe
) -> float:
    """What a part's backward pass first makes again."""
    everything = sum(tensor.bytes_per_token for tensor in _saved_tensors(kind, plan, preset, recipe))
    return max(everything - kept_bytes_per_token(kind, plan, preset, recipe), 0.0)
