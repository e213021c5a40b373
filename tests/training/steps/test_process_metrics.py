"""Process metrics: memory figures are right, and queried only a few times per second."""

from __future__ import annotations

import mmap
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stepscope.training.steps.process_metrics import Compilations, MemoryFigures
from stepscope.training.steps.telemetry import StepRecord

_MS = 1_000_000
_STATS = {  # the shape of torch.cuda.memory_stats_as_nested_dict()
    "allocated_bytes": {"all": {"current": 700, "peak": 900, "allocated": 5000, "freed": 4300}},
    "reserved_bytes": {"all": {"current": 1000, "peak": 1200, "allocated": 1200, "freed": 200}},
    "num_alloc_retries": 2,
    "num_ooms": 1,
}


def _figures(memory: MemoryFigures, at_ms: int, **given: float) -> dict[str, int | float]:
    record = StepRecord(0, 0, 10**18 + at_ms * _MS, figures={**given})
    memory.steps_ended([record])
    return record.figures


def test_the_allocators_figures_are_those_of_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    unused = _STATS | {"reserved_bytes": {"all": {"current": 0, "peak": 0}}}
    cuda = SimpleNamespace(
        is_initialized=lambda: True,
        current_device=lambda: 0,  # never set, as the training loop names its devices itself
        device_count=lambda: 4,
        memory_stats_as_nested_dict=lambda device: _STATS if device == 2 else unused,
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    figures = _figures(MemoryFigures(), 0, memory_peak_bytes=5.0)
    figures.pop("host_memory_bytes", None)
    assert figures == {
        "memory_allocated_bytes": 700,
        "memory_reserved_bytes": 1000,
        "memory_peak_bytes": 5.0,  # what the training loop says stays
        "num_alloc_retries": 2,
        "num_ooms": 1,
    }


def test_a_process_without_cuda_has_host_memory_alone() -> None:
    figures = _figures(MemoryFigures(), 0)
    assert set(figures) == {"host_memory_bytes"}
    # fresh pages: a large process has freed enough to satisfy an allocation without any
    with mmap.mmap(-1, 64 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as ballast:
        ballast.write(bytes(64 << 20))
        grown_bytes = _figures(MemoryFigures(), 0)["host_memory_bytes"] - figures["host_memory_bytes"]
    assert (32 << 20) < grown_bytes < (160 << 20)


def test_pages_of_a_file_are_not_the_processs_own(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(bytes(64 << 20))
    before = _figures(MemoryFigures(), 0)["host_memory_bytes"]
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        assert sum(data[::4096]) == 0  # every page is resident now
        grown = _figures(MemoryFigures(), 0)["host_memory_bytes"] - before
    assert abs(grown) < (16 << 20)


def test_memory_is_asked_for_at_most_every_quarter_of_a_second() -> None:
    memory = MemoryFigures()
    times_ms = [0, 100, 249, 250, 400, 500, -60_000, -59_900]  # then a clock set back by a minute
    assert [bool(_figures(memory, at_ms)) for at_ms in times_ms] == [True, False, False, True, False, True, True, False]


class _Handler:
    """torch's handler of compilations, as far as it is used."""

    def __init__(self) -> None:
        self.start_callbacks: list[Any] = []
        self.end_callbacks: list[Any] = []

    def compile(self, seconds: float = 0.001) -> None:
        for callback in self.start_callbacks:
            callback("arguments")
        time.sleep(seconds)
        for callback in self.end_callbacks:
            callback()  # an older torch gives none


def _compiled(compilations: Compilations) -> tuple[int, int]:
    record = StepRecord(0, 0, 1)
    compilations.steps_ended([record])
    compilations.look()
    return record.num_compilations, record.compile_ns


def test_compilations_of_a_step_are_counted_also_where_torch_compiles_late_or_is_reset(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "torch._dynamo.callback", raising=False)
    compilations, handler = Compilations(), _Handler()
    assert _compiled(compilations) == (0, 0)
    monkeypatch.setitem(sys.modules, "torch._dynamo.callback", SimpleNamespace(callback_handler=handler))
    assert _compiled(compilations) == (0, 0)
    handler.compile()
    handler.compile()
    num, spent_ns = _compiled(compilations)
    assert num == 2
    assert 2 * _MS <= spent_ns < 1000 * _MS
    assert _compiled(compilations) == (0, 0)
    handler.start_callbacks.clear()
    handler.end_callbacks.clear()
    assert _compiled(compilations) == (0, 0)
    handler.compile()
    assert _compiled(compilations)[0] == 1
    compilations.close()
    assert (handler.start_callbacks, handler.end_callbacks) == ([], [])


def test_a_torch_without_callbacks_compiles_uncounted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch._dynamo.callback", SimpleNamespace())
    compilations = Compilations()
    assert _compiled(compilations) == (0, 0)
    compilations.close()


def test_torch_calls_for_a_compilation_and_a_recompilation() -> None:
    import torch

    compilations = Compilations()
    function = torch.compile(lambda tensor: tensor * 2, backend="eager")
    _compiled(compilations)  # from here on it listens: torch.compile imports what compiles
    function(torch.ones(3))
    num, spent_ns = _compiled(compilations)
    function(torch.ones(3))
    assert (num, spent_ns > 0, _compiled(compilations)) == (1, True, (0, 0))
    function(torch.ones(3, dtype=torch.int32))
    assert _compiled(compilations)[0] == 1
    compilations.close()
