"""Accelerate adapter: `accelerator.profile()` with a stepscope profile behind it.

    accelerator = Accelerator(kwargs_handlers=[kwargs_handler(run="my-run")])
    with accelerator.profile() as prof:
        for batch in prof.data(loader):
            with accelerator.accumulate(model):
                ...
            prof.step()

`prof.step()` may be called for every batch: batches that only accumulate gradients do not count as steps.
"""

from __future__ import annotations

from typing import Any

from accelerate.state import GradientState
from accelerate.utils import ProfileKwargs

from stepscope.training.entry_points import profile
from stepscope.training.profiling_session import Profile


class _StepsThatSync:
    """Profile whose step is a batch with which Accelerate ends an accumulation; otherwise the wrapped profile."""

    def __init__(self, prof: Profile) -> None:
        self._prof = prof

    def __enter__(self) -> _StepsThatSync:
        self._prof.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._prof.__exit__(*error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._prof, name)

    def step(self, /, **figures: object) -> None:
        """End the step if the optimizer has stepped."""
        if GradientState().sync_gradients:
            self._prof.step(**figures)


def kwargs_handler(**options: Any) -> ProfileKwargs:
    """Accelerate handler with which `accelerator.profile()` measures a training; options as of `stepscope.profile`."""
    handler = ProfileKwargs()
    # Not a subclass, as Accelerate looks handlers up by their very class.
    handler.build = lambda: _StepsThatSync(profile(**options))
    return handler
