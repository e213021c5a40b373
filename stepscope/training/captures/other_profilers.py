"""Is another torch profiler at work in this process, or about to begin?

Only one torch profiler can record a process. A second one silently takes the recording over, and a profiler whose
recording was taken ends the process with a segmentation fault when it exports. So ours never starts beside another, and
steps aside when another begins.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from stepscope.training.steps.wrapping import Wrapping

_BEGINNINGS = ("_prepare_trace", "_start_trace")
"""Methods of torch's profiler with which another one begins."""


def is_recording() -> bool:
    """Whether any torch profiler records this process."""
    import torch

    return bool(torch._C._autograd._profiler_enabled())


def refuse_second() -> None:
    """Raises RuntimeError while a torch profiler records this process."""
    if is_recording():
        raise RuntimeError("another torch profiler is recording this process; only one can")


class BeginWatch:
    """Calls `about_to_begin` before any torch profiler begins, on its thread, as long as it watches."""

    def __init__(self, about_to_begin: Callable[[], None]) -> None:
        self._about_to_begin = about_to_begin
        self._wrappings: list[Wrapping] = []

    def start(self) -> None:
        """Watch, if not watching already."""
        if self._wrappings:
            return
        from torch.autograd.profiler import profile

        self._wrappings = [Wrapping(profile, name, self._watched) for name in _BEGINNINGS if name in vars(profile)]

    def stop(self) -> None:
        """Leave torch as it was, unless someone has wrapped our wrapper."""
        wrappings, self._wrappings = self._wrappings, []
        for wrapping in wrappings:
            wrapping.leave()

    def _watched(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def begin(other: Any, *args: Any, **kwargs: Any) -> Any:
            if self._wrappings:
                with suppress(Exception):  # as of a log handler; another's profiler must never be hurt
                    self._about_to_begin()
            return original(other, *args, **kwargs)

        return begin
