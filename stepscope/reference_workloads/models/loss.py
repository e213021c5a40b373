"""Loss: next-token cross-entropy, also of logits whose vocabulary is sharded over ranks."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import loss_parallel
from torch.nn import functional

from stepscope.reference_workloads.plan import ParallelPlan

LossFunction = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Logits (batch, sequence, vocabulary or this rank's part of it) and targets (batch, sequence) to their mean loss."""


def next_token_loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy of (batch, sequence, vocabulary) logits against (batch, sequence) token ids.

    Or of an image's (batch, classes) against (batch).
    """
    return functional.cross_entropy(logits.flatten(0, -2).float(), targets.flatten())


def make_loss(plan: ParallelPlan, mesh: DeviceMesh) -> LossFunction:
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


def loss_context(plan: ParallelPlan) -> AbstractContextManager[None]:
    """Where softmax and its gradient know of a cut vocabulary."""
    context: AbstractContextManager[None] = loss_parallel() if plan.loss_parallel else nullcontext()
    return context
