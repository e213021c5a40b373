"""What is asked of a GPU, what is asked instead where that is not supported, and what is asked no more?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from stepscope.collectors.nvml.binding import Handle, Nvml, reason_of
from stepscope.collectors.nvml.gathering import Gathering
from stepscope.core.readings import MissingReason


@dataclass(frozen=True, slots=True)
class Query:
    """One call.

    Attributes:
        names: metrics that it tells, without the prefix of GPUs' metrics.
        ask: makes the call and adds what it tells.
        otherwise: what to ask where the GPU does not support it.
    """

    names: tuple[str, ...]
    ask: Callable[[Nvml, Handle, Gathering], None]
    otherwise: Query | None = None


def single(name: str, function: str, *arguments: int, scale: float = 1.0) -> Query:
    """A call that answers with one number.

    Args:
        name: of the metric.
        function: of the binding.
        arguments: after the handle.
        scale: what makes the answer a value in base units.
    """

    def ask(nvml: Nvml, handle: Handle, into: Gathering) -> None:
        into.add(name, getattr(nvml, function)(handle, *arguments), scale)

    return Query((name,), ask)


class QueryTable:
    """Queries of one GPU. One that is not supported is replaced by its other way or asked no more."""

    def __init__(self, queries: tuple[Query, ...]) -> None:
        self._queries = list(queries)
        self._unsupported: list[tuple[str, str]] = []

    def read(self, nvml: Nvml, handle: Handle, into: Gathering) -> None:
        """Ask everything once.

        Raises:
            DriverUnusableError, GpuUnusableError: there is no use in asking for more.
        """
        dropped = []
        for index, query in enumerate(self._queries):
            current: Query | None = query
            while current is not None:
                try:
                    current.ask(nvml, handle, into)
                    break
                except Exception as error:
                    reason, detail = reason_of(nvml, error)
                    if reason is not MissingReason.NOT_SUPPORTED:
                        for name in current.names:
                            into.miss(name, reason, detail)
                        break
                    if current.otherwise is None:
                        dropped.append(index)
                        self._unsupported += [(name, detail) for name in current.names]
                    else:
                        self._queries[index] = current.otherwise
                    current = current.otherwise
        for index in reversed(dropped):
            del self._queries[index]
        for name, detail in self._unsupported:
            into.miss(name, MissingReason.NOT_SUPPORTED, detail)
