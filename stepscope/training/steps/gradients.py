"""Gradient figures of a step: norm of this rank's own gradients, norm before clipping, loss scale and overflows.

`local_grad_norm` is measured before gradients of other ranks are mixed in, as those of a faulty GPU differ from all
others. With DistributedDataParallel, and wherever gradients stay on the parameters, they are seen when a parameter's
gradient has been accumulated: torch calls these hooks before those of DDP's reducer. With FSDP2 they are seen where a
group of parameters hands its whole gradients to the reduction. Hooks exist only during sampled steps, as a hook costs
time in every backward pass.

`grad_norm` is what torch computes when the loop clips gradients. `loss_scale` and `overflow` are read from
torch.amp.GradScaler. None of them needs help from the training loop.
"""

from __future__ import annotations

import logging
import math
import sys
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from stepscope.core.process import Patch
from stepscope.training.steps.scalars import DeferredScalars, DeviceScalarReader, Numbers, split_scalars
from stepscope.training.steps.step_log import StepNotes
from stepscope.training.steps.telemetry import NEVER, StepRecord

logger = logging.getLogger(__name__)

LOCAL_NORM = "local_grad_norm"
_HOST_SHARE = 0.001
"""Of the training thread's time that sampling may take; where it takes more, every second sample is left out."""


class LocalGradientNorm:
    """Adds `local_grad_norm` to some steps: the 2-norm of all gradients that this rank computed itself.

    Of the step's last backward pass, with what earlier ones accumulated on the parameters; a loss scale is divided out.
    All ranks sample the same steps, a slower one some of them.

    Args:
        is_quiet: whether a step is neither captured nor next to a capture; sampling would show in the trace.
    """

    def __init__(self, scalar_reader: DeviceScalarReader, is_quiet: Callable[[int], bool]) -> None:
        self._scalar_reader = scalar_reader
        self._is_quiet = is_quiet
        self._sources: list[GradientSource] = []
        self._interval = 0
        self._norms: dict[object, Any] = {}
        self._is_sampling = False
        self._sampled_step = 0
        self._has_failed = False
        self._spent_ns = 0

    def watch(self, model: Any, every: int) -> None:
        """Sample each `every`th step of a model; several count as one. What cannot be seen costs one line."""
        try:
            if every < 1:
                raise ValueError(f"every is a number of steps, not {every}")
            self._sources += gradient_sources(model)
            self._interval = max(int(every), self._interval)
        except Exception as error:  # training must never be hurt, and everything else goes on
            logger.warning("prof.watch leaves this model alone: %s", error)

    def due_step(self, index: int) -> int:
        """The step at whose beginning this has to be called next, after `index` has begun."""
        if self._is_sampling or not self._sources:
            return index + 1 if self._is_sampling else NEVER
        return index - index % self._interval + self._interval

    def step_began(self, index: int) -> None:
        if not self._sources or index == 0 or index % self._interval or self._has_failed or not self._is_quiet(index):
            return
        started_ns = time.perf_counter_ns()
        self._is_sampling, self._sampled_step = True, index
        try:
            for source in self._sources:
                source.watch(self._note)
        except Exception:
            self._leave()
            raise
        self._spent_ns = time.perf_counter_ns() - started_ns

    def steps_ended(self, records: Sequence[StepRecord]) -> None:
        for record in records if self._is_sampling else ():
            if record.index == self._sampled_step:
                self._end(record)

    def _end(self, record: StepRecord) -> None:
        started_ns = time.perf_counter_ns()
        self._leave()
        norms, self._norms = self._norms, {}
        if norms and not self._has_failed:
            self._add(list(norms.values()), record)
        self._spent_ns += time.perf_counter_ns() - started_ns
        unsampled_ns = max(record.duration_ns - self._spent_ns, 1)
        while self._spent_ns > _HOST_SHARE * self._interval * unsampled_ns:
            self._interval *= 2  # so that the sampled steps of all ranks stay among those of the fastest

    def close(self) -> None:
        self._leave()
        self._sources.clear()

    def _leave(self) -> None:
        self._is_sampling = False
        for source in self._sources:
            source.leave()

    def _note(self, whose: object, gradient: Any) -> None:
        if self._has_failed or not self._is_sampling:
            return
        started_ns = time.perf_counter_ns()
        try:
            self._norms[whose] = _norm(gradient)
        except Exception as error:  # inside the backward pass
            self._has_failed = True
            logger.warning("stepscope goes on without local_grad_norm: %s: %s", type(error).__name__, error)
        self._spent_ns += time.perf_counter_ns() - started_ns

    def _add(self, norms: list[Any], record: StepRecord) -> None:
        torch: Any = sys.modules["torch"]
        by_device: dict[Any, list[Any]] = {}
        for norm in norms:
            by_device.setdefault(norm.device, []).append(norm.to(torch.float32))
        totals = {str(device): torch.linalg.vector_norm(torch.stack(few)) for device, few in by_device.items()}

        def unscaled(numbers: Numbers) -> Numbers:
            scale = record.figures.get("loss_scale", 1.0)  # read before this one, as its listener is called before
            return {LOCAL_NORM: math.hypot(*numbers.values()) / scale if scale else math.nan}

        if any(self._scalar_reader.takes(total) for total in totals.values()):
            deferred = self._scalar_reader.take(totals, unscaled)
            record.deferred += [] if deferred is None else [deferred]
        elif waiting := next((name for name, total in totals.items() if total.device.type != "cpu"), None):
            raise ValueError(f"gradients on {waiting} cannot be read without waiting for it")
        else:
            numbers = {name: total.item() for name, total in totals.items()}
            record.figures = unscaled(numbers) | record.figures


