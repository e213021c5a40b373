"""Observer of a few backward passes, which show what a training loop uses and sets inside of its steps alone.

It watches the first step and those in which the profiler is prepared, none of which stands for the job's speed. The
graph that autograd has recorded tells the operators used, and the variables of the calling functions hold the models,
optimizers and trainer. In all other steps nothing of torch is replaced.
"""

from __future__ import annotations

import inspect
import itertools
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any, NamedTuple

from stepscope.core.documents.training_settings import BackwardSettings
from stepscope.core.process import Patch
from stepscope.training.settings.modules import type_name
from stepscope.training.settings.observed import ObservedSettings
from stepscope.training.settings.trainers import is_trainer
from stepscope.training.steps.telemetry import NEVER, StepRecord

_FIRST_WALK_NS = 8_000_000
_LATER_WALK_NS = 2_000_000
"""Longest look at a graph by the thread's CPU time; it has some thousand nodes of some microseconds each: in the first
step, and later."""
_NODES_BETWEEN_CLOCKS = 64
_MOST_WATCHED = 4
"""Steps that are watched."""
_MOST_FRAMES = 60
_MOST_VARIABLES = 500
"""Of a function or an object that are looked at."""

_ATTENTION = {
    "ScaledDotProductFlash": "flash",
    "ScaledDotProductEfficient": "efficient",
    "ScaledDotProductCudnn": "cudnn",
    "ScaledDotProductFusedAttentionOverrideable": "overrideable",
    "FlashAttn": "flash",
}
"""Beginnings of the names of operators that are fused attention."""
_MATRIX_PRODUCTS = frozenset({"MmBackward0", "AddmmBackward0", "BmmBackward0", "BaddbmmBackward0", "LinearBackward0"})
_CONVOLUTIONS = frozenset({"ConvolutionBackward0", "CudnnConvolutionBackward0", "MkldnnConvolutionBackward0"})
_SOFTMAX = "SoftmaxBackward"
_COMPILED = "CompiledFunctionBackward"


class GraphSummary(NamedTuple):
    """Operators in the graph of a backward pass.

    Attributes:
        attention: fused ones by implementation.
        masks: whether each of these masks the future.
        shapes: of the results of matrix products and convolutions, in the order of the walk.
    """

    attention: Counter[str]
    masks: set[bool]
    num_softmax: int
    num_convolutions: int
    num_compiled: int
    types: set[str]
    shapes: tuple[tuple[int, ...], ...]
    is_whole: bool


def summarize_graph(roots: Any, limit_ns: int) -> GraphSummary:
    """Walk the graph behind the tensors of a backward pass, from the last operators on, until the time is over."""
    tensors = roots if isinstance(roots, list | tuple) else (roots,)
    ends = time.thread_time_ns() + limit_ns
    waiting = [node for tensor in tensors if (node := getattr(tensor, "grad_fn", None)) is not None]
    seen, kinds = set(waiting), Counter[str]()
    attention, masks, types, shapes = Counter[str](), set[bool](), set[str](), list[tuple[int, ...]]()
    num_looked_at = 0
    while waiting:
        num_looked_at += 1
        if num_looked_at % _NODES_BETWEEN_CLOCKS == 0 and time.thread_time_ns() > ends:
            break
        node = waiting.pop()
        name = type(node).__name__
        if name in _MATRIX_PRODUCTS or name in _CONVOLUTIONS:
            kinds["convolution"] += name in _CONVOLUTIONS
            result = node._input_metadata[0]
            types.add(type_name(result.dtype))
            shapes.append(tuple(map(_size, result.shape)))
        elif _SOFTMAX in name and not name.startswith("Log"):
            kinds["softmax"] += 1
        elif name.startswith(_COMPILED):
            kinds["compiled"] += 1
        else:
            implementation = next((which for begin, which in _ATTENTION.items() if name.startswith(begin)), None)
            if implementation is not None:
                attention[implementation] += 1
                masks.add(bool(getattr(node, "_saved_is_causal", False)))
        for below, _ in node.next_functions:
            if below is not None and below not in seen:
                seen.add(below)
                waiting.append(below)
    return GraphSummary(
        attention,
        masks,
        kinds["softmax"],
        kinds["convolution"],
        kinds["compiled"],
        types,
        tuple(shapes),
        not waiting,
    )


def _size(size: Any) -> int:
    return size if type(size) is int else -1  # of a nested tensor


def objects_in_callers(frame: FrameType | None) -> Iterator[Any]:
    """What the functions that call each other have in their variables, and in attributes of their `self`."""
    for caller in itertools.islice(_callers(frame), _MOST_FRAMES):
        if caller.f_globals.get("__name__", "").partition(".")[0] in {"torch", "stepscope"}:
            continue
        variables = caller.f_locals
        values = list(itertools.islice(variables.values(), _MOST_VARIABLES))
        own = variables.get("self")
        if type(variables) is dict and caller.f_code.co_flags & inspect.CO_OPTIMIZED and _is_ours(variables):
            variables.clear()  # up to Python 3.12 a copy that the frame keeps, with tensors in it
        if caller.f_globals.get("__name__") == "__main__":
            values += itertools.islice(list(caller.f_globals.values()), _MOST_VARIABLES)
        attributes = getattr(own, "__dict__", None)
        if isinstance(attributes, dict):
            values += itertools.islice(list(attributes.values()), _MOST_VARIABLES)
        for value in values:
            yield value
            if type(value) in (list, tuple) and len(value) <= 16:  # chunks of a pipeline, several optimizers
                yield from value


