"""GPU runs are timed by the GPU's clock, back to back, and read only once all are done."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from stepscope.workflow.preflight.device import Pace, UnsupportedError
from stepscope.workflow.preflight.torch_device import CudaStopwatch, HostStopwatch, TorchDevice

_PACE = Pace(0.0, 0.0, 2, 3)


class _Gpu:
    """What is queued on it, and whether it was waited for."""

    def __init__(self) -> None:
        self.queue: list[str] = []
        self.is_done = False

    def event(self, *, enable_timing: bool) -> _Event:
        assert enable_timing
        return _Event(self)

    def synchronize(self) -> None:
        self.is_done = True


class _Event:
    def __init__(self, gpu: _Gpu) -> None:
        self._gpu = gpu
        self.place = -1

    def record(self) -> None:
        self.place = len(self._gpu.queue)
        self._gpu.queue.append("event")

    def elapsed_time(self, end: _Event) -> float:
        assert self._gpu.is_done
        assert end.place - self.place == 2
        return 1.5  # ms


def test_each_run_lies_between_two_events_that_are_read_after_all(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = _Gpu()
    monkeypatch.setattr(torch.cuda, "Event", gpu.event)
    monkeypatch.setattr(torch.cuda, "synchronize", gpu.synchronize)
    times = CudaStopwatch().times(lambda: gpu.queue.append("work"), 3)
    assert times == [0.0015] * 3
    assert gpu.queue == ["event", "work", "event"] * 3


def test_the_host_times_each_run() -> None:
    runs: list[int] = []
    times = HostStopwatch().times(lambda: runs.append(1), 4)
    assert len(runs) == len(times) == 4
    assert all(one >= 0 for one in times)


@pytest.fixture
def device() -> Iterator[TorchDevice]:
    before = torch.get_float32_matmul_precision()
    yield TorchDevice("cpu")
    torch.set_float32_matmul_precision(before)


def test_a_copy_that_arrives_wrong_is_counted(device: TorchDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    timing = device.copy(4096, _PACE)
    assert (timing.num_runs, timing.num_wrong) == (2, 0)
    real = torch.Tensor.copy_

    def damaging(target: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
        real(target, source, non_blocking)
        target[17] ^= 1
        return target

    monkeypatch.setattr(torch.Tensor, "copy_", damaging)
    assert device.copy(4096, _PACE).num_wrong == 4


def test_what_the_cpu_does_not_have_is_unsupported(device: TorchDevice) -> None:
    asks: tuple[Callable[[], object], ...] = (
        lambda: device.upload(4096, _PACE),
        lambda: device.download(4096, _PACE),
        lambda: device.copy_to_peer(0, 1, 4096, _PACE),
    )
    for ask in asks:
        with pytest.raises(UnsupportedError):
            ask()
