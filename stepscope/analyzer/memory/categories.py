"""Categories of memory blocks: parameters, gradients, optimizer state, activations and others.

The innermost informative frame of a block's stack decides, because a model wrapped for data-parallel training runs
within calls of torch.distributed, and recomputed activations within the backward pass. Autograd allocates on a thread
of its own without Python frames, so a block without a stack from within a step belongs to the backward pass. Blocks of
the backward pass or the optimizer that are freed before the optimizer's step ends are temporary; gradients remain.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence

from stepscope.analyzer.memory.history import HeldBlock
from stepscope.core.documents.hang import StackFrame
from stepscope.core.documents.memory import MemoryCategory

_SHARDED_TENSORS = ("/torch/distributed/tensor/", "/torch/distributed/_tensor/")
"""DTensor dispatches the operations of layers: the purpose follows from the frames around it."""
_COMMUNICATION = (
    "/torch/distributed/",
    "/torch/nn/parallel/distributed.py",
    "deepspeed/runtime/comm",
    "deepspeed/comm/",
    "megatron/core/distributed",
    "/nccl",
)
_OPTIMIZER = (
    "/torch/optim/",
    "/apex/optimizers/",
    "deepspeed/ops/adam",
    "bitsandbytes/optim",
    "megatron/core/optimizer/",
    "transformer_engine/pytorch/optimizers/",
    "torchao/optim/",
)
_TEMPORARY = ("/torch/nn/utils/", "/torch/amp/", "/torch/cuda/amp/")
_MODULES = "/torch/nn/"
_FUNCTIONS = "/torch/nn/functional.py"
"""Functions called without a module, as losses often are."""
_CALLS = frozenset(["forward", "_call_impl", "_wrapped_call_impl"])
_BEFORE_TRAINING = frozenset(["__init__", "reset_parameters", "_apply", "to", "cuda", "to_empty", "load_state_dict"])
_COPIES = frozenset(["_apply", "to", "cuda", "to_empty", "load_state_dict", "convert"])


def category_of(
    held: HeldBlock,
    stacks: Sequence[tuple[StackFrame, ...]],
    owners: Mapping[int, str],
    step_ends: Sequence[int] = (),
    noted_at: int = 0,
) -> MemoryCategory:
    """Category of a block.

    Args:
        owners: known owners of blocks, by address.
        step_ends: number of events at the end of each optimizer step, ascending.
        noted_at: number of events when the owners were recorded; blocks freed before that had other owners.
    """
    known = owners.get(held.address)
    if known is not None and (held.died is None or held.died >= noted_at):
        return MemoryCategory(known)
    frames = stacks[held.stack]
    if not frames and held.born is None:
        return MemoryCategory.OTHER
    category = _by_frames(frames) if frames else MemoryCategory.GRADIENTS
    is_short = held.born is not None and held.died is not None and _is_within_a_step(held.born, held.died, step_ends)
    may_be_temporary = category in (MemoryCategory.GRADIENTS, MemoryCategory.OPTIMIZER)
    return MemoryCategory.TEMPORARY if is_short and may_be_temporary else category


def _is_within_a_step(born: int, died: int, step_ends: Sequence[int]) -> bool:
    """Whether the block was freed within the step that allocated it, and that step ended later."""
    following = bisect_right(step_ends, born)
    return following < len(step_ends) and died < step_ends[following]


def _by_frames(frames: tuple[StackFrame, ...]) -> MemoryCategory:
    """Category from the innermost informative frame."""
    in_modules = [frame for frame in frames if _MODULES in f"/{frame.file}" and not _is_in(frame, _TEMPORARY)]
    is_call = any(frame.function in _CALLS for frame in in_modules)
    for frame in frames:
        if _is_in(frame, _SHARDED_TENSORS):
            continue
        if _is_in(frame, _OPTIMIZER):
            return MemoryCategory.OPTIMIZER
        if _is_in(frame, _COMMUNICATION):
            return MemoryCategory.COMMUNICATION
        if _is_in(frame, _TEMPORARY):
            return MemoryCategory.TEMPORARY
        if frame.function == "backward":
            return MemoryCategory.GRADIENTS
        if _MODULES in f"/{frame.file}":
            if frame.function in _COPIES or (frame.function in _BEFORE_TRAINING and not is_call):
                return MemoryCategory.PARAMETERS
            if frame.function in _CALLS:
                return MemoryCategory.ACTIVATIONS
    is_function = any(_is_in(frame, (_FUNCTIONS,)) for frame in in_modules)
    return MemoryCategory.ACTIVATIONS if is_function or not in_modules else MemoryCategory.TEMPORARY


def phase_of(frames: Sequence[StackFrame]) -> str:
    """Phase of a step from its stack: optimizer, backward, forward or unknown."""
    for frame in frames:
        if _is_in(frame, _OPTIMIZER):
            return "optimizer"
        if frame.function == "backward" and "/torch/" in f"/{frame.file}":
            return "backward"
    return "forward" if any(_MODULES in f"/{frame.file}" for frame in frames) else "unknown"


def _is_in(frame: StackFrame, places: tuple[str, ...]) -> bool:
    return any(place in f"/{frame.file}" for place in places)
