"""How are waits for data and named phases timed without changing what the user's code does?"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Any, Generic, TypeVar

T = TypeVar("T")

OpenSpan = Callable[[str], Any]
"""Opens a span of this name in the trace; returns what closes it, or None when measuring is off."""


class DataSpans(Generic[T]):
    """An iterable that yields what `loader` yields; everything else (len, sampler, ...) is the loader's own."""

    def __init__(self, loader: Iterable[T], open_span: OpenSpan, count_ns: Callable[[int], None]) -> None:
        self._loader = loader
        self._open_span = open_span
        self._count_ns = count_ns

    def __iter__(self) -> Iterator[T]:
        batches = iter(self._loader)
        while True:
            span = self._open_span("prof.data")
            started_ns = time.monotonic_ns()
            try:
                batch = next(batches)
            except StopIteration:
                return
            finally:
                self._count_ns(time.monotonic_ns() - started_ns)
                _close(span)
            yield batch

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]  # a loader without a length says so itself

    def __bool__(self) -> bool:
        return bool(self._loader)  # a generator is true, and asking for its length would raise

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


class PhaseSpan:
    """A with block of the training loop; exceptions inside pass through unchanged."""

    def __init__(self, name: str, open_span: OpenSpan, count_ns: Callable[[str, int], None]) -> None:
        self._name = name
        self._open_span = open_span
        self._count_ns = count_ns
        self._span: Any = None
        self._started_ns = 0

    def __enter__(self) -> None:
        self._span = self._open_span(f"prof.phase: {self._name}")
        self._started_ns = time.monotonic_ns()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._count_ns(self._name, time.monotonic_ns() - self._started_ns)
        _close(self._span)


def _close(span: Any) -> None:
    if span is not None:
        span.__exit__(None, None, None)
