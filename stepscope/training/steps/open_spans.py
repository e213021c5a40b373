"""Which spans of ours are open in the trace, and so: what is the training loop in?"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable
from typing import Any

from stepscope.core.run_layout import PHASE_PREFIX

STEP_PREFIX = "ProfilerStep#"
DATA_SPAN = "prof.data"


class _Opened:
    """A span that is open; without torch's when nobody records it."""

    __slots__ = ("name", "span")

    def __init__(self, name: str, span: Any) -> None:
        self.name = name
        self.span = span


class OpenSpans:
    """Opens and closes spans that torch's profiler records; none of it raises.

    Args:
        is_on: whether spans are wanted.
        give_up: is told of what torch refuses.
    """

    def __init__(self, is_on: Callable[[], bool], give_up: Callable[[Exception], None]) -> None:
        self._is_on = is_on
        self._give_up = give_up
        self._make: Callable[[str], Any] | None = None
        self._open: list[_Opened] = []
        self.names: Callable[[], list[str]] = functools.partial(_names, self._open)
        """Those that are open, the outermost first; may be asked on any thread, and holds nothing but the list."""

    def begin(self) -> None:
        """From now on spans are opened."""
        self._make = _span_maker()

    def open(self, name: str) -> Any:
        """What closes it, or None when profiling is off or torch refuses."""
        if not self._is_on() or self._make is None:
            return None
        try:
            opened = _Opened(name, self._make(name))
            if opened.span is not None:
                opened.span.__enter__()
            self._open.append(opened)
        except Exception as error:  # training must never be hurt
            self._give_up(error)
            return None
        return opened

    def close(self, opened: Any) -> None:
        """Leave it, unless it is left already."""
        if opened not in self._open:  # None while measuring was off, or closed before another profiler began
            return
        self._open.remove(opened)
        try:
            if opened.span is not None:
                opened.span.__exit__(None, None, None)
        except Exception as error:  # training must never be hurt
            self._give_up(error)

    def close_all(self) -> None:
        """Leave all that are open, the innermost first."""
        for opened in reversed(self._open.copy()):
            self.close(opened)


def open_phases(spans: Iterable[str]) -> list[str]:
    """The phases among these spans, by their names, in the same order."""
    return [name.removeprefix(PHASE_PREFIX) for name in spans if name.startswith(PHASE_PREFIX)]


def _span_maker() -> Callable[[str], Any]:
    """torch's record_function, or None while no profiler records this thread: it costs 6 us a span for nothing then.

    A daemon's traces begin unseen, so where one may ask for them spans are always made.
    """
    from torch.profiler import record_function

    try:
        from torch._C._autograd import _profiler_enabled
    except ImportError:  # an older torch
        return record_function
    if os.environ.get("KINETO_USE_DAEMON"):
        return record_function
    return lambda name: record_function(name) if _profiler_enabled() else None


def _names(spans: list[_Opened]) -> list[str]:
    return [opened.name for opened in spans.copy()]
