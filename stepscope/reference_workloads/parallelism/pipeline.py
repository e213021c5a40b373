"""Forward and backward pass of one optimizer step, with a pipeline schedule or without one, and its loss."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch
from torch import nn
from torch.distributed import pipelining
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import loss_parallel
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import record_function

from stepscope.reference_workloads.models.mixed_precision import LossScale, compute_dtype
from stepscope.reference_workloads.models.resnet import seeded_resnet
from stepscope.reference_workloads.models.transformer import seeded_stage
from stepscope.reference_workloads.parallelism.sharding import replicate_by_ddp, shard_stage
from stepscope.reference_workloads.plan import ParallelPlan, Preset
from stepscope.reference_workloads.recipe import Recipe

_SCHEDULE_CLASSES: dict[str, Any] = {
    "gpipe": pipelining.ScheduleGPipe,
    "1f1b": pipelining.Schedule1F1B,
    "looped-bfs": pipelining.ScheduleLoopedBFS,
    "interleaved": pipelining.ScheduleInterleaved1F1B,
    "zero-bubble": pipelining.ScheduleInterleavedZeroBubble,
    "zbv": pipelining.ScheduleZBVZeroBubble,
    "dualpipe-v": pipelining.ScheduleDualPipeV,
}


ModuleBuilder = Callable[[range], nn.Module]
"""Makes the part of the model with these layers: seeded, on the rank's device, sharded."""


class Executor(Protocol):
    """Runs forward and backward over one batch, as the parallel plan cuts the model."""

    modules: list[nn.Module]
    """what this rank trains"""

    def run(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor | None:
        """Leaves gradients in the modules; returns the mean loss of this rank's batch where it is known."""


class _AnnotatedStage(pipelining.PipelineStage):
    """Writes `PP:<stage>F<micro-batch>` and `PP:<stage>B<micro-batch>`, as torch does for multi-stage schedules.

    It also averages all gradients over micro-batches: in its first forward pass DDP takes tensor-parallel parameters
    out of the module, where torch's own `scale_grads` looks for them, so that theirs stay sums without an error.
    """

    def __init__(self, module: nn.Module, *args: Any, **kwargs: Any) -> None:
        super().__init__(module, *args, **kwargs)
        self._parameters = list(module.parameters())

    def scale_grads(self, grad_scale_factor: int) -> None:
        if grad_scale_factor != 1:
            for parameter in self._parameters:
                if parameter.grad is not None:
                    parameter.grad.div_(grad_scale_factor)

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        with record_function(f"PP:{self.stage_index}F{fwd_chunk_id}"):
            return super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)

    def backward_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        with record_function(f"PP:{self.stage_index}B{bwd_chunk_id}"):
            return super().backward_one_chunk(bwd_chunk_id, *args, **kwargs)


