"""Verification of a trace that a process wrote, read as a stream without building its events.

A trace can be empty, hold only imports, or another number of steps; only reading it shows that.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise

from stepscope.core.text.numbers import counted

_EVENT = b'"ph"'
_CATEGORY = re.compile(rb'"cat"\s*:\s*"([A-Za-z_]+)"')
_TIME = rb'\s*,\s*"pid"\s*:\s*[^,]+,\s*"tid"\s*:\s*[^,]+,\s*"ts"\s*:\s*(\d{1,18})(?:\.(\d{1,3}))?'
_OPTIMIZER_STEP = re.compile(rb'"cat"\s*:\s*"user_annotation"\s*,\s*"name"\s*:\s*"Optimizer\.step#[^"]*"' + _TIME)
_ITERATION_START = re.compile(rb'"name"\s*:\s*"Iteration Start: [^"]*"' + _TIME)
_BASE_TIME = re.compile(rb'"baseTimeNanoseconds"\s*:\s*(\d{1,19})')
_RANK = re.compile(rb'"distributedInfo"\s*:\s*\{[^{}]*"rank"\s*:\s*(\d{1,9})')
_MAX_EVENT_BYTES = 1 << 20
_MAX_HEAD_BYTES = 1 << 16
_TAIL_BYTES = 1 << 10
_WORK_CATEGORIES = ("cpu_op", "kernel", "gpu_memcpy", "gpu_memset", "cuda_runtime")


@dataclass(frozen=True, slots=True)
class TraceSummary:
    """Content of a trace.

    Attributes:
        num_bytes: as written, not compressed.
        is_whole: it begins and ends as a JSON object does.
        num_events: by category ("cpu_op", "python_function").
        begin_ns: start of the recording, in a step's last instant; ns since the epoch, None if unknown.
        step_ends_ns: starts of the optimizer's calls, which end the steps, ns since the epoch, ascending.
        rank: of distributedInfo, None without.
    """

    num_bytes: int
    is_whole: bool
    num_events: dict[str, int]
    begin_ns: int | None
    step_ends_ns: tuple[int, ...]
    rank: int | None

    @property
    def step_seconds(self) -> float | None:
        """Median duration of a step; None if unknown."""
        ends = self.step_ends_ns if self.begin_ns is None else (self.begin_ns, *self.step_ends_ns)
        between = sorted(b - a for a, b in pairwise(ends))
        return between[len(between) // 2] / 1e9 if between else None


def find_fault(summary: TraceSummary, num_steps: int) -> str | None:
    """Why a trace is not what was requested, one line; None when it is."""
    if not summary.is_whole:
        return f"the trace is cut short at {summary.num_bytes} bytes"
    if not any(summary.num_events.get(category) for category in _WORK_CATEGORIES):
        held = ", ".join(f"{count} {name}" for name, count in sorted(summary.num_events.items()))
        return f"the trace holds no operators ({held or 'no events at all'})"
    if len(summary.step_ends_ns) != num_steps:
        return f"the trace holds {counted(len(summary.step_ends_ns), 'optimizer step')} of {num_steps}"
    return None


@dataclass(slots=True)
class TraceReader:
    """Reads a trace block by block, with memory for one event, not for the file."""

    _rest: bytes = b""
    _head: bytes = b""
    _tail: bytes = b""
    _num_bytes: int = 0
    _num_events: Counter[bytes] = field(default_factory=Counter)
    _begins: list[int] = field(default_factory=list)
    _steps: list[int] = field(default_factory=list)

    def feed(self, block: bytes) -> None:
        """The next bytes of the file."""
        self._num_bytes += len(block)
        if len(self._head) < _MAX_HEAD_BYTES:
            self._head += block[: _MAX_HEAD_BYTES - len(self._head)]
        self._tail = (self._tail + block[-_TAIL_BYTES:])[-_TAIL_BYTES:]
        text = self._rest + block
        end = text.rfind(_EVENT)
        if end <= 0 and len(text) > _MAX_EVENT_BYTES:
            end = len(text)
        end = max(end, 0)
        self._take(text[:end])
        self._rest = text[end:]

    def summary(self) -> TraceSummary:
        """Summary of the blocks; the last call."""
        self._take(self._rest)
        ends = self._head + self._tail  # older libkineto writes both behind the events
        base, rank = _BASE_TIME.search(ends), _RANK.search(ends)
        base_ns = int(base[1]) if base else 0
        return TraceSummary(
            num_bytes=self._num_bytes,
            is_whole=self._head.lstrip().startswith(b"{") and self._tail.rstrip().endswith(b"}"),
            num_events={name.decode(): count for name, count in self._num_events.items()},
            begin_ns=base_ns + min(self._begins) if self._begins else None,
            step_ends_ns=tuple(sorted(base_ns + time for time in self._steps)),
            rank=int(rank[1]) if rank else None,
        )

    def _take(self, text: bytes) -> None:
        self._num_events.update(_CATEGORY.findall(text))
        self._steps += map(_nanoseconds, _OPTIMIZER_STEP.finditer(text))
        self._begins += map(_nanoseconds, _ITERATION_START.finditer(text))


def _nanoseconds(event: re.Match[bytes]) -> int:
    """Nanoseconds of an event's microseconds."""
    return int(event[1]) * 1000 + int((event[2] or b"0").ljust(3, b"0"))
