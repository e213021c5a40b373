"""Owners of the blocks in a CUDA memory snapshot: parameters, gradients, optimizer state, or other."""

from __future__ import annotations

import gc
import sys
import weakref
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

PARAMETERS, GRADIENTS, OPTIMIZER, OTHER = "parameters", "gradients", "optimizer", "other"

Storages = dict[str, list[tuple[int, int]]]
"""By category: (address, bytes) of each storage."""


class MemoryOwners:
    """Owners of GPU memory: the models and optimizers of this process, referred to weakly."""

    def __init__(self) -> None:
        self._modules: weakref.WeakSet[Any] = weakref.WeakSet()
        self._optimizers: weakref.WeakSet[Any] = weakref.WeakSet()

    def watch(self, model: Any) -> None:
        """Count a module's parameters and buffers, also those that no optimizer has."""
        with suppress(TypeError):  # something that cannot be referred to weakly
            self._modules.add(model)

    def modules(self) -> list[Any]:
        """The watched modules that are still there."""
        return list(self._modules)

    def storages(self) -> Storages:
        """Where parameters (with buffers), gradients and optimizer state are now.

        Optimizers are found among all Python objects once, which takes some 0.1 s; a hook of torch's would cost each
        step something and break graphs that include the optimizer.
        """
        if not self._optimizers:
            self._find_optimizers()
        parameters = {id(each): each for each in self._parameters()}.values()
        found: Storages = {PARAMETERS: [], GRADIENTS: [], OPTIMIZER: []}
        for parameter in parameters:
            found[PARAMETERS] += _storages(parameter)
            found[GRADIENTS] += _storages(getattr(parameter, "grad", None))
        for module in tuple(self._modules):
            for buffer in module.buffers():
                found[PARAMETERS] += _storages(buffer)
        for optimizer in tuple(self._optimizers):
            for state in tuple(optimizer.state.values()):
                found[OPTIMIZER] += [storage for tensor in _tensors_in(state) for storage in _storages(tensor)]
        return found

    def _parameters(self) -> Iterator[Any]:
        for module in tuple(self._modules):
            yield from module.parameters()
        for optimizer in tuple(self._optimizers):
            for group in tuple(optimizer.param_groups):
                yield from group["params"]

    def _find_optimizers(self) -> None:
        torch = sys.modules.get("torch")
        if torch is None:
            return
        kind = torch.optim.Optimizer
        for each in gc.get_objects():
            if issubclass(type(each), kind):  # asking a lazy object itself for its class could wake it
                self._optimizers.add(each)


def blocks_by_owner(snapshot: Mapping[str, Any], storages: Storages) -> dict[str, dict[str, Any]]:
    """In the training process, memory: a CUDA snapshot's used blocks by owner.

    The owners: parameters, gradients, optimizer state, other.

    Args:
        snapshot: torch's memory snapshot.
        storages: of the known tensors; a storage outside the snapshot, such as one on the host, is counted
            separately.

    Returns:
        By category `bytes` (of its blocks), `addresses` (of its blocks, ascending) and `outside_bytes`; "other" holds
        what remains of the blocks in use, without addresses.
    """
    blocks = sorted(_blocks_in_use(snapshot))
    starts = [address for address, _ in blocks]
    owner: dict[int, str] = {}
    outside = dict.fromkeys(storages, 0)
    for category, places in storages.items():
        for address, num_bytes in set(places):
            at = bisect_right(starts, address) - 1
            if at >= 0 and address < starts[at] + blocks[at][1]:
                owner.setdefault(starts[at], category)
            else:
                outside[category] += num_bytes
    sizes = dict(blocks)
    found: dict[str, dict[str, Any]] = {}
    for category in storages:
        addresses = sorted(address for address, of in owner.items() if of == category)
        found[category] = {
            "bytes": sum(sizes[address] for address in addresses),
            "outside_bytes": outside[category],
            "addresses": addresses,
        }
    found[OTHER] = {"bytes": sum(sizes.values()) - sum(sizes[address] for address in owner)}
    return found


def _blocks_in_use(snapshot: Mapping[str, Any]) -> Iterator[tuple[int, int]]:
    """(address, bytes); older snapshots give only the segment's address."""
    for segment in snapshot["segments"]:
        address = int(segment["address"])
        for block in segment["blocks"]:
            place = int(block.get("address", address))
            if block["state"] == "active_allocated":
                yield place, int(block["size"])
            address = place + int(block["size"])


def _tensors_in(state: Any) -> Iterator[Any]:
    if isinstance(state, Mapping):
        for value in tuple(state.values()):
            yield from _tensors_in(value)
    elif isinstance(state, (list, tuple)):
        for value in state:
            yield from _tensors_in(value)
    elif hasattr(state, "untyped_storage"):
        yield state


def _storages(tensor: Any) -> Iterable[tuple[int, int]]:
    """Of a tensor, also one that only wraps others, as DTensor and quantised ones do."""
    if tensor is None:
        return []
    local = getattr(tensor, "_local_tensor", None)
    if local is not None:
        return _storages(local)
    if hasattr(tensor, "__tensor_flatten__"):
        names, _ = tensor.__tensor_flatten__()
        return [storage for name in names for storage in _storages(getattr(tensor, name))]
    with suppress(RuntimeError, NotImplementedError):  # a tensor without storage
        storage = tensor.untyped_storage()
        if storage.nbytes():
            return [(storage.data_ptr(), storage.nbytes())]
    return []
