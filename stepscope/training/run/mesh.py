"""Parallel mesh: number of ranks per dimension (tp, pp, dp, cp, ep), from the caller or from what the process knows."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from stepscope.training.run.identity import initialized_distributed

MESH_VARIABLE = "STEPSCOPE_MESH"
"""Environment: sizes by dimension, such as tp=2,pp=2,dp=2."""

_DIMENSION_OF_NAME = {
    "tp": "tp",
    "tensor": "tp",
    "tensor_parallel": "tp",
    "pp": "pp",
    "pipe": "pp",
    "pipeline": "pp",
    "pipeline_parallel": "pp",
    "dp": "dp",
    "ddp": "dp",
    "fsdp": "dp",
    "data": "dp",
    "data_parallel": "dp",
    "dp_replicate": "dp",
    "dp_shard": "dp",
    "replicate": "dp",
    "shard": "dp",
    "ep": "ep",
    "expert": "ep",
    "cp": "cp",
    "context": "cp",
}
"""Names that frameworks give to mesh dimensions -> the dimension; several of one kind multiply."""

KNOWN_DIMENSIONS = tuple(dict.fromkeys(_DIMENSION_OF_NAME.values()))

_SIZE_METHODS = {
    "tp": ("get_tensor_model_parallel_world_size", "get_slice_parallel_world_size"),
    "pp": ("get_pipeline_model_parallel_world_size", "get_pipe_parallel_world_size"),
    "dp": ("get_data_parallel_world_size",),
    "cp": ("get_context_parallel_world_size",),
    "ep": ("get_expert_model_parallel_world_size",),
}
"""By dimension, how Megatron's parallel_state and DeepSpeed's grid are asked for its size."""

_PAIR = re.compile(r"\s*(\w+)\s*=\s*([1-9]\d*)\s*")


def mesh_sizes(mesh: Any, world_size: int) -> dict[str, int]:
    """In the training process: sizes of the run's parallel dimensions (tp, pp, dp, ep, cp); unknown ones are absent.

    Args:
        mesh: a torch DeviceMesh with named dimensions, sizes by name, Megatron's parallel_state, DeepSpeed's grid. With
            None: STEPSCOPE_MESH, then Megatron's state, then the groups that torch's DeviceMesh has made.

    Raises:
        TypeError: `mesh` is none of these.
        ValueError: STEPSCOPE_MESH cannot be read.
    """
    if mesh is not None:
        return _sizes_of(mesh)
    if os.environ.get(MESH_VARIABLE):
        return _sizes_by_dimension(_from_environment(os.environ[MESH_VARIABLE]))
    megatron = sys.modules.get("megatron.core.parallel_state")
    if megatron is not None and megatron.model_parallel_is_initialized():
        return _sizes_from_methods(megatron)
    if world_size == 1:
        return {"tp": 1, "pp": 1, "dp": 1}
    return _sizes_by_dimension(_from_groups())


def _sizes_of(mesh: Any) -> dict[str, int]:
    if isinstance(mesh, Mapping):
        return _sizes_by_dimension((str(name), int(size)) for name, size in mesh.items())
    if hasattr(mesh, "mesh_dim_names"):
        names = mesh.mesh_dim_names or ()
        return _sizes_by_dimension((str(name), int(mesh.size(place))) for place, name in enumerate(names))
    if hasattr(mesh, "get_data_parallel_world_size"):
        return _sizes_from_methods(mesh)
    raise TypeError(f"mesh is a DeviceMesh, sizes by name, Megatron's state or DeepSpeed's grid, not {mesh!r:.80}")


def is_mesh_dimension(name: str) -> bool:
    """In the training process, the run's mesh: whether a name that some framework gives means a dimension of it."""
    return name.lower() in _DIMENSION_OF_NAME


def _sizes_by_dimension(named_sizes: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Names that mean no dimension are left out."""
    sizes: dict[str, int] = {}
    for name, size in named_sizes:
        dimension = _DIMENSION_OF_NAME.get(name.lower())
        if dimension is not None:
            sizes[dimension] = sizes.get(dimension, 1) * size
    return sizes


def _sizes_from_methods(state: Any) -> dict[str, int]:
    sizes = {}
    for dimension, methods in _SIZE_METHODS.items():
        for method in methods:
            if hasattr(state, method):
                sizes[dimension] = int(getattr(state, method)())
                break
    return {dimension: size for dimension, size in sizes.items() if size > 1 or dimension in {"tp", "pp", "dp"}}


def _from_environment(text: str) -> list[tuple[str, int]]:
    pairs = [_PAIR.fullmatch(part) for part in text.split(",")]
    if not all(pairs):
        raise ValueError(f"{MESH_VARIABLE} is like tp=2,pp=2,dp=2, not {text[:80]!r}")
    return [(pair[1], int(pair[2])) for pair in pairs if pair is not None]


def _from_groups() -> list[tuple[str, int]]:
    """DeviceMesh describes each group as mesh_<dimension>; a dimension of all ranks has none of its own."""
    distributed = initialized_distributed()
    if distributed is None:
        return []
    groups = getattr(distributed.distributed_c10d._world, "pg_map", {})
    found = {str(getattr(group, "group_desc", "")): int(group.size()) for group in groups}
    named = {name.removeprefix("mesh_"): size for name, size in found.items() if name.startswith("mesh_")}
    whole = {name.lower() for name in named if name.lower() in KNOWN_DIMENSIONS}  # one may be flattened of others
    return [
        (name, size)
        for name, size in named.items()
        if name.lower() in whole or _DIMENSION_OF_NAME.get(name.lower()) not in whole
    ]
