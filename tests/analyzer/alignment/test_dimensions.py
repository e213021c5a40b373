"""Is each group and call put down to the parallel dimension it serves?"""

from __future__ import annotations

from dataclasses import replace

import pytest

from stepscope.analyzer.alignment.call import Call
from stepscope.analyzer.alignment.dimensions import by_only_dimension, dimension_of, dimension_of_call
from stepscope.core.analysis import MeshSizes
from stepscope.trace.columns import ProcessGroup


@pytest.mark.parametrize(
    ("description", "dimension"),
    [
        ("mesh_tp", "tp"),
        ("mesh_dp_shard", "dp"),
        ("mesh_dp_shard_cp", "dp"),
        ("mesh_dp_cp", "dp"),
        ("mesh_cp", "cp"),
        ("mesh_pp", "pp"),
        ("mesh_ep", "ep"),
        ("fsdp", "dp"),
        ("efsdp", "dp"),
        ("mesh_dp_replicate", "dp"),
        ("TENSOR_MODEL_PARALLEL_GROUP", "tp"),
        ("PIPELINE_MODEL_PARALLEL_GROUP", "pp"),
        ("DATA_PARALLEL_GROUP_WITH_CP", "dp"),
        ("CONTEXT_PARALLEL_GROUP", "cp"),
        ("EXPERT_MODEL_PARALLEL_GROUP", "ep"),
        ("EXPERT_TENSOR_PARALLEL_GROUP", "tp"),
        ("EXPERT_DATA_PARALLEL_GROUP", "dp"),
        ("EMBEDDING_GROUP", "pp"),
        ("MODEL_PARALLEL_GROUP", None),
        ("default_pg", None),
        ("undefined", None),
        ("http_group", None),
    ],
)
def test_descriptions_of_the_common_frameworks(description: str, dimension: str | None) -> None:
    assert dimension_of(ProcessGroup("3", description, None)) == dimension


def test_a_groups_name_tells_where_its_description_does_not() -> None:
    assert dimension_of(ProcessGroup("tp:0", "undefined", None)) == "tp"


@pytest.mark.parametrize(
    ("spans", "kind", "dimension"),
    [
        (["FSDP::pre_forward (blocks.0)", "FSDP::all_gather (blocks.0)"], "all_gather", "dp"),
        (["autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"], "all_reduce", "dp"),
        (["_c10d_functional::all_reduce"], "all_reduce", "tp"),
        (["_c10d_functional::all_to_all_single"], "all_to_all", "ep"),
        (["AttnFuncWithCPAndKVP2P"], "p2p", "cp"),
        ([], "send", "pp"),
        ([], "all_to_all", "ep"),
        ([], "all_reduce", None),
    ],
)
def test_open_spans_and_traffic_tell_the_rest(spans: list[str], kind: str, dimension: str | None) -> None:
    assert dimension_of_call(None, tuple(spans), kind) == dimension
    assert dimension_of_call(ProcessGroup("1", "mesh_cp", None), tuple(spans), kind) == "cp"


@pytest.mark.parametrize(
    ("mesh", "world_size", "served"),
    [
        (MeshSizes(tp=1, pp=1, dp=2), 2, ["dp", "tp", None, None]),
        (MeshSizes(dp=2), 2, ["dp", "tp", None, None]),
        (MeshSizes(tp=2, pp=1, dp=2), 4, [None, "tp", None, None]),  # of which of the two is not known
        (MeshSizes(tp=1, pp=1, dp=4), 4, [None, "tp", None, None]),  # a part of them
        (MeshSizes(tp=2), 8, [None, "tp", None, None]),  # the other dimensions are not told: it may be one of theirs
        (MeshSizes(), 2, [None, "tp", None, None]),
    ],
)
def test_where_the_mesh_has_one_dimension_only_all_its_ranks_together_serve_it(
    mesh: MeshSizes, world_size: int, served: list[str | None]
) -> None:
    untold = Call(0, 0, 1, 0, (0, 1), "all_reduce", 4, (), described=True)
    calls = [untold, replace(untold, dimension="tp"), replace(untold, group=(0,)), replace(untold, group=None)]
    assert [call.dimension for call in by_only_dimension(calls, mesh, world_size)] == served