class _PipelineExecutor:
    """torch.distributed.pipelining over the pp dimension."""

    def __init__(
        self,
        plan: ParallelPlan,
        preset: Preset,
        mesh: DeviceMesh,
        build: ModuleBuilder,
        device: torch.device,
        loss_scale: LossScale,
    ) -> None:
        self._plan = plan
        self._loss_scale = loss_scale
        self.modules: list[nn.Module] = []
        stages: list[pipelining.PipelineStage] = []
        for index in plan.stages_of(mesh.get_local_rank("pp")):
            module = build(plan.layers_of(index, preset.num_layers))
            self.modules.append(module)
            stage_class = pipelining.PipelineStage if plan.is_multi_stage else _AnnotatedStage
            examples = _example_tensors(plan, preset, index)
            group = mesh.get_group("pp")
            stages.append(stage_class(module, index, plan.num_stages, device, *examples, group=group))
        self._is_first = stages[0].is_first
        self._is_last = stages[-1].is_last
        loss = _make_loss(plan, mesh)

        def scaled(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            return loss_scale.scaled(loss(outputs, targets))

        self._schedule = _SCHEDULE_CLASSES[plan.schedule](
            stages if plan.is_multi_stage else stages[0],
            n_microbatches=plan.num_micro_batches,
            loss_fn=scaled,
        )

    def run(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor | None:
        """The loss is known on the ranks of the last stage."""
        losses: list[torch.Tensor] = []
        with _loss_context(self._plan):
            self._schedule.step(
                *((inputs,) if self._is_first else ()),
                target=targets if self._is_last else None,
                losses=losses if self._is_last else None,
                return_outputs=False,
            )
        if not self._is_last:
            return None
        return self._loss_scale.unscaled(torch.stack([loss.detach() for loss in losses]).mean())


def _example_tensors(plan: ParallelPlan, preset: Preset, stage_index: int) -> tuple[torch.Tensor, torch.Tensor]:
    """What a stage takes and gives for one micro-batch, without storage.

    Torch could find out by itself, but does so with a backward pass that DDP mistakes for the first step.
    """
    batch, sequence = preset.batch_size // plan.dp // plan.num_micro_batches, preset.sequence_length
    own_places = sequence // plan.tp if plan.sequence_parallel else sequence
    own_words = preset.vocab_size // plan.tp if plan.loss_parallel else preset.vocab_size
    computed = compute_dtype(preset)
    # fully_shard and replicate cast what flows between blocks; autocast leaves the residual stream in float32.
    casts = plan.zero in {2, 3} or plan.replicate
    flowing = computed if casts else torch.float32
    hidden = torch.empty(batch, own_places, preset.hidden_size, dtype=flowing, device="meta", requires_grad=True)
    tokens = torch.empty(batch, sequence, dtype=torch.int64, device="meta")
    logits = torch.empty(batch, sequence, own_words, dtype=computed, device="meta", requires_grad=True)
    is_last = stage_index == plan.num_stages - 1
    return (hidden if stage_index else tokens), (logits if is_last else hidden)


class _WholeModelExecutor:
    """Micro-batches one after another on a rank that holds all layers; gradients are reduced with the last one."""

    def __init__(
        self, plan: ParallelPlan, preset: Preset, mesh: DeviceMesh, build: ModuleBuilder, loss_scale: LossScale
    ) -> None:
        self._plan = plan
        self._loss_scale = loss_scale
        self._loss = _make_loss(plan, mesh)
        self._model = build(range(preset.num_layers))
        self._num_micro_batches = plan.num_micro_batches
        self.modules: list[nn.Module] = [self._model]

    def run(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor | None:
        """The loss is known on every rank."""
        losses = []
        pairs = zip(inputs.chunk(self._num_micro_batches), targets.chunk(self._num_micro_batches), strict=True)
        for ordinal, (part, part_targets) in enumerate(pairs):
            is_last = ordinal == self._num_micro_batches - 1
            with self._gradients_reduced(is_last=is_last), _loss_context(self._plan):
                loss = self._loss(self._model(part), part_targets)
                torch.autograd.backward(self._loss_scale.scaled(loss / self._num_micro_batches))
            losses.append(loss.detach())
        return torch.stack(losses).mean()

    def _gradients_reduced(self, *, is_last: bool) -> AbstractContextManager[Any]:
        if isinstance(self._model, FSDPModule):
            self._model.set_requires_gradient_sync(is_last)
        elif isinstance(self._model, DistributedDataParallel) and not is_last:
            return self._model.no_sync()
        return nullcontext()


def make_executor(
    plan: ParallelPlan,
    preset: Preset,
    mesh: DeviceMesh,
    *,
    device: torch.device,
    recipe: Recipe,
    loss_scale: LossScale,
    seed: int,
    simulate_milliseconds: float,
) -> Executor:
    """The executor that the plan's pipeline size asks for."""

    def build(layers: range) -> nn.Module:
        if preset.image is not None:
            model = seeded_resnet(preset, seed=seed, device=device, simulate_milliseconds=simulate_milliseconds)
            return replicate_by_ddp(model, plan, recipe, mesh)
        stage = seeded_stage(preset, layers, seed=seed, device=device, simulate_milliseconds=simulate_milliseconds)
        return shard_stage(stage, plan, preset, recipe, mesh)

    if plan.pp > 1:
        return _PipelineExecutor(plan, preset, mesh, build, device, loss_scale)
    return _WholeModelExecutor(plan, preset, mesh, build, loss_scale)


LossFunction = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Logits (batch, sequence, vocabulary or this rank's part of it) and targets (batch, sequence) to their mean loss."""


def next_token_loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Cross-entropy of a pipeline's last stage: (batch, sequence, vocabulary) logits against token ids.

    Or of an image's (batch, classes) against (batch).
    """
    return functional.cross_entropy(logits.flatten(0, -2).float(), targets.flatten())


def _make_loss(plan: ParallelPlan, mesh: DeviceMesh) -> LossFunction:
    """The loss as the plan cuts the vocabulary; what it gives must be called, and go backwards, in `loss_context`."""
    if not plan.loss_parallel:
        return next_token_loss
    tensor_parallel = mesh["tp"]

    def loss_of_cut_vocabulary(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        whole = DTensor.from_local(logits, tensor_parallel, [Shard(-1)], run_check=False)
        loss = next_token_loss(whole, targets)
        assert isinstance(loss, DTensor)
        # Schedules that split the backward pass detach the loss in place, which a view refuses.
        return loss.full_tensor().clone()

    return loss_of_cut_vocabulary


def _loss_context(plan: ParallelPlan) -> AbstractContextManager[None]:
    """Where softmax and its gradient know of a cut vocabulary."""
    context: AbstractContextManager[None] = loss_parallel() if plan.loss_parallel else nullcontext()
    return context