def _callers(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _is_ours(variables: dict[str, Any]) -> bool:
    """Whether nobody but the frame and its reader (two names and a call's argument) has this copy of its variables."""
    return sys.getrefcount(variables) <= 4


class ObservedBackward:
    """Notes what the backward passes of a few steps show; made on the thread that trains.

    Args:
        observed: gets what is found.
        is_warm_up: whether the profiler is prepared in a step.
    """

    def __init__(self, observed: ObservedSettings, is_warm_up: Callable[[int], bool]) -> None:
        self._observed = observed
        self._is_warm_up = is_warm_up
        self._thread, self._pid = threading.get_ident(), os.getpid()
        from torch.compiler import is_compiling

        self._is_compiling: Callable[[], bool] = is_compiling
        self._torch: Any = sys.modules["torch"]
        self._patches: list[Patch] = []
        self._num_watched = 0
        self._passes = self._synchronized = 0
        self._has_wrapper = False
        self._graphs: list[GraphSummary] = []

    def due_step(self, index: int) -> int:
        """The step at whose beginning this has to be called next, after `index` has begun; warm-ups come anyway."""
        return index + 1 if self._patches else NEVER

    def step_began(self, index: int) -> None:
        is_first = not self._graphs and self._num_watched < 2  # the first may have ended before its backward pass
        if self._num_watched >= _MOST_WATCHED or not (is_first or self._is_warm_up(index)):
            return
        self._num_watched += 1
        self._passes = self._synchronized = 0
        self._patches = [
            Patch(self._torch.autograd, "_engine_run_backward", self._watching_backward),
            Patch(self._torch.amp.autocast_mode.autocast, "__enter__", self._watching_autocast),
        ]

    def steps_ended(self, _: Sequence[StepRecord]) -> None:
        if self._patches:
            self._leave()
            if self._graphs:
                self._observed.backward_seen(self._settings())

    def close(self) -> None:
        self._leave()

    def _leave(self) -> None:
        patches, self._patches = self._patches, []
        for patch in patches:
            patch.leave()

    def _is_watched(self, watch: int) -> bool:
        """Whether the step of this number among the watched goes on; a patch that others have wrapped outlives it."""
        is_on = bool(self._patches) and watch == self._num_watched
        return is_on and threading.get_ident() == self._thread and os.getpid() == self._pid

    def _watching_backward(self, backward: Callable[..., Any]) -> Callable[..., Any]:
        watch = self._num_watched

        def watching(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            if self._is_watched(watch):
                try:
                    self._look(tensors, sys._getframe(1))
                except Exception:  # of another torch; training must never be hurt
                    self._leave()
            return backward(tensors, *args, **kwargs)

        return watching

    def _watching_autocast(self, enter: Callable[..., Any]) -> Callable[..., Any]:
        watch = self._num_watched

        def watching(context: Any) -> Any:
            if not self._is_compiling() and self._is_watched(watch) and getattr(context, "_enabled", False):
                self._observed.autocast_seen(str(context.device), context.fast_dtype)
            return enter(context)

        return watching

    def _look(self, tensors: Any, caller: FrameType) -> None:
        self._passes += 1
        if self._torch.is_anomaly_enabled():
            self._observed.anomaly_mode_seen()
        if self._passes == 1:
            if not self._graphs:
                self._look_for_objects(caller)
            limit_ns = _LATER_WALK_NS if self._graphs else _FIRST_WALK_NS
            self._graphs.append(summarize_graph(tensors, limit_ns))
        reduces = self._observed.reduces_gradients()
        self._has_wrapper |= reduces is not None
        self._synchronized += bool(reduces)

    def _look_for_objects(self, caller: FrameType) -> None:
        module, optimizer = self._torch.nn.Module, self._torch.optim.Optimizer
        seen: set[int] = set()
        trainers = []
        for value in objects_in_callers(caller):
            kind = type(value)
            if id(value) in seen:
                continue
            seen.add(id(value))
            if issubclass(kind, module):
                self._observed.model_seen(value)
            elif issubclass(kind, optimizer):
                self._observed.optimizer_seen(value)
            elif kind.__module__ != "builtins" and is_trainer(kind):
                trainers.append(value)
        self._observed.models_seen()
        self._observed.trainers_seen(trainers)

    def _settings(self) -> BackwardSettings:
        first, *others = self._graphs
        masks = first.masks
        same = [_have_same_shapes(first.shapes, other.shapes) for other in others]
        return BackwardSettings(
            passes=self._passes,
            synchronized_passes=self._synchronized if self._has_wrapper else None,
            attention=dict(sorted(first.attention.items())),
            is_causal=all(masks) if masks else None,
            num_softmax=first.num_softmax,
            num_convolutions=first.num_convolutions,
            num_compiled=first.num_compiled,
            compute_types=sorted(first.types),
            has_fixed_shapes=all(same) if same and first.shapes else None,
            is_whole=first.is_whole,
        )


def _have_same_shapes(one: tuple[tuple[int, ...], ...], other: tuple[tuple[int, ...], ...]) -> bool:
    """Whether two walks met the same shapes, as far as both went."""
    shared = min(len(one), len(other))
    return shared > 0 and one[:shared] == other[:shared]
