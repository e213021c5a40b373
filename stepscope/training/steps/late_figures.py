"""How are numbers that lie on the GPU read without ever making the host wait for it?

A number is copied to pinned memory behind the work that makes it, with an event behind the copy. Once the GPU has
passed the event, which costs a microsecond to ask, the number is read from the host's memory.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Collection, Mapping
from typing import Any, Protocol

logger = logging.getLogger(__name__)

Numbers = dict[str, int | float]

_NUM_SLOTS = 1024
_SLOT_BYTES = 8  # the widest real number


class DeviceCopies(Protocol):
    """What late reading needs of a device."""

    def holds(self, tensor: Any) -> bool:
        """Whether the tensor lies there."""

    def pinned(self, num_bytes: int) -> Any:
        """A tensor of this many bytes that the device can write to on its own."""

    def copy(self, slot: Any, tensor: Any) -> None:
        """Enqueue a copy behind the work that makes `tensor`, without waiting; both have one type and one element."""

    def event(self, tensor: Any) -> Any:
        """An event enqueued behind the copies from `tensor`'s device, with `query() -> bool`."""


class CudaCopies:
    """The same of torch.cuda (and of ROCm, which has its name)."""

    def holds(self, tensor: Any) -> bool:
        return bool(tensor.is_cuda)

    def pinned(self, num_bytes: int) -> Any:
        torch = sys.modules["torch"]
        return torch.empty(num_bytes, dtype=torch.uint8, device="cpu", pin_memory=True)

    def copy(self, slot: Any, tensor: Any) -> None:
        slot.copy_(tensor, non_blocking=True)  # of one type: torch converts on the host, before the bytes are there

    def event(self, tensor: Any) -> Any:
        cuda = sys.modules["torch"].cuda
        event = cuda.Event()
        event.record(cuda.current_stream(tensor.device))
        return event


class LateFigures:
    """Numbers of one step that are on their way to the host.

    Args:
        take_back: gets the places when nobody needs them any more; whether the device may still write is its question.
    """

    def __init__(
        self,
        slots: dict[str, Any],
        events: list[Any],
        take_back: Callable[[LateFigures], None],
        then: Callable[[Numbers], Numbers] | None,
    ) -> None:
        self.slots = slots
        self._events = events
        self._take_back = take_back
        self._then = then

    @property
    def names(self) -> Collection[str]:
        """Names of the numbers that are on their way."""
        return self.slots.keys()

    def are_there(self) -> bool:
        """Whether the GPU has passed them; True as well when it can never be told."""
        try:
            while self._events and self._events[-1].query():
                self._events.pop()
        except RuntimeError:  # a fault on the GPU, which is training's own to report
            logger.debug("late figures are lost", exc_info=True)
            self.slots.clear()
            self._events.clear()
        return not self._events

    def read(self) -> Numbers:
        """The numbers by name, once they are there; empty before, and from the second time on."""
        if self._events or not self.slots:
            return {}
        numbers = {name: view.item() for name, (_, view) in self.slots.items()}
        self._take_back(self)
        return numbers if self._then is None else self._then(numbers)

    def give_up(self) -> None:
        """Nobody will read them."""
        if self.slots:
            self._take_back(self)


class LateReader:
    """Copies numbers from the GPU, at most so many at a time as it has places: what finds none is left out."""

    def __init__(self, copies: DeviceCopies | None = None) -> None:
        self._copies = CudaCopies() if copies is None else copies
        self._memory: Any = None
        self._free: list[int] = []
        self._given_up: list[LateFigures] = []
        self._views: dict[tuple[int, Any], Any] = {}

    def takes(self, tensor: Any) -> bool:
        """Whether the tensor lies where this reads from."""
        return self._copies.holds(tensor)

    def take(self, tensors: Mapping[str, Any], then: Callable[[Numbers], Numbers] | None = None) -> LateFigures | None:
        """Start copying plain tensors of one element; None when there is no place for all.

        Args:
            tensors: by name, at least one on a GPU. What becomes of them afterwards does not matter.
            then: makes figures of the numbers once they are there; by default they are the figures.
        """
        if self._memory is None:  # page-locking memory takes a while and may wait for the GPU: once
            with _normal_mode():
                self._memory = self._copies.pinned(_NUM_SLOTS * _SLOT_BYTES)
            self._free = list(range(_NUM_SLOTS))
        if len(tensors) > len(self._free):
            self._reclaim()
        if len(tensors) > len(self._free):
            return None
        slots: dict[str, Any] = {}
        by_device: dict[Any, Any] = {}
        for name, tensor in tensors.items():
            tensor = tensor.detach()
            slot = self._free.pop()
            view = self._views.get((slot, tensor.dtype))
            if view is None:
                view = self._views[slot, tensor.dtype] = self._view(slot, tensor.dtype)
            slots[name] = (slot, view)
            self._copies.copy(view, tensor if tensor.dim() == 0 else tensor.reshape(()))
            if self._copies.holds(tensor):
                by_device[tensor.device] = tensor
        return LateFigures(slots, [self._copies.event(tensor) for tensor in by_device.values()], self._take_back, then)

    def _view(self, slot: int, dtype: Any) -> Any:
        start = slot * _SLOT_BYTES
        with _normal_mode():
            return self._memory[start : start + dtype.itemsize].view(dtype)[0]

    def _take_back(self, late: LateFigures) -> None:
        if late.are_there():
            self._free += [slot for slot, _ in late.slots.values()]
            late.slots = {}
        else:  # the device will still write there
            self._given_up.append(late)

    def _reclaim(self) -> None:
        given_up, self._given_up = self._given_up, []
        for late in given_up:
            self._take_back(late)


def _normal_mode() -> Any:
    """What is made in inference mode could be written in no other."""
    return sys.modules["torch"].inference_mode(False)
