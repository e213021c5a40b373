"""Where do this rank's own gradients pass by before other ranks' are mixed in?

In DistributedDataParallel and everything that leaves gradients on the parameters: when a parameter's gradient has been
accumulated, as torch calls these hooks before those of DDP's reducer. In FSDP2: where a group of parameters hands its
whole gradients to the reduction. Both are watched only for the steps asked for, as a hook costs time in every backward
pass.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from typing import Any, Protocol

from stepscope.training.steps.wrapping import Wrapping

Note = Callable[[object, Any], None]
"""Is told whose gradient this is, and the tensor, which changes later. Called from inside training: never raises."""


class GradientSource(Protocol):
    """What sees gradients."""

    def watch(self, note: Note) -> None:
        """Show all gradients from now on."""

    def leave(self) -> None:
        """Show no more."""


def sources_of(model: Any) -> list[GradientSource]:
    """What sees all gradients of a model.

    Raises:
        ValueError: when its way of reducing gradients is not known; the message says which.
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
    """Parameters whose gradients are whole on this rank once accumulated."""

    def __init__(self, parameters: list[Any]) -> None:
        self._parameters = [weakref.ref(parameter) for parameter in parameters]
        self._handles: list[Any] = []

    def watch(self, note: Note) -> None:
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
    """Parameters of FSDP2: those of one `fully_shard` hand their gradients over together.

    torch's own interface for this (`set_custom_reduce_scatter`) would replace the communication that the user chose,
    and sees nothing where there is one shard; the function that starts the reduction has begun the same since 2.4.
    """

    def __init__(self, parameters: list[Any]) -> None:
        self._watched = weakref.WeakSet(parameters)
        self._module: Any = sys.modules["torch.distributed.fsdp._fully_shard._fsdp_param_group"]
        self._wrapping: Wrapping | None = None
        if not hasattr(self._module, "foreach_reduce"):
            raise ValueError("this version of torch reduces the gradients of fully_shard in an unknown way")

    def watch(self, note: Note) -> None:
        def watched(original: Callable[..., Any]) -> Callable[..., Any]:
            def reduce(parameters: Any, gradients: Any, *args: Any, **kwargs: Any) -> Any:
                if parameters and parameters[0] in self._watched:
                    for parameter, gradient in zip(parameters, gradients, strict=True):
                        note(id(parameter), gradient)
                return original(parameters, gradients, *args, **kwargs)

            return reduce

        self._wrapping = Wrapping(self._module, "foreach_reduce", watched)

    def leave(self) -> None:
        if self._wrapping is not None:
            self._wrapping.leave()
            self._wrapping = None


def _groups(module: Any) -> list[Any]:
    state = module._get_fsdp_state()
    groups = getattr(state, "_fsdp_param_groups", None)
    if groups is None:  # before torch 2.12
        groups = [state._fsdp_param_group] if state._fsdp_param_group is not None else []
    return list(groups)


def _parameters(sharded: Any) -> list[Any]:
    """The forms in which a parameter of FSDP2 can stand in its module."""
    return [sharded.sharded_param, getattr(sharded, "_unsharded_param", None)]
