"""DeepSpeed adapter: `with attach(engine, run="my-run") as prof:` around the training loop.

A step is an optimizer step: `engine.step()` at the end of an accumulation, or the `train_batch()` of a pipeline engine.
The mesh comes from the engine, its ZeRO stage becomes a label, `save_checkpoint` a phase.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from stepscope.training.entry_points import profile
from stepscope.training.profiling_session import Profile


@contextmanager
def attach(engine: Any, **options: Any) -> Iterator[Profile]:
    """Measure what an initialised DeepSpeed engine does inside the with block.

    Args:
        engine: as `deepspeed.initialize` returns it.
        options: as of `stepscope.profile`; a mesh or labels given come before the engine's.
    """
    labels = {"zero_stage": str(engine.zero_optimization_stage())} | dict(options.pop("labels", None) or {})
    mesh = options.pop("mesh", None) or getattr(engine, "grid", None) or engine.mpu or {"dp": engine.dp_world_size}
    with profile(mesh=mesh, labels=labels, **options) as prof:
        wrapped = {"save_checkpoint": _in_phase(prof, engine.save_checkpoint)}
        if hasattr(engine, "train_batch"):
            wrapped["train_batch"] = _ending_a_step(prof, engine.train_batch, lambda: True)
        else:
            wrapped["step"] = _ending_a_step(prof, engine.step, engine.is_gradient_accumulation_boundary)
        before = {name: vars(engine)[name] for name in wrapped if name in vars(engine)}  # others' patches
        for name, method in wrapped.items():
            setattr(engine, name, method)
        try:
            yield prof
        finally:
            for name, method in wrapped.items():
                _put_back(engine, name, method, before)


def _put_back(engine: Any, name: str, ours: Callable[..., Any], before: dict[str, Any]) -> None:
    """What was there, unless someone has wrapped ours in turn, which does nothing of its own from now on."""
    if vars(engine).get(name) is not ours:
        return
    if name in before:
        setattr(engine, name, before[name])
    else:
        delattr(engine, name)  # the class's method is there again


def _ending_a_step(
    prof: Profile, method: Callable[..., Any], ends_accumulation: Callable[[], bool]
) -> Callable[..., Any]:
    @functools.wraps(method)
    def ending_a_step(*args: Any, **kwargs: Any) -> Any:
        is_step = ends_accumulation()  # before it: the engine counts on inside
        result = method(*args, **kwargs)
        if is_step:
            prof.step()
        return result

    return ending_a_step


def _in_phase(prof: Profile, method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def in_phase(*args: Any, **kwargs: Any) -> Any:
        with prof.phase("checkpoint"):
            return method(*args, **kwargs)

    return in_phase
