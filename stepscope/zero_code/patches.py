"""Patches of torch and DeepSpeed for `stepscope run`, applied as soon as each module is imported.

Every wrapper passes arguments, results and exceptions through unchanged. Before the first update, and in processes that
never make one, a wrapper costs a fraction of a microsecond.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from stepscope.core.loader_waits import timed_batches, timed_beginning
from stepscope.zero_code.automatic_run import AutomaticRun

_run = AutomaticRun()
_torch: Any = None
"""torch, once it has begun to be imported."""


def module_imported(module: ModuleType) -> None:
    """Patch a module of torch or DeepSpeed for `stepscope run`, as it has just been imported."""
    global _torch
    _torch = sys.modules.get("torch")
    _PATCHES[module.__name__](module)


def _watch_optimizers(module: Any) -> None:
    """Every optimizer's `step` goes through a wrapper of torch's own, for its hooks and its mark in a trace.

    Ours wraps that one: a capture must not end while the mark is open, as it would in a hook.
    """
    wrapped_by_torch = module.Optimizer.profile_hook_step

    def profile_hook_step(step: Callable[..., Any]) -> Callable[..., Any]:
        _run.optimizer_made()
        return _as_update(wrapped_by_torch(step), _first_argument)

    module.Optimizer.profile_hook_step = staticmethod(profile_hook_step)
    module.Optimizer.zero_grad = _after_unseen(module.Optimizer.zero_grad)


def _watch_gradients(module: Any) -> None:
    """The first backward pass alone, also of `torch.autograd.grad`: then torch's own function is back in its place."""
    name = "_engine_run_backward" if hasattr(module, "_engine_run_backward") else "backward"  # before torch 2.3
    backward = getattr(module, name)

    @functools.wraps(backward)
    def first_backward(*args: Any, **kwargs: Any) -> Any:
        if not _torch.compiler.is_compiling():
            setattr(module, name, backward)
            _run.gradients_made()
        return backward(*args, **kwargs)

    setattr(module, name, first_backward)


def _watch_grad_scaler(module: Any) -> None:
    """An update that the scaler leaves out, as gradients overflowed, ends a step all the same.

    What the scaler learns from it, in `update`, belongs to the same step.
    """
    scaler = module.GradScaler
    scaler.step = _as_update(scaler.step, _optimizer_of_scaler, is_last=False)
    scaler.update = _as_last(scaler.update)


def _watch_deepspeed(module: Any) -> None:
    """Its engine updates once for all groups of parameters, for each of which it calls the optimizer inside."""
    engine = module.DeepSpeedEngine
    engine.__init__ = _without_updates(engine.__init__)
    engine._take_model_step = _as_update(engine._take_model_step, _first_argument)


def _watch_loading(module: Any) -> None:
    """Where an optimizer has no state yet, it updates once by nothing before the state is loaded."""
    if hasattr(module, "_init_optim_state"):
        module._init_optim_state = _without_updates(module._init_optim_state)


def _watch_loaders(module: Any) -> None:
    """The wait for a batch, and the beginning of an iteration, which starts the workers."""
    loader, iterator = module.DataLoader, module._BaseDataLoaderIter
    loader.__iter__ = timed_beginning(lambda: _run)(loader.__iter__)
    iterator.__next__ = timed_batches(lambda: _run)(iterator.__next__)


_PATCHES: dict[str, Callable[[Any], None]] = {
    "deepspeed.runtime.engine": _watch_deepspeed,
    "torch.amp.grad_scaler": _watch_grad_scaler,
    "torch.autograd": _watch_gradients,
    "torch.distributed.checkpoint.state_dict": _watch_loading,
    "torch.optim.optimizer": _watch_optimizers,
    "torch.utils.data.dataloader": _watch_loaders,
}


def _as_update(
    step: Callable[..., Any], optimizer_of: Callable[..., Any], *, is_last: bool = True
) -> Callable[..., Any]:
    @functools.wraps(step)
    def update(*args: Any, **kwargs: Any) -> Any:
        if _torch.compiler.is_compiling():  # constant to the compiler, which leaves the other branch out
            result = step(*args, **kwargs)
            _run.has_unseen_update = True
            return result
        optimizer = optimizer_of(*args, **kwargs)
        if not _run.update_begins(optimizer):
            return step(*args, **kwargs)
        try:
            result = step(*args, **kwargs)
        except BaseException:
            _run.update_failed()
            raise
        _run.update_ended(optimizer, is_last=is_last)
        return result

    return update


def _after_unseen(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def after(*args: Any, **kwargs: Any) -> Any:
        if not _torch.compiler.is_compiling():
            _run.end_unseen_step()
        return method(*args, **kwargs)

    return after


def _without_updates(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def quiet(*args: Any, **kwargs: Any) -> Any:
        was, _run.hides_updates = _run.hides_updates, True
        try:
            return function(*args, **kwargs)
        finally:
            _run.hides_updates = was

    return quiet


def _as_last(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def last(*args: Any, **kwargs: Any) -> Any:
        result = method(*args, **kwargs)
        _run.end_due_step()
        return result

    return last


def _first_argument(optimizer: Any = None, /, *_: Any, **__: Any) -> Any:
    """The argument, or None where it is missing: the method itself raises then."""
    return optimizer


def _optimizer_of_scaler(_: Any = None, /, optimizer: Any = None, *__: Any, **___: Any) -> Any:
    return optimizer
