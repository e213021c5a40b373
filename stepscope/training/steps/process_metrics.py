"""Process metrics of training steps: memory, garbage collections, compilations by torch.compile."""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from stepscope.training.steps.step_log import StepNotes
from stepscope.training.steps.telemetry import StepRecord

_MEMORY_INTERVAL_NS = 250_000_000
"""torch builds a hundred Python objects to report its allocator's state (some 50 us): 0.02 % of this interval."""

_MOST_BYTES = 160  # seven numbers of 64 bits


class MemoryFigures:
    """Adds memory figures to the training step that ends in each quarter of a second.

    GPU figures are those of torch's allocator on the current device, or on the first that this process uses where it
    does not use that one: `memory_allocated_bytes`, `memory_reserved_bytes`, `memory_peak_bytes` (most ever allocated,
    or since the training code reset it),
    `num_alloc_retries` (times it had to free its caches to satisfy an allocation), `num_ooms`.
    `host_memory_bytes` is what this process alone has resident: pages of files, as of memory-mapped data, and of memory
    shared with other processes are the kernel's and theirs too.
    """

    def __init__(self) -> None:
        self._sampled_ns = 0
        self._page_bytes = os.sysconf("SC_PAGE_SIZE")
        self._statm = -1
        with suppress(OSError):  # no Linux, or /proc is hidden
            self._statm = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)

    def steps_ended(self, records: Sequence[StepRecord]) -> None:
        record = records[-1]  # memory is what it is now
        if abs(record.end_ns - self._sampled_ns) < _MEMORY_INTERVAL_NS:  # sampling goes on after a clock was set back
            return
        self._sampled_ns = record.end_ns
        for name, value in (_device_memory() | self._host_memory()).items():
            record.figures.setdefault(name, value)

    def close(self) -> None:
        statm, self._statm = self._statm, -1
        if statm >= 0:
            os.close(statm)

    def __del__(self) -> None:
        """Closed when the run that it belongs to is forgotten."""
        self.close()

    def _host_memory(self) -> dict[str, int]:
        if self._statm < 0:
            return {}
        resident, shared = map(int, os.pread(self._statm, _MOST_BYTES, 0).split()[1:3])
        return {"host_memory_bytes": (resident - shared) * self._page_bytes}


def _device_memory() -> dict[str, int]:
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return {}
    stats = _stats(torch.cuda)
    allocated, reserved = stats["allocated_bytes"]["all"], stats["reserved_bytes"]["all"]
    return {
        "memory_allocated_bytes": allocated["current"],
        "memory_reserved_bytes": reserved["current"],
        "memory_peak_bytes": allocated["peak"],
        "num_alloc_retries": stats["num_alloc_retries"],
        "num_ooms": stats["num_ooms"],
    }


def _stats(cuda: Any) -> Any:
    current = cuda.current_device()
    devices = [current, *(device for device in range(cuda.device_count()) if device != current)]
    for device in devices:
        stats = cuda.memory_stats_as_nested_dict(device)  # memory_stats flattens and sorts this in Python as well
        if stats["reserved_bytes"]["all"]["peak"]:
            return stats
    return cuda.memory_stats_as_nested_dict(current)


class GcPauses:
    """Adds `gc_pause_ns` to the training steps in which the garbage collector ran, which stops all threads."""

    def __init__(self, running_step: Callable[[], int] = lambda: 0) -> None:
        self._started_ns = 0
        self._pauses = StepNotes[int](running_step)
        gc.callbacks.append(self._collecting)

    def steps_ended(self, records: Sequence[StepRecord]) -> None:
        for record, pauses in self._pauses.of(records):
            record.figures["gc_pause_ns"] = sum(pauses)

    def close(self) -> None:
        gc.callbacks.remove(self._collecting)

    def _collecting(self, phase: str, _: dict[str, int]) -> None:
        now_ns = time.perf_counter_ns()
        if phase == "start":
            self._started_ns = now_ns
        elif self._started_ns:
            self._pauses.add(now_ns - self._started_ns)
            self._started_ns = 0


class Compilations:
    """Adds `num_compilations` and `compile_ns` to the training steps in which torch.compile compiled.

    One that begins within another is part of it. Nothing is imported for it: until the training code does, nothing
    compiles.
    """

    def __init__(self, running_step: Callable[[], int] = lambda: 0) -> None:
        self._handler: Any = None
        self._started_ns = 0
        self._times = StepNotes[int](running_step)
        self.look()

    def steps_ended(self, records: Sequence[StepRecord]) -> None:
        for record, times in self._times.of(records):
            record.num_compilations, record.compile_ns = len(times), sum(times)

    def close(self) -> None:
        handler, self._handler = self._handler, None
        if handler is not None:
            with suppress(ValueError):  # torch._dynamo.reset() has removed it
                handler.start_callbacks.remove(self._started)
                handler.end_callbacks.remove(self._ended)

    def look(self) -> None:
        """Have torch call, once it has what calls, and again after torch._dynamo.reset()."""
        if self._handler is None:
            module = sys.modules.get("torch._dynamo.callback")
            handler = getattr(module, "callback_handler", None)
            if not hasattr(handler, "start_callbacks") or not hasattr(handler, "end_callbacks"):
                return  # an older torch, or one that is still being imported
            self._handler = handler
        if self._started not in self._handler.start_callbacks:
            self._handler.start_callbacks.append(self._started)
            self._handler.end_callbacks.append(self._ended)

    def _started(self, *_: object) -> None:
        self._started_ns = time.perf_counter_ns()

    def _ended(self, *_: object) -> None:
        if self._started_ns:
            self._times.add(time.perf_counter_ns() - self._started_ns)
            self._started_ns = 0
