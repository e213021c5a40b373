"""A CUDA allocator behind the few calls that are made of torch's, where no GPU is."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest

from stepscope.training.memory import snapshots

_BLOCK_BYTES = 512


@dataclass
class FakeDeviceMemory:
    """Its blocks are where tensors on the host really are, each rounded up as the allocator does."""

    tensors: list[Any] = field(default_factory=list)
    observers: list[Callable[[int, int, int, int], None]] = field(default_factory=list)
    awaiting: list[Callable[[], None]] = field(default_factory=list)
    is_in_use: bool = True
    history: bool = False

    def install(self, monkeypatch: pytest.MonkeyPatch) -> FakeDeviceMemory:
        monkeypatch.setattr(snapshots, "is_cuda_in_use", lambda: self.is_in_use)
        monkeypatch.setattr(snapshots, "when_cuda_is_used", self._await)
        monkeypatch.setattr(snapshots, "take_memory_snapshot", self.snapshot)
        monkeypatch.setattr(snapshots, "allocator_totals", lambda _: {"allocated_bytes": self.allocated_bytes()})
        monkeypatch.setattr(snapshots, "attach_oom_observer", self._attach)
        monkeypatch.setattr(snapshots, "begin_memory_history", lambda: self._set_history(True))
        monkeypatch.setattr(snapshots, "end_memory_history", lambda: self._set_history(False))
        monkeypatch.setattr("stepscope.training.memory.snapshots._is_observing", False)
        return self

    def begin_use(self) -> None:
        """What torch does at the first use of CUDA: what waits for it comes before CUDA counts as in use."""
        for begin in self.awaiting:
            begin()
        self.is_in_use = True

    def hold(self, tensors: Iterable[Any]) -> None:
        self.tensors += tensors

    def allocated_bytes(self) -> int:
        return sum(block["size"] for segment in self.snapshot()["segments"] for block in segment["blocks"])

    def snapshot(self) -> dict[str, Any]:
        places = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in self.tensors}
        return {
            "segments": [
                {
                    "device": 0,
                    "address": address,
                    "total_size": rounded,
                    "blocks": [
                        {"address": address, "size": rounded, "requested_size": num_bytes, "state": "active_allocated"}
                    ],
                }
                for address, num_bytes in sorted(places.items())
                for rounded in [-(-num_bytes // _BLOCK_BYTES) * _BLOCK_BYTES]
            ],
            "device_traces": [[]],
        }

    def run_out(self, requested_bytes: int) -> None:
        """What torch does when an allocation fails: observers first, then the error."""
        import torch

        for observer in self.observers:
            observer(0, requested_bytes, 80 << 30, 1 << 20)
        raise torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {requested_bytes} bytes.")

    def _await(self, begin: Callable[[], None]) -> bool:
        self.awaiting.append(begin)
        return True

    def _attach(self, observer: Callable[[int, int, int, int], None]) -> bool:
        self.observers.append(observer)
        return True

    def _set_history(self, on: bool) -> bool:
        self.history = on
        return True
