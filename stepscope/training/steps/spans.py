"""Spans in the trace: `prof.data`, `prof.phase` and steps, timed without changing what the user's code does.

`prof.step()` marks the end of a step. `with prof.step():` cannot mean more: the call comes before the block, when it is
not yet known that a block follows, so it has to end the step that ran. `StepMark` makes such a block harmless.
"""

from __future__ import annotations

import copy
import functools
import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from stepscope.core.documents.run_directory import PHASE_PREFIX
from stepscope.core.loader_waits import Instant, Interval

logger = logging.getLogger(__name__)


S = TypeVar("S")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SpanRecorder:
    """What a span of `prof.data` or `prof.phase` does to the outside; none of it may raise.

    Attributes:
        open_span: opens a span of this name in the trace; returns what closes it, or None when measuring is off.
        close_span: closes it.
        now: the current instant.
        count_data_wait: called with the interval in which the loop waited for data.
        count_phase: called with a phase's name and its interval.
    """

    open_span: Callable[[str], Any]
    close_span: Callable[[Any], None]
    now: Callable[[], Instant]
    count_data_wait: Callable[[Interval], None]
    count_phase: Callable[[str, Interval], None]

    def wait(self, ask: Callable[[S], T], source: S) -> T:
        """What `ask` answers, `next` or `iter`, timed; exceptions, StopIteration among them, pass through unchanged."""
        span = self.open_span(DATA_SPAN)
        began = self.now()
        try:
            return ask(source)
        finally:
            self.count_data_wait((began, self.now()))
            self.close_span(span)


def wrap_data(loader: Iterable[T], recorder: SpanRecorder) -> Iterable[T]:
    """A data loader with timed waits (`prof.data`): an iterator stays an iterator, a sequence can still be indexed."""
    return (IteratorSpans if hasattr(type(loader), "__next__") else DataSpans)(loader, recorder)


class DataSpans(Generic[T]):
    """A data loader whose waits are timed; everything else (len, [], sampler, ...) is the loader's own."""

    def __init__(self, loader: Iterable[T], recorder: SpanRecorder) -> None:
        self._loader = loader
        self._recorder = recorder

    def __iter__(self) -> Iterator[T]:
        batches = self._recorder.wait(iter, self._loader)  # starting workers takes its time
        while True:
            try:
                batch = self._recorder.wait(next, batches)
            except StopIteration:
                return
            yield batch

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]  # a loader without a length raises itself

    def __getitem__(self, index: Any) -> Any:
        return self._loader[index]  # type: ignore[index]  # a loader that cannot be indexed raises itself

    def __bool__(self) -> bool:
        return bool(self._loader)  # a generator is true, and asking for its length would raise

    def __getattr__(self, name: str) -> Any:
        # Protocols look for underscored names, also before __init__ has run; those are not the loader's to answer.
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self._loader, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            super().__setattr__(name, value)
        else:
            setattr(self._loader, name, value)

    def __delattr__(self, name: str) -> None:
        if name.startswith("_"):
            super().__delattr__(name)
        else:
            delattr(self._loader, name)

    def __copy__(self) -> Any:
        return type(self)(copy.copy(self._loader), self._recorder)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return type(self)(copy.deepcopy(self._loader, memo), self._recorder)

    def __reduce__(self) -> tuple[Callable[[Any], Any], tuple[Any]]:
        return _itself, (self._loader,)  # another process has no run to count for; it gets the loader


class IteratorSpans(DataSpans[T]):
    """A data loader whose waits are timed and that is an iterator already."""

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        return self._recorder.wait(next, self._loader)  # type: ignore[arg-type]  # wrap_data saw its __next__


class PhaseSpan:
    """With block of `prof.phase` in the training loop; exceptions inside pass through unchanged."""

    def __init__(self, name: str, recorder: SpanRecorder) -> None:
        self._name = name
        self._recorder = recorder
        self._span: Any = None
        self._began: Instant | None = None

    def __enter__(self) -> None:
        self._span = self._recorder.open_span(f"{PHASE_PREFIX}{self._name}")
        self._began = self._recorder.now()

    def __exit__(self, *error: object) -> None:
        if self._began is not None:
            self._recorder.count_phase(self._name, (self._began, self._recorder.now()))
        self._recorder.close_span(self._span)


def is_compiling() -> bool:
    """In the training process, spans of a step: whether torch traces this call into a graph.

    In a graph nothing can be timed. To torch's compiler the answer is a constant.
    """
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.compiler.is_compiling())


def _itself(loader: Any) -> Any:
    return loader


STEP_PREFIX = "ProfilerStep#"
DATA_SPAN = "prof.data"


class _OpenSpan:
    """Open span, with torch's own mark only while a profiler records."""

    __slots__ = ("name", "span")

    def __init__(self, name: str, span: Any) -> None:
        self.name = name
        self.span = span


class OpenSpans:
    """Opens and closes spans of the training loop that torch's profiler records; none of it raises.

    Args:
        is_on: whether spans are wanted.
        give_up: called with an error of torch.
    """

    def __init__(self, is_on: Callable[[], bool], give_up: Callable[[Exception], None]) -> None:
        self._is_on = is_on
        self._give_up = give_up
        self._make: Callable[[str], Any] | None = None
        self._open: list[_OpenSpan] = []
        self.names: Callable[[], list[str]] = functools.partial(_names, self._open)
        """Those that are open, the outermost first; may be asked on any thread, and holds nothing but the list."""

    def begin(self) -> None:
        self._make = _span_maker()

    def open(self, name: str) -> Any:
        """What closes it, or None when profiling is off or torch refuses."""
        if not self._is_on() or self._make is None:
            return None
        try:
            opened = _OpenSpan(name, self._make(name))
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
    """The phases among the open spans of a step, by their names, in the same order."""
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


def _names(spans: list[_OpenSpan]) -> list[str]:
    return [opened.name for opened in spans.copy()]


class StepMark:
    """Result of `prof.step()`: the call has ended the step; a with block around it logs one warning."""

    __slots__ = ("_is_quiet",)

    def __init__(self, *, is_quiet: bool) -> None:
        self._is_quiet = is_quiet

    def __enter__(self) -> StepMark:
        if not self._is_quiet:
            self._is_quiet = True
            logger.warning(
                "`with prof.step():` ended the step before its block, not the block: steps now run from one such call"
                " to the next; call prof.step() once after each optimizer step instead"
            )
        return self

    def __exit__(self, *error: object) -> None:
        """Nothing: exceptions pass through unchanged."""