def _norm(gradient: Any) -> Any:
    torch: Any = sys.modules["torch"]
    with torch.no_grad():
        if type(gradient) is not torch.Tensor and hasattr(gradient, "to_local"):
            gradient = gradient.to_local()  # what this rank holds of a DTensor
        if gradient.is_sparse:
            gradient = gradient.coalesce().values()
        dtype = torch.float32 if gradient.dtype in {torch.float16, torch.bfloat16} else None
        return torch.linalg.vector_norm(gradient, dtype=dtype)


GradientCallback = Callable[[object, Any], None]
"""Callback with the parameter's name and its gradient, which changes later. Called inside training: never raises."""


def gradient_sources(model: Any) -> list[GradientSource]:
    """What sees all gradients of a model: its plain parameters, and those that fully_shard has sharded.

    Raises:
        ValueError: its way of reducing gradients is unknown; the message names it.
    """
    fsdp: Any = sys.modules.get("torch.distributed.fsdp")
    groups: list[Any] = []
    for module in model.modules():
        if fsdp is not None and isinstance(module, fsdp.FullyShardedDataParallel):
            raise ValueError("FullyShardedDataParallel reduces gradients before anyone sees them; fully_shard does not")
        if hasattr(fsdp, "FSDPModule") and isinstance(module, fsdp.FSDPModule):
            groups += [parameter for group in _groups(module) for parameter in group.fsdp_params]
    sharded = {id(parameter) for group in groups for parameter in _parameters(group)}
    plain = [parameter for parameter in model.parameters() if id(parameter) not in sharded and parameter.requires_grad]
    return [
        *([PlainParameters(plain)] if plain else []),
        *([ShardedParameters(groups)] if groups else []),
    ]


