"""What was a block for? By who owned it where that is known, else by the calls that allocated it.

torch's autograd engine allocates on a thread of its own, without Python's frames: what has no stack while a step is
recorded is of the backward pass, and what of that outlives the optimizer's step is a gradient.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stepscope.analyzer.memory.history import Held
from stepscope.core.flight_recorder import StackFrame
from stepscope.core.memory import Category

_COMMUNICATION = ("/torch/distributed/", "deepspeed/runtime/comm", "megatron/core/distributed", "/nccl")
_OPTIMIZER = ("/torch/optim/", "/apex/optimizers/", "deepspeed/ops/adam", "bitsandbytes/optim")
_MODULES = "/torch/nn/"
_BEFORE_TRAINING = frozenset(["__init__", "reset_parameters", "_apply", "to", "cuda", "to_empty", "load_state_dict"])
_COPIES = frozenset(["_apply", "to", "cuda", "to_empty", "load_state_dict", "convert"])


def category_of(held: Held, stacks: Sequence[tuple[StackFrame, ...]], owners: Mapping[int, str]) -> Category:
    """The category of a block.

    Args:
        held: the block.
        stacks: of the snapshot.
        owners: what is known of blocks, by their address.
    """
    known = owners.get(held.address)
    if known is not None:
        return Category(known)
    frames = stacks[held.stack]
    if not frames:
        return Category.OTHER if held.born is None else Category.GRADIENTS
    return _by_frames(frames)


def _by_frames(frames: tuple[StackFrame, ...]) -> Category:
    if any(_is_in(frame, _OPTIMIZER) for frame in frames):
        return Category.OPTIMIZER
    if any(_is_in(frame, _COMMUNICATION) for frame in frames):
        return Category.COMMUNICATION
    if any(frame.function == "backward" and "/torch/" in f"/{frame.file}" for frame in frames):
        return Category.GRADIENTS
    in_modules = [frame for frame in frames if _MODULES in f"/{frame.file}"]
    is_call = any(frame.function in ("forward", "_call_impl", "_wrapped_call_impl") for frame in in_modules)
    if any(frame.function in _COPIES for frame in in_modules):
        return Category.PARAMETERS
    if not is_call and any(frame.function in _BEFORE_TRAINING for frame in in_modules):
        return Category.PARAMETERS
    return Category.ACTIVATIONS if is_call or not in_modules else Category.TEMPORARY


def phase_of(frames: Sequence[StackFrame]) -> str:
    """Of a step, by the calls: optimizer, backward, forward; unknown without a sign."""
    for frame in frames:
        if _is_in(frame, _OPTIMIZER):
            return "optimizer"
        if frame.function == "backward" and "/torch/" in f"/{frame.file}":
            return "backward"
    return "forward" if any(_MODULES in f"/{frame.file}" for frame in frames) else "unknown"


def stack_lines(frames: Sequence[StackFrame], most: int = 8) -> list[str]:
    """The calls as lines, the innermost first."""
    return [f"{frame.function} ({frame.file}:{frame.line})" for frame in frames[:most]]


def _is_in(frame: StackFrame, places: tuple[str, ...]) -> bool:
    return any(place in f"/{frame.file}" for place in places)
