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
from time import monotonic_ns
from typing import Any, Generic, TypeVar

from stepscope.core.documents.run_directory import PHASE_PREFIX
from stepscope.training.steps.step_log import StepLog

logger = logging.getLogger(__name__)


S = TypeVar("S")
T = TypeVar("T")


class SpanRecorder:
    """What a span of `prof.data` or `prof.phase` does to the outside; none of it raises.

    Args:
        spans: opens it in the trace.
        log: takes its time.
    """

    __slots__ = ("log", "spans")

    def __init__(self, spans: OpenSpans, log: StepLog) -> None:
        self.spans = spans
        self.log = log

    def wait(self, ask: Callable[[S], T], source: S) -> T:
        """What `ask` answers, `next` or `iter`, timed; exceptions, StopIteration among them, pass through unchanged."""
        span = self.spans.open(DATA_SPAN)
        began_ns, mark = monotonic_ns(), self.log.mark()
        try:
            return ask(source)
        finally:
            self.log.add(None, began_ns, mark)
            self.spans.close(span)


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

    __slots__ = ("_began_ns", "_mark", "_name", "_recorder", "_span")

    def __init__(self, name: str, recorder: SpanRecorder) -> None:
        self._name = name
        self._recorder = recorder

    def __enter__(self) -> None:
        self._span = self._recorder.spans.open(f"{PHASE_PREFIX}{self._name}")
        self._began_ns, self._mark = monotonic_ns(), self._recorder.log.mark()

    def __exit__(self, *error: object) -> None:
        self._recorder.log.add(self._name, self._began_ns, self._mark)
        self._recorder.spans.close(self._span)


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
        give_up: called with an error of torch.

    Attributes:
        names: of those that are open, the outermost first; may be asked on any thread, and holds nothing but the list.
        are_recorded: whether a profiler records this thread. Else torch has no part in them, as it takes 6 us a span. A
            daemon's traces begin unseen, so where one may ask for them it always has.
    """

    def __init__(self, give_up: Callable[[Exception], None]) -> None:
        self._give_up = give_up
        self._is_on = False
        self._make: Any = None
        self._open: list[_OpenSpan] = []
        self.names: Callable[[], list[str]] = functools.partial(_names, self._open)
        self.are_recorded: Callable[[], bool] = lambda: False

    def begin(self) -> None:
        """From now on spans are wanted."""
        from torch.profiler import record_function

        self._make, self._is_on = record_function, True
        try:
            from torch._C._autograd import _profiler_enabled
        except ImportError:  # an older torch
            self.are_recorded = lambda: True
        else:
            self.are_recorded = (lambda: True) if os.environ.get("KINETO_USE_DAEMON") else _profiler_enabled

    def end(self) -> None:
        """From now on none is opened."""
        self._is_on = False

    def open(self, name: str) -> Any:
        """What closes it, or None when spans are not wanted or torch refuses."""
        if not self._is_on:
            return None
        try:
            span = None
            if self.are_recorded():
                span = self._make(name)
                span.__enter__()
            opened = _OpenSpan(name, span)
            self._open.append(opened)
        except Exception as error:  # training must never be hurt
            self._give_up(error)
            return None
        return opened

    def close(self, opened: Any) -> None:
        """Leave it, unless it is left already."""
        spans = self._open
        if spans and spans[-1] is opened:
            spans.pop()
        elif opened in spans:  # None while measuring was off, or closed before another profiler began
            spans.remove(opened)
        else:
            return
        if opened.span is not None:
            try:
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