class PlainParameters:
    """Gradients of parameters that are whole on this rank once accumulated."""

    def __init__(self, parameters: list[Any]) -> None:
        self._parameters = [weakref.ref(parameter) for parameter in parameters]
        self._handles: list[Any] = []

    def watch(self, note: GradientCallback) -> None:
        def accumulated(parameter: Any) -> None:
            if parameter.grad is not None:  # else an optimizer has consumed it already, in a hook before ours
                note(id(parameter), parameter.grad)

        for reference in self._parameters:
            parameter = reference()
            if parameter is not None and parameter.requires_grad:
                self._handles.append(parameter.register_post_accumulate_grad_hook(accumulated))

    def leave(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()


class ShardedParameters:
    """Gradients of FSDP2's parameters: those of one `fully_shard` hand them over together.

    torch's own interface for this (`set_custom_reduce_scatter`) would replace the communication that the user chose,
    and sees nothing where there is one shard; the function that starts the reduction has begun the same since 2.4.
    """

    def __init__(self, parameters: list[Any]) -> None:
        self._watched = weakref.WeakSet(parameters)
        self._module: Any = sys.modules["torch.distributed.fsdp._fully_shard._fsdp_param_group"]
        self._wrapping: Patch | None = None
        if not hasattr(self._module, "foreach_reduce"):
            raise ValueError("this version of torch reduces the gradients of fully_shard in an unknown way")

    def watch(self, note: GradientCallback) -> None:
        def watched(original: Callable[..., Any]) -> Callable[..., Any]:
            def reduce(parameters: Any, gradients: Any, *args: Any, **kwargs: Any) -> Any:
                if parameters and parameters[0] in self._watched:
                    for parameter, gradient in zip(parameters, gradients, strict=True):
                        note(id(parameter), gradient)
                return original(parameters, gradients, *args, **kwargs)

            return reduce

        self._wrapping = Patch(self._module, "foreach_reduce", watched)

    def leave(self) -> None:
        if self._wrapping is not None:
            self._wrapping.leave()
            self._wrapping = None


GradientSource = PlainParameters | ShardedParameters
"""What sees gradients."""


def _groups(module: Any) -> list[Any]:
    state = module._get_fsdp_state()
    groups = getattr(state, "_fsdp_param_groups", None)
    if groups is None:  # before torch 2.12
        groups = [state._fsdp_param_group] if state._fsdp_param_group is not None else []
    return list(groups)


def _parameters(sharded: Any) -> list[Any]:
    """The forms in which a parameter of FSDP2 can stand in its module."""
    return [sharded.sharded_param, getattr(sharded, "_unsharded_param", None)]


CLIPPED_NORM = "grad_norm"
_COMPUTED_BY_CLIPPING = "_get_total_norm"
"""What torch.nn.utils.clip_grad_norm_ computes the norm with, since torch 2.6."""


class ClippedGradientNorm:
    """Adds `grad_norm` to steps in which gradients were clipped once by their 2-norm, where the loop does not give it.

    A norm whose parts are on several ranks, as that of `fully_shard`, is left out: it is known only once those are
    summed.
    """

    def __init__(self, scalar_reader: DeviceScalarReader, running_step: Callable[[], int] = lambda: 0) -> None:
        self._scalar_reader = scalar_reader
        self._norms = StepNotes[_Scalars](running_step)
        self._wrapping: Patch | None = None
        import torch.nn.utils.clip_grad as module

        if hasattr(module, _COMPUTED_BY_CLIPPING):
            self._wrapping = Patch(module, _COMPUTED_BY_CLIPPING, self._watched)

    def steps_ended(self, records: Sequence[StepRecord]) -> None:
        for record, norms in self._norms.of(records):
            is_given = CLIPPED_NORM in record.figures or any(CLIPPED_NORM in each.names for each in record.deferred)
            if len(norms) == 1 and not is_given:
                norms[0].add_to(record)
                continue
            for norm in norms:  # clipped part by part, or given by the loop
                norm.give_up()

    def close(self) -> None:
        wrapping, self._wrapping = self._wrapping, None
        if wrapping is not None:
            wrapping.leave()

    def _watched(self, original: Callable[..., Any]) -> Callable[..., Any]:
        from torch.compiler import is_compiling

        reference = weakref.ref(self)  # a run that is never ended is forgotten

        def total_norm(tensors: Any, norm_type: float = 2.0, *args: Any, **kwargs: Any) -> Any:
            norm = original(tensors, norm_type, *args, **kwargs)
            if is_compiling():  # first, so that a compiled loop knows nothing of us
                return norm
            listener = reference()
            if listener is not None and norm_type == 2.0:
                listener._note(norm)
            return norm

        return total_norm

    def _note(self, norm: Any) -> None:
        """The norm is known, or will be; called from inside training, so it never raises."""
        if self._wrapping is None or self._norms.num_running() > 1:  # clipped part by part
            return
        try:
            plain, on_device, _ = split_scalars({CLIPPED_NORM: norm}, self._scalar_reader.takes)
            self._norms.add(_Scalars(plain, self._scalar_reader.take(on_device) if on_device else None))
        except Exception as error:  # training must never be hurt
            self._wrapping.leave()
            self._wrapping = None
            logger.warning("stepscope goes on without grad_norm: %s: %s", type(error).__name__, error)


@dataclass(frozen=True, slots=True)
class _Scalars:
    """Figures that a hook has found in the running step: those on the host, and those on their way from a GPU."""

    plain: Numbers
    deferred: DeferredScalars | None

    def add_to(self, record: StepRecord) -> None:
        """Figures that the record has already stay, as those that the training loop gave."""
        record.figures = self.plain | record.figures
        if self.deferred is not None:
            record.deferred.append(self.deferred)

    def give_up(self) -> None:
        if self.deferred is not None:
            self.deferred.give_up()


_CALLED_BY_UPDATE = "_check_scale_growth_tracker"
"""The method that every GradScaler's `update` calls first, FSDP's ShardedGradScaler's too, and only when it is enabled;
until then the scale is that of this step's loss, and what the optimizers found has not been cleared."""


class LossScaleFigures:
    """Adds `loss_scale` to a step, by which its loss was multiplied, and `overflow` (1 when gradients were not finite).

    Neither is read from the GPU before its work is done, or at all where that needs waiting (XPU, MPS).
    Where several scalers are updated in a step, the last counts.
    """

    def __init__(self, scalar_reader: DeviceScalarReader, running_step: Callable[[], int] = lambda: 0) -> None:
        self._scalar_reader = scalar_reader
        self._scales = StepNotes[_Scalars](running_step)
        self._is_on = True
        torch: Any = sys.modules["torch"]
        self._wrapping = Patch(torch.amp.GradScaler, _CALLED_BY_UPDATE, self._watched)

    def steps_ended(self, records: Sequence[StepRecord]) -> None:
        """Add the figures of the steps' updates; figures given by the training loop stay."""
        for record, scales in self._scales.of(records):
            for scale in reversed(scales):  # of two by one name the first stays
                scale.add_to(record)

    def close(self) -> None:
        self._is_on = False
        self._wrapping.leave()

    def _watched(self, original: Callable[..., Any]) -> Callable[..., Any]:
        reference = weakref.ref(self)  # a run that is never ended is forgotten

        def check(scaler: Any, name: str) -> Any:
            listener = reference() if name == "update" else None
            if listener is not None:
                listener._updating(scaler)
            return original(scaler, name)

        return check

    def _updating(self, scaler: Any) -> None:
        """A scaler is about to change its scale; called from inside training, so it never raises."""
        if not self._is_on:
            return
        try:
            scale: Any = scaler._scale
            found = [
                tensor
                for state in scaler._per_optimizer_states.values()
                for tensor in state["found_inf_per_device"].values()
            ]
            tensors = {"loss_scale": scale} | {f"found {i}": tensor for i, tensor in enumerate(found)}
            if any(self._scalar_reader.takes(tensor) for tensor in tensors.values()):
                self._scales.add(_Scalars({}, self._scalar_reader.take(tensors, _named)))
            elif all(tensor.device.type == "cpu" for tensor in tensors.values()):  # else reading would wait
                numbers = _named({name: tensor.item() for name, tensor in tensors.items()})
                self._scales.add(_Scalars(numbers, None))
        except Exception as error:  # training must never be hurt
            self._is_on = False
            logger.warning("stepscope goes on without the loss scale: %s: %s", type(error).__name__, error)


def _named(numbers: dict[str, int | float]) -> dict[str, int | float]:
    found = [number for name, number in numbers.items() if name != "loss_scale"]
    return {"loss_scale": numbers["loss_scale"]} | ({"overflow": int(any(found))} if found else {})
