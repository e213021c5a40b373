"""Categories of memory blocks: parameters, gradients, optimizer state, activations and others.

The innermost informative frame of a block's stack decides, because a model wrapped for data-parallel training runs
within calls of torch.distributed, and recomputed activations within the backward pass. Autograd allocates on a thread
of its own without Python frames: where stacks are recorded, a block without one from within a step belongs to the
backward pass, and with C++ frames the thread is among them. Blocks of the backward pass or the optimizer that are freed
before the optimizer's step ends are temporary; gradients remain.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence

from stepscope.analyzer.memory.history import HeldBlock
from stepscope.core.documents.hang import StackFrame
from stepscope.core.documents.memory import JobKind, MemoryCategory, is_autograd_thread, is_python, is_workspace

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
_KV_CACHE = ("/cache_engine.py", "/cache_utils.py", "/mem_cache/")
"""Of vLLM and LMDeploy, of transformers, of SGLang."""
_KV_CACHE_FUNCTION = "kv_cache"
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
    *,
    is_training: bool = True,
) -> MemoryCategory:
    """Category of a block.

    Args:
        stacks: of the snapshot, the empty one first.
        owners: known owners of blocks, by address.
        step_ends: number of events at the end of each optimizer step, ascending.
        noted_at: number of events when the owners were recorded; blocks freed before that had other owners.
        is_training: there is a backward pass, which blocks without a stack are of.
    """
    known = owners.get(held.address)
    if known is not None and (held.died is None or held.died >= noted_at):
        return MemoryCategory(known)
    frames = stacks[held.stack]
    if not frames and (held.born is None or len(stacks) == 1 or not is_training):
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
    if any(map(is_workspace, frames)):
        return MemoryCategory.OTHER
    in_modules = [frame for frame in frames if _MODULES in f"/{frame.file}" and not _is_in(frame, _TEMPORARY)]
    is_call = any(frame.function in _CALLS for frame in in_modules)
    for frame in frames:
        if _is_in(frame, _SHARDED_TENSORS):
            continue
        if _is_optimizer(frame):
            return MemoryCategory.OPTIMIZER
        if _is_in(frame, _COMMUNICATION) or frame.function.startswith("c10d::"):
            return MemoryCategory.COMMUNICATION
        if _is_in(frame, _KV_CACHE) or _KV_CACHE_FUNCTION in frame.function:
            return MemoryCategory.KV_CACHE
        if _is_in(frame, _TEMPORARY):
            return MemoryCategory.TEMPORARY
        if _is_backward(frame):
            return MemoryCategory.GRADIENTS
        if _MODULES in f"/{frame.file}":
            if frame.function in _COPIES or (frame.function in _BEFORE_TRAINING and not is_call):
                return MemoryCategory.PARAMETERS
            if frame.function in _CALLS:
                return MemoryCategory.ACTIVATIONS
    if not any(map(is_python, frames)):
        return MemoryCategory.OTHER
    is_function = any(_is_in(frame, (_FUNCTIONS,)) for frame in in_modules)
    return MemoryCategory.ACTIVATIONS if is_function or not in_modules else MemoryCategory.TEMPORARY


def _is_optimizer(frame: StackFrame) -> bool:
    """Whether a known optimizer called, or a function `step` of somebody's own (optim.py, my_optimizer.py)."""
    return _is_in(frame, _OPTIMIZER) or (frame.function == "step" and "optim" in frame.file.rpartition("/")[2])


def _is_backward(frame: StackFrame) -> bool:
    return frame.function == "backward" or is_autograd_thread(frame)


def phase_of(frames: Sequence[StackFrame]) -> str:
    """GPU memory analysis: phase of a step from an allocation's stack: optimizer, backward, forward or unknown."""
    for frame in frames:
        if _is_optimizer(frame):
            return "optimizer"
        if _is_backward_pass(frame):
            return "backward"
    return "forward" if any(_MODULES in f"/{frame.file}" for frame in frames) else "unknown"


def _is_backward_pass(frame: StackFrame) -> bool:
    """Whether torch's backward pass called: a function of the same name may be anybody's."""
    return is_autograd_thread(frame) or (frame.function == "backward" and "/torch/" in f"/{frame.file}")


_ENGINES = (
    "/vllm/",
    "/sglang/",
    "/tensorrt_llm/",
    "/lmdeploy/",
    "/text_generation_server/",
    "/transformers/generation/",
)
_WITHOUT_GRADIENTS = "/torch/utils/_contextlib.py"
"""Where functions decorated with torch.no_grad() or torch.inference_mode() are called."""
_TRAINING = re.compile(r"(?<![a-z])(?:(?:pre)?train(?:ing)?|fine_?tun(?:e|ing))(?![a-z])", re.IGNORECASE)


def job_kind(stacks: Iterable[Sequence[StackFrame]]) -> JobKind:
    """Kind of job by all stacks of a snapshot.

    A backward pass or an optimizer is training, whatever else there is: it may evaluate or generate. Without them an
    inference engine is inference, code named after training is training (it ran out in its first forward pass), and a
    module that is called without gradients is inference.
    """
    is_engine = is_named = is_without_gradients = False
    for frames in stacks:
        if any(map(is_workspace, frames)):  # of whoever called first, maybe long ago
            continue
        has_called = False
        for frame in frames:
            if _is_optimizer(frame) or _is_backward(frame):
                return JobKind.TRAINING
            has_called |= frame.function in _CALLS and _MODULES in f"/{frame.file}"
            is_engine |= _is_in(frame, _ENGINES)
            is_named |= _is_named_after_training(frame)
            is_without_gradients |= has_called and _is_in(frame, (_WITHOUT_GRADIENTS,))
    if is_named and not is_engine:
        return JobKind.TRAINING
    return JobKind.INFERENCE if is_engine or is_without_gradients else JobKind.UNKNOWN


def _is_named_after_training(frame: StackFrame) -> bool:
    return _TRAINING.search(frame.function) is not None or _TRAINING.search(frame.file.rpartition("/")[2]) is not None


def _is_in(frame: StackFrame, places: tuple[str, ...]) -> bool:
    return any(place in f"/{frame.file}" for place in places)
