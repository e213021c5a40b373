"""Scalars given to `prof.step()`: which values are accepted, and how those on a GPU are read without waiting.

A scalar on a GPU is deferred: it is copied to pinned memory behind the work that makes it, with an event behind the
copy. Once the GPU has passed the event (a query costs a microsecond), the number is read from host memory.
"""

from __future__ import annotations

import logging
import numbers
import sys
from collections.abc import Callable, Collection, Mapping
from typing import Any, Protocol

from stepscope.training.steps.device_times import is_capturing_graph

logger = logging.getLogger(__name__)

_LARGEST = int(sys.float_info.max)
"""Whole numbers beyond have no place in arithmetic with floats: left out."""


class StepScalarReader:
    """Reader of the figures given to `prof.step`, which logs once what it leaves out."""

    def __init__(self, scalar_reader: DeviceScalarReader) -> None:
        self._scalar_reader = scalar_reader
        self._has_left_out = False

    def read(self, figures: Mapping[str, object]) -> tuple[dict[str, int | float], list[DeferredScalars]]:
        """The figures that are single numbers: those on the host, and those on their way from a GPU."""
        plain, on_device, left_out = split_scalars(figures, self._scalar_reader.takes)
        if left_out and not self._has_left_out:
            self._has_left_out = True
            kinds = ", ".join(f"{name} ({type(figures[name]).__name__})" for name in left_out)
            logger.warning("prof.step leaves out figures that are not single numbers: %s; give a float", kinds)
        deferred = self._scalar_reader.take(on_device) if on_device else None
        return plain, [] if deferred is None else [deferred]


def split_scalars(
    figures: Mapping[str, object], is_on_device: Callable[[Any], bool]
) -> tuple[dict[str, int | float], dict[str, Any], list[str]]:
    """Figures given to `prof.step` by kind: numbers, tensors on a GPU that hold one, and the names of what is neither.

    Taken: Python's and numpy's real numbers, arrays and tensors of no dimension, DTensors of which each rank holds
    the whole. Left out: other subclasses of tensors and other DTensors, as reading one may need the other ranks.
    """
    plain: dict[str, int | float] = {}
    on_device: dict[str, Any] = {}
    left_out: list[str] = []
    torch = sys.modules.get("torch")
    for name, value in figures.items():
        if type(value) is float or (type(value) is int and -_LARGEST <= value <= _LARGEST):
            plain[name] = value
        elif torch is None or not isinstance(value, torch.Tensor):
            number = _plain_number(value)
            if number is None:
                left_out.append(name)
            else:
                plain[name] = number
        elif (tensor := _scalar_tensor(torch, value)) is None:
            left_out.append(name)
        elif is_on_device(tensor):
            on_device[name] = tensor
        elif tensor.device.type == "cpu":
            plain[name] = tensor.item()
        else:
            left_out.append(name)
    return plain, on_device, left_out


def _scalar_tensor(torch: Any, value: Any) -> Any:
    """The plain tensor that holds this one real number; else None."""
    if type(value) is not torch.Tensor:
        value = _local_tensor(torch, value)
    return value if type(value) is torch.Tensor and value.dim() == 0 and not value.is_complex() else None


def _local_tensor(torch: Any, value: Any) -> Any:
    """This rank's part of a DTensor, when it is the whole and there already; else None."""
    module = sys.modules.get("torch.distributed.tensor")
    if module is None or not isinstance(value, module.DTensor):
        return None
    if not all(placement.is_replicate() for placement in value.placements):
        return None
    with torch.no_grad():
        return value.to_local()  # of a class of its own while its values are still on their way


def _plain_number(value: Any) -> int | float | None:
    # numpy's own interface: arrays on a device have another one.
    if hasattr(type(value), "__array_interface__") and value.shape == ():
        value = value.item()
    if isinstance(value, float):
        return value
    if isinstance(value, (int, numbers.Integral)):
        number = value if isinstance(value, int) else int(value)  # True and False stay what they are
        return number if -_LARGEST <= number <= _LARGEST else None
    if isinstance(value, numbers.Real):
        try:
            return float(value)
        except OverflowError:  # a fraction larger than any float
            return None
    return None


