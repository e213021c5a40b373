"""How are waits for data and named phases timed without changing what the user's code does?"""

from __future__ import annotations

import copy
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Generic, TypeVar

from stepscope.core.run_layout import PHASE_PREFIX
from stepscope.training.steps.open_spans import DATA_SPAN

S = TypeVar("S")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SpanRecorder:
    """What a span does to the outside; none of it may raise.

    Attributes:
        open_span: opens a span of this name in the trace; returns what closes it, or None when measuring is off.
        close_span: closes it.
        count_data_wait: is told how many ns the loop waited for data.
        count_phase: is told how many ns the phase of this name took.
    """

    open_span: Callable[[str], Any]
    close_span: Callable[[Any], None]
    count_data_wait: Callable[[int], None]
    count_phase: Callable[[str, int], None]

    def wait(self, ask: Callable[[S], T], source: S) -> T:
        """What `ask` answers, `next` or `iter`, timed; exceptions, StopIteration among them, pass through unchanged."""
        span = self.open_span(DATA_SPAN)
        started_ns = time.monotonic_ns()
        try:
            return ask(source)
        finally:
            self.count_data_wait(time.monotonic_ns() - started_ns)
            self.close_span(span)


def wrap_data(loader: Iterable[T], recorder: SpanRecorder) -> Iterable[T]:
    """`loader` with timed waits: an iterator stays an iterator, a sequence can still be indexed."""
    return (IteratorSpans if hasattr(type(loader), "__next__") else DataSpans)(loader, recorder)


class DataSpans(Generic[T]):
    """An iterable that yields what `loader` yields; everything else (len, [], sampler, ...) is the loader's own."""

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
        return len(self._loader)  # type: ignore[arg-type]  # a loader without a length says so itself

    def __getitem__(self, index: Any) -> Any:
        return self._loader[index]  # type: ignore[index]  # a loader that cannot be indexed says so itself

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
    """The same for a loader that is an iterator already."""

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        return self._recorder.wait(next, self._loader)  # type: ignore[arg-type]  # wrap_data saw its __next__


class PhaseSpan:
    """A with block of the training loop; exceptions inside pass through unchanged."""

    def __init__(self, name: str, recorder: SpanRecorder) -> None:
        self._name = name
        self._recorder = recorder
        self._span: Any = None
        self._started_ns = 0

    def __enter__(self) -> None:
        self._span = self._recorder.open_span(f"{PHASE_PREFIX}{self._name}")
        self._started_ns = time.monotonic_ns()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._recorder.count_phase(self._name, time.monotonic_ns() - self._started_ns)
        self._recorder.close_span(self._span)


class NoSpan(PhaseSpan):
    """A phase that nobody counts."""

    def __init__(self) -> None:
        pass

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        pass


def is_compiling() -> bool:
    """Whether torch traces this call into a graph, in which nothing can be timed; constant to its compiler."""
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.compiler.is_compiling())


def _itself(loader: Any) -> Any:
    return loader
