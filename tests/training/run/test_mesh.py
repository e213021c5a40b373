"""Mesh of the job: found in every form in which a process may hold it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from stepscope.training.run.mesh import mesh_sizes

pytestmark = pytest.mark.usefixtures("no_job")


class _FakeDeviceMesh:
    mesh_dim_names = ("pp", "dp_replicate", "dp_shard", "tp", "odd")

    def size(self, place: int) -> int:
        return (2, 3, 4, 5, 6)[place]


def _state(**sizes: int) -> SimpleNamespace:
    """Megatron's parallel_state or DeepSpeed's grid: a method for each size."""
    methods: dict[str, Any] = {f"get_{name}_world_size": lambda size=size: size for name, size in sizes.items()}
    return SimpleNamespace(model_parallel_is_initialized=lambda: True, **methods)


def test_dimensions_of_one_kind_multiply_and_unknown_ones_are_left_out() -> None:
    assert mesh_sizes(_FakeDeviceMesh(), 120) == {"pp": 2, "dp": 12, "tp": 5}
    assert mesh_sizes({"tp": 2, "fsdp": 4}, 8) == {"tp": 2, "dp": 4}


def test_without_a_word_only_a_job_of_one_process_has_a_known_shape() -> None:
    assert mesh_sizes(None, 8) == {}
    assert mesh_sizes(None, 1) == {"tp": 1, "pp": 1, "dp": 1}


def test_states_of_other_frameworks_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    megatron = _state(tensor_model_parallel=4, pipeline_model_parallel=2, data_parallel=3, context_parallel=1)
    assert mesh_sizes(megatron, 24) == {"tp": 4, "pp": 2, "dp": 3}
    assert mesh_sizes(_state(pipe_parallel=2, data_parallel=4, slice_parallel=1), 8) == {"tp": 1, "pp": 2, "dp": 4}
    monkeypatch.setitem(sys.modules, "megatron.core.parallel_state", megatron)
    assert mesh_sizes(None, 24) == {"tp": 4, "pp": 2, "dp": 3}


def test_the_environment_speaks_for_scripts_that_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPSCOPE_MESH", "tp=2, pp=2,dp_shard=4,dp_replicate=2")
    assert mesh_sizes(None, 32) == {"tp": 2, "pp": 2, "dp": 8}
    monkeypatch.setenv("STEPSCOPE_MESH", "2x2")
    with pytest.raises(ValueError, match="STEPSCOPE_MESH is like tp=2,pp=2,dp=2, not '2x2'"):
        mesh_sizes(None, 4)


def test_what_is_no_mesh_is_refused() -> None:
    with pytest.raises(TypeError, match="mesh is a DeviceMesh"):
        mesh_sizes(7, 8)


@pytest.fixture
def world_of_eight() -> Iterator[None]:
    """Eight ranks of which seven exist in torch's imagination only."""
    torch = pytest.importorskip("torch")
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", rank=0, world_size=8, store=FakeStore())
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("world_of_eight")
def test_groups_that_a_device_mesh_has_made_are_found() -> None:
    from torch.distributed.device_mesh import init_device_mesh

    assert mesh_sizes(None, 8) == {}
    mesh = init_device_mesh("cpu", (2, 4), mesh_dim_names=("pp", "dp_shard"))
    assert mesh_sizes(None, 8) == mesh_sizes(mesh, 8) == {"pp": 2, "dp": 4}


@pytest.mark.usefixtures("world_of_eight")
def test_a_dimension_flattened_of_others_counts_once() -> None:
    """As torchtitan lays it out."""
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("dp_replicate", "dp_shard", "tp"))
    mesh["dp_replicate", "dp_shard"]._flatten("dp")
    assert mesh_sizes(None, 8) == {"dp": 4, "tp": 2}
