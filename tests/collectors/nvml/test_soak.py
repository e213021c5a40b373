"""A long-running collector keeps only what it needs (others did not: dcgm-exporter#702, #292, #536, #609)."""

from __future__ import annotations

import gc
import tracemalloc
from pathlib import Path

import stepscope
from stepscope.collectors.nvml.collector import NvmlCollector
from tests.collectors.fake_nvml import profiles
from tests.collectors.fake_nvml.library import FakeNvml
from tests.collectors.nvml.reading_of import key_of

_PACKAGE = Path(stepscope.__file__).parent


def test_dcgm_exporter_702_memory_does_not_grow(nvml: FakeNvml) -> None:
    """With processes and MIG instances that come and go, XIDs, and a GPU that is lost and comes back."""
    nvml.add(profiles.h100(0))
    nvml.add({**profiles.h100(1), "mig_mode": 1})
    nvml.write()
    seconds = 0.0
    collector = NvmlCollector(clock=lambda: seconds)
    keys = [key_of(collector, index) for index in range(2)]
    instance = profiles.mig_instance(1, 0, gpu_instance=7)
    number = 0

    def rounds(count: int) -> None:
        nonlocal seconds, number
        for _ in range(count):
            number, seconds = number + 1, seconds + 1.0
            nvml.set(0, compute__count=1, compute__0__pid=number, compute__0__memory=number, xids=number)
            nvml.set(0, **{f"xid__{number}": 94, f"xid__{number - 50}": None})
            nvml.set(1, lost=1 if number % 20 == 0 else None)
            nvml.set(1, **(instance if number % 30 < 15 else dict.fromkeys(instance)))
            nvml.write()
            for key in keys:
                collector.sweep(key)

    def held() -> int:
        gc.collect()
        ours = [tracemalloc.Filter(True, pattern) for pattern in (f"{_PACKAGE}/*", "*/pynvml.py")]
        return sum(trace.size for trace in tracemalloc.take_snapshot().filter_traces(ours).traces)

    rounds(100)
    tracemalloc.start()
    try:
        rounds(60)
        before = held()
        rounds(600)
        assert held() - before < 15_000  # bytes in 10 minutes of fake time: 10,000 are the binding's, once
    finally:
        tracemalloc.stop()
