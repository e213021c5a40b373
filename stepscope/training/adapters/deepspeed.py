"""DeepSpeed adapter: `with attach(engine, run="my-run") as prof:` around the training loop.

A step is an optimizer step: `engine.step()` at the end of an accumulation, or the `train_batch()` of a pipeline engine.
The mesh comes from the engine, its ZeRO stage becomes a label, `save_checkpoint` a phase.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from stepscope.core.process import Patch
from stepscope.training.entry_points import profile
from stepscope.training.profiling_session import Profile


@contextmanager
def attach(engine: Any, **options: Any) -> Iterator[Profile]:
    """DeepSpeed adapter: measure what an initialised engine does inside the with block.

    Args:
        engine: as `deepspeed.initialize` returns it.
        options: as of `stepscope.profile`; a mesh or labels given come before the engine's.
    """
    labels = {"zero_stage": str(engine.zero_optimization_stage())} | dict(options.pop("labels", None) or {})
    mesh = options.pop("mesh", None) or getattr(engine, "grid", None) or engine.mpu or {"dp": engine.dp_world_size}
    options.setdefault("first_step", getattr(engine, "global_steps", None))
    with profile(mesh=mesh, labels=labels, **options) as prof:
        patches = [Patch(engine, "save_checkpoint", partial(_in_phase, prof))]
        if hasattr(engine, "train_batch"):
            patches.append(Patch(engine, "train_batch", partial(_ending_a_step, prof, lambda: True)))
        else:
            patches.append(
                Patch(engine, "step", partial(_ending_a_step, prof, engine.is_gradient_accumulation_boundary))
            )
        try:
            yield prof
        finally:
            for patch in patches:
                patch.leave()


def _ending_a_step(
    prof: Profile, ends_accumulation: Callable[[], bool], method: Callable[..., Any]
) -> Callable[..., Any]:
    def ending_a_step(*args: Any, **kwargs: Any) -> Any:
        is_step = ends_accumulation()  # before it: the engine counts on inside
        result = method(*args, **kwargs)
        if is_step:
            prof.step()
        return result

    return ending_a_step


def _in_phase(prof: Profile, method: Callable[..., Any]) -> Callable[..., Any]:
    def in_phase(*args: Any, **kwargs: Any) -> Any:
        with prof.phase("checkpoint"):
            return method(*args, **kwargs)

    return in_phase
