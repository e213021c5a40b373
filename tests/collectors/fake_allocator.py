"""An allocator that keeps books like torch's, and writes snapshots in torch's form."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from typing import Any

_FORWARD = ("_call_impl", "/lib/torch/nn/modules/module.py", 1), ("train", "train.py", 9)
_STEP = ("step", "/lib/torch/optim/adam.py", 2), ("train", "train.py", 11)
STACKS: dict[str, tuple[tuple[str, str, int], ...]] = {
    "forward": _FORWARD,
    "optimizer": _STEP,
    "backward": (("backward", "/lib/torch/_tensor.py", 3), ("train", "train.py", 10)),
    "engine": (),
    "init": (("__init__", "/lib/torch/nn/modules/linear.py", 4), ("build", "train.py", 2)),
    "reduce": (("all_reduce", "/lib/torch/distributed/distributed_c10d.py", 5),),
    "own": (("keep", "train.py", 20),),
}


@dataclass
class Allocator:
    """Segments of one GPU, each a row of blocks; time goes on by 10 us an event."""

    device: int = 0
    segments: dict[int, int] = field(default_factory=dict)
    blocks: dict[int, tuple[int, str]] = field(default_factory=dict)
    trace: list[dict[str, Any]] = field(default_factory=list)
    notes: list[dict[str, Any]] = field(default_factory=list)
    awaited: dict[int, int] = field(default_factory=dict)
    settings: str = ""
    time_us: int = 1_000_000

    def segment(self, address: int, size: int) -> None:
        """Memory from the driver."""
        self.segments[address] = size
        self._note("segment_alloc", address, size)

    def give_back(self, address: int) -> None:
        """The whole segment."""
        self._note("segment_free", address, self.segments.pop(address))

    def alloc(self, address: int, size: int, stack: str = "own") -> None:
        """A tensor's memory."""
        self.blocks[address] = size, stack
        self._note("alloc", address, size, stack)

    def free(self, address: int, *, completed: bool = True) -> None:
        """The tensor is gone; not `completed`: another stream still uses it."""
        size, stack = self.blocks.pop(address)
        self._note("free_requested", address, size, stack)
        if completed:
            self._note("free_completed", address, size, stack)
        else:
            self.awaited[address] = size

    def fail(self, size: int, free: int, stack: str = "forward") -> None:
        """An allocation that found no room."""
        self._note("oom", None, size, stack, device_free=free)

    def step_ends(self) -> None:
        """The optimizer's step."""
        self.time_us += 10
        name = "Optimizer.step#Adam.step"
        self.notes.append({"stage": "START", "name": name, "device": self.device, "time_us": self.time_us - 5})
        self.notes.append({"stage": "END", "name": name, "device": self.device, "time_us": self.time_us})

    @property
    def allocated(self) -> int:
        """By our own books."""
        return sum(size for size, _ in self.blocks.values())

    @property
    def reserved(self) -> int:
        """By our own books."""
        return sum(self.segments.values())

    def snapshot(self, newest: int = 100_000) -> dict[str, Any]:
        """As torch.cuda.memory._snapshot() gives it, with so many events."""
        traces: list[list[dict[str, Any]]] = [[] for _ in range(self.device)] + [self.trace[-newest:] if newest else []]
        return {
            "segments": [self._segment(address, size) for address, size in sorted(self.segments.items())],
            "device_traces": traces,
            "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": self.settings},
            "external_annotations": self.notes,
        }

    def pickled(self, protocol: int = 4, newest: int = 100_000) -> bytes:
        """The file."""
        return pickle.dumps(self.snapshot(newest), protocol)

    def _segment(self, address: int, size: int) -> dict[str, Any]:
        blocks, place = [], address
        mine = {at: block for at, block in self.blocks.items() if address <= at < address + size}
        waiting = {at: of for at, of in self.awaited.items() if address <= at < address + size}
        for at in sorted({*mine, *waiting}):
            if at > place:
                blocks.append(_block(place, at - place, "inactive", "engine"))
            of, stack = mine.get(at, (waiting.get(at, 0), "engine"))
            blocks.append(_block(at, of, "active_allocated" if at in mine else "active_awaiting_free", stack))
            place = at + of
        if place < address + size:
            blocks.append(_block(place, address + size - place, "inactive", "engine"))
        return {"device": self.device, "address": address, "total_size": size, "is_expandable": False, "blocks": blocks}

    def _note(self, action: str, address: int | None, size: int, stack: str = "engine", **more: Any) -> None:
        self.time_us += 10
        place = {} if address is None else {"addr": address}
        self.trace.append(
            {
                "action": action,
                **place,
                "size": size,
                "stream": 0,
                "time_us": self.time_us,
                "frames": _frames(stack),
                **more,
            }
        )


def _block(address: int, size: int, state: str, stack: str) -> dict[str, Any]:
    return {"address": address, "size": size, "requested_size": size, "state": state, "frames": _frames(stack)}


def _frames(stack: str) -> list[dict[str, Any]]:
    return [{"name": name, "filename": file, "line": line} for name, file, line in STACKS[stack]]
