"""Memory owners: parameters, gradients and optimizer state are found in a snapshot, to the block."""

from __future__ import annotations

import gzip
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.training.memory.owners import MemoryOwners, blocks_by_owner
from tests.training.fake_device_memory import FakeDeviceMemory

torch = pytest.importorskip("torch")


def _trained() -> tuple[Any, Any]:
    model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.BatchNorm1d(32), torch.nn.Linear(32, 8))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(4, 64)).sum().backward()
    optimizer.step()
    return model, optimizer


def _rounded(tensors: Any) -> int:
    return sum(-(-tensor.nbytes // 512) * 512 for tensor in tensors)


def test_a_trained_models_blocks_are_told_apart() -> None:
    model, optimizer = _trained()
    parameters, buffers = list(model.parameters()), list(model.buffers())
    state = [value for each in optimizer.state.values() for value in each.values()]
    activations = [torch.ones(1000), torch.ones(3)]
    memory = FakeDeviceMemory()
    memory.hold([*parameters, *buffers, *(each.grad for each in parameters), *state, *activations])
    owners = MemoryOwners()
    owners.watch(model)
    found = blocks_by_owner(memory.snapshot(), owners.storages())
    assert found["parameters"]["bytes"] == _rounded([*parameters, *buffers])
    assert found["gradients"]["bytes"] == _rounded(parameters)
    assert found["optimizer"]["bytes"] == _rounded(state)
    assert found["other"]["bytes"] == _rounded(activations)
    assert found["gradients"]["addresses"] == sorted(each.grad.data_ptr() for each in parameters)


def test_without_being_shown_the_optimizers_parameters_are_found_and_what_is_on_the_host_is_counted_apart() -> None:
    model, optimizer = _trained()
    state = [value for each in optimizer.state.values() for value in each.values()]
    apart = torch.zeros(
        1 << 20
    )  # so large that it lies far from all blocks, into whose rounded ends small ones may fall
    for place, value in enumerate(state):
        value.data = apart[place * 4096 :][: value.numel()].view(value.shape)
    memory = FakeDeviceMemory()
    memory.hold(model.parameters())
    found = blocks_by_owner(memory.snapshot(), MemoryOwners().storages())
    assert found["parameters"]["bytes"] >= _rounded(model.parameters())
    assert found["optimizer"]["bytes"] == 0
    assert found["optimizer"]["outside_bytes"] >= apart.nbytes


def test_nothing_is_kept_alive() -> None:
    owners = MemoryOwners()
    model, optimizer = _trained()
    owners.watch(model)
    owners.storages()
    import gc
    import weakref

    gone = weakref.ref(model), weakref.ref(optimizer)
    del model, optimizer
    gc.collect()
    assert [each() for each in gone] == [None, None]


def test_sharded_and_wrapping_tensors_are_followed_to_their_storage() -> None:
    from torch.distributed.tensor import DTensor  # noqa: F401  # the kind meant

    class Sharded:
        _local_tensor = torch.ones(100)

    class Quantised:
        def __init__(self) -> None:
            self.values, self.scales = torch.ones(7), torch.ones(3)

        def __tensor_flatten__(self) -> tuple[list[str], None]:
            return ["values", "scales"], None

    from stepscope.training.memory.owners import _storages

    assert _storages(Sharded()) == [(Sharded._local_tensor.data_ptr(), 400)]
    assert [num_bytes for _, num_bytes in _storages(Quantised())] == [28, 12]
    assert list(_storages(torch.empty(3, device="meta"))) in ([], [(0, 12)])
    assert list(_storages(None)) == []


@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=30),
    free=st.sets(st.integers(0, 29)),
    places=st.lists(st.tuples(st.integers(0, 2000), st.sampled_from(["parameters", "gradients"])), max_size=30),
)
def test_every_byte_in_use_has_one_category(sizes: list[int], free: set[int], places: list[tuple[int, str]]) -> None:
    blocks: list[dict[str, Any]] = [
        {"size": size, "state": "inactive" if index in free else "active_allocated"} for index, size in enumerate(sizes)
    ]
    snapshot = {"segments": [{"address": 500, "blocks": blocks}]}
    storages: dict[str, list[tuple[int, int]]] = {"parameters": [], "gradients": []}
    for address, category in places:
        storages[category].append((address, 1))
    found = blocks_by_owner(snapshot, storages)
    in_use = sum(block["size"] for block in blocks if block["state"] == "active_allocated")
    assert sum(part["bytes"] for part in found.values()) == in_use
    told = [address for category in storages for address in found[category]["addresses"]]
    assert len(told) == len(set(told))


def test_a_real_snapshot_adds_up_to_torchs_own_counter(shared_traces: Path) -> None:
    snapshot = pickle.loads(gzip.decompress((shared_traces / "diag/memory_h100/leak.pickle.gz").read_bytes()))
    assert blocks_by_owner(snapshot, {})["other"]["bytes"] == 8_381_636_096
