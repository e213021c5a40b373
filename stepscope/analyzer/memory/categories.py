"""Categories of memory blocks: parameters, gradients, optimizer state, activations and others.

The innermost call that tells decides: a model that is wrapped for data-parallel training runs within calls of
torch.distributed, and recomputed activations within the backward pass. torch's autograd engine allocates on a thread
of its own, without Python's frames: what has no stack while a step is recorded is of the backward pass. Of that, and
of the optimizer's, what is freed before the optimizer's step ends is temporary; a gradient is still there.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence

from stepscope.analyzer.memory.history import Held
from stepscope.core.documents.hang import StackFrame
from stepscope.core.documents.memory import MemoryCategory

_SHARDED_TENSORS = ("/torch/distributed/tensor/", "/torch/distributed/_tensor/")
"""They pass each operation of a layer on: what it is for, the calls around say."""
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
"""Called without a module, as a loss often is."""
_CALLS = frozenset(["forward", "_call_impl", "_wrapped_call_impl"])
_BEFORE_TRAINING = frozenset(["__init__", "reset_parameters", "_apply", "to", "cuda", "to_empty", "load_state_dict"])
_COPIES = frozenset(["_apply", "to", "cuda", "to_empty", "load_state_dict", "convert"])


def category_of(
    held: Held,
    stacks: Sequence[tuple[StackFrame, ...]],
    owners: Mapping[int, str],
    step_ends: Sequence[int] = (),
    noted_at: int = 0,
) -> MemoryCategory:
    """The category of a block.

    Args:
        held: the block.
        stacks: of the snapshot.
        owners: what is known of blocks, by their address.
        step_ends: how many events had happened when the optimizer's steps ended, ascending.
        noted_at: how many had when the owners were written down: blocks that were gone by then had other owners.
    """
    known = owners.get(held.address)
    if known is not None and (held.died is None or held.died >= noted_at):
        return MemoryCategory(known)
    frames = stacks[held.stack]
    if not frames and held.born is None:
        return MemoryCategory.OTHER
    category = _by_frames(frames) if frames else MemoryCategory.GRADIENTS
    is_short = held.born is not None and held.died is not None and _is_within_a_step(held.born, held.died, step_ends)
    return (
        MemoryCategory.TEMPORARY
        if is_short and category in (MemoryCategory.GRADIENTS, MemoryCategory.OPTIMIZER)
        else category
    )


def _is_within_a_step(born: int, died: int, step_ends: Sequence[int]) -> bool:
    """Whether no step ended while it lived, although one did later."""
    following = bisect_right(step_ends, born)
    return following < len(step_ends) and died < step_ends[following]


def _by_frames(frames: tuple[StackFrame, ...]) -> MemoryCategory:
    """By the innermost that tells."""
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
    """Of a step, by the calls: optimizer, backward, forward; unknown without a sign."""
    for frame in frames:
        if _is_in(frame, _OPTIMIZER):
            return "optimizer"
        if frame.function == "backward" and "/torch/" in f"/{frame.file}":
            return "backward"
    return "forward" if any(_MODULES in f"/{frame.file}" for frame in frames) else "unknown"


def _is_in(frame: StackFrame, places: tuple[str, ...]) -> bool:
    return any(place in f"/{frame.file}" for place in places)
