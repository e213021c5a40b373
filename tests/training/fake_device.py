"""A device behind the interface that reads deferred scalars: what is enqueued happens once the device gets to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class FakeDevice:
    """Holds the tensors it is told to hold; `run` lets it do all that is enqueued."""

    def __init__(self) -> None:
        self._held: dict[int, Any] = {}
        self._queue: list[Callable[[], None]] = []
        self.num_pinned = 0
        self.fault = False

    def hold(self, tensor: Any) -> Any:
        self._held[tensor.data_ptr()] = tensor  # kept, so that no other gets its place
        return tensor

    def run(self) -> None:
        for work in self._queue:
            work()
        self._queue.clear()

    def holds(self, tensor: Any) -> bool:
        return tensor.data_ptr() in self._held

    def pinned(self, num_bytes: int) -> Any:
        import torch

        self.num_pinned += 1
        return torch.full((num_bytes,), 0x55, dtype=torch.uint8)

    def copy(self, slot: Any, tensor: Any) -> None:
        assert (slot.dtype, slot.shape) == (tensor.dtype, tensor.shape)
        assert not tensor.requires_grad
        value = tensor.clone()
        self._queue.append(lambda: slot.copy_(value))

    def event(self, tensor: Any) -> Any:
        assert not tensor.requires_grad
        event = _Event(self)
        self._queue.append(event.passed)
        return event


class _Event:
    def __init__(self, device: FakeDevice) -> None:
        self._device = device
        self._is_passed = False

    def passed(self) -> None:
        self._is_passed = True

    def query(self) -> bool:
        if self._device.fault:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        return self._is_passed
