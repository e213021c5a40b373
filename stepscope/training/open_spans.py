"""Which spans of ours are open in the trace, and so: what is the training loop in?"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

STEP_PREFIX = "ProfilerStep#"
DATA_SPAN = "prof.data"
PHASE_PREFIX = "prof.phase: "


class OpenSpans:
    """Opens and closes spans that torch's profiler records; none of it raises.

    Args:
        is_on: whether spans are wanted.
        give_up: is told of what torch refuses.
    """

    def __init__(self, is_on: Callable[[], bool], give_up: Callable[[Exception], None]) -> None:
        self._is_on = is_on
        self._give_up = give_up
        self._record_function: Callable[[str], Any] | None = None
        self._open: list[Any] = []
        self.names: Callable[[], list[str]] = functools.partial(_names, self._open)
        """Those that are open, the outermost first; may be asked on any thread, and holds nothing but the list."""

    def begin(self) -> None:
        """From now on spans are opened."""
        from torch.profiler import record_function

        self._record_function = record_function

    def open(self, name: str) -> Any:
        """An entered record_function, or None when profiling is off or torch refuses."""
        if not self._is_on() or self._record_function is None:
            return None
        try:
            span = self._record_function(name)
            span.__enter__()
            self._open.append(span)
        except Exception as error:  # training must never be hurt
            self._give_up(error)
            return None
        return span

    def close(self, span: Any) -> None:
        """Leave it, unless it is left already."""
        if span not in self._open:  # None while measuring was off, or closed before another profiler began
            return
        self._open.remove(span)
        try:
            span.__exit__(None, None, None)
        except Exception as error:  # training must never be hurt
            self._give_up(error)

    def close_all(self) -> None:
        """Leave all that are open, the innermost first."""
        for span in reversed(self._open.copy()):
            self.close(span)


def _names(spans: list[Any]) -> list[str]:
    return [str(span.name) for span in spans.copy()]