Numbers = dict[str, int | float]

_NUM_SLOTS = 1024
_SLOT_BYTES = 8  # the widest real number


class DeviceCopier(Protocol):
    """What reading a step's deferred scalars needs of a device."""

    def holds(self, tensor: Any) -> bool:
        """Whether the tensor is on this device."""

    def pinned(self, num_bytes: int) -> Any:
        """A tensor of this many bytes that the device can write to on its own."""

    def copy(self, slot: Any, tensor: Any) -> None:
        """Enqueue a copy behind the work that makes `tensor`, without waiting; both have one type and one element."""

    def event(self, tensor: Any) -> Any:
        """An event enqueued behind the copies from `tensor`'s device, with `query() -> bool`."""


class CudaCopier:
    """Copies a step's deferred scalars from CUDA devices (and ROCm's, which torch names so too)."""

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


class DeferredScalars:
    """Numbers of one training step that are on their way from the GPU to the host.

    Args:
        take_back: gets the slots back when they are no longer needed; it checks whether the device may still write.
    """

    def __init__(
        self,
        slots: dict[str, Any],
        events: list[Any],
        take_back: Callable[[DeferredScalars], None],
        then: Callable[[Numbers], Numbers] | None,
    ) -> None:
        self.slots = slots
        self._events = events
        self._take_back = take_back
        self._then = then

    @property
    def names(self) -> Collection[str]:
        return self.slots.keys()

    def are_there(self) -> bool:
        """Whether the GPU has written them; also True where that can never be known."""
        if self._events and is_capturing_graph():
            return False
        try:
            while self._events and self._events[-1].query():
                self._events.pop()
        except RuntimeError:  # a fault on the GPU, which is training's own to report
            logger.debug("deferred scalars are lost", exc_info=True)
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


class DeviceScalarReader:
    """Reads a step's scalars from the GPU, at most so many at a time as it has places: what finds none is left out."""

    def __init__(self, copies: DeviceCopier | None = None) -> None:
        self._copies = CudaCopier() if copies is None else copies
        self._memory: Any = None
        self._free: list[int] = []
        self._given_up: list[DeferredScalars] = []
        self._views: dict[tuple[int, Any], Any] = {}

    def takes(self, tensor: Any) -> bool:
        """Whether the tensor is on a device that this reads from."""
        return self._copies.holds(tensor)

    def take(
        self, tensors: Mapping[str, Any], then: Callable[[Numbers], Numbers] | None = None
    ) -> DeferredScalars | None:
        """Start copying plain tensors of one element; None when there are not enough slots, or a graph is captured.

        Args:
            tensors: by name, at least one on a GPU. What becomes of them afterwards does not matter.
            then: makes figures of the numbers once they are there; by default they are the figures.
        """
        if is_capturing_graph():  # the graph would write the numbers again whenever it runs
            return None
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
        return DeferredScalars(
            slots, [self._copies.event(tensor) for tensor in by_device.values()], self._take_back, then
        )

    def _view(self, slot: int, dtype: Any) -> Any:
        start = slot * _SLOT_BYTES
        with _normal_mode():
            return self._memory[start : start + dtype.itemsize].view(dtype)[0]

    def _take_back(self, deferred: DeferredScalars) -> None:
        if deferred.are_there():
            self._free += [slot for slot, _ in deferred.slots.values()]
            deferred.slots = {}
        else:  # the device will still write there
            self._given_up.append(deferred)

    def _reclaim(self) -> None:
        given_up, self._given_up = self._given_up, []
        for deferred in given_up:
            self._take_back(deferred)


def _normal_mode() -> Any:
    """What is made in inference mode could be written in no other."""
    return sys.modules["torch"].inference_mode(False)
