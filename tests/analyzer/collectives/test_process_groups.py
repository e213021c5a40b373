"""Process groups: each group and call is assigned to the parallel dimension it serves."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.analyzer.collectives.calls import Call
from stepscope.analyzer.collectives.process_groups import (
    dimension_of_call,
    dimension_of_group,
    with_dimension_of_wrapper,
    with_only_mesh_dimension,
    with_process_groups,
)
from stepscope.core.documents.analysis import MeshSizes
from stepscope.core.vocabulary import TimeCategory
from stepscope.trace.columns import ProcessGroup
from stepscope.workflow.analyze import analyze


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
    assert dimension_of_group(ProcessGroup("3", description, None)) == dimension


def test_a_groups_name_tells_where_its_description_does_not() -> None:
    assert dimension_of_group(ProcessGroup("tp:0", "undefined", None)) == "tp"


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
    assert [call.dimension for call in with_only_mesh_dimension(calls, mesh, world_size)] == served


def test_a_functional_collective_over_the_ranks_of_a_wrapper_is_data_parallel() -> None:
    """As the norm of FSDP2's gradients is."""
    norm = Call(0, 0, 1, 0, (0, 1), "all_reduce", 4, (), described=True, dimension="tp")
    calls = [
        norm,
        replace(norm, kind="all_gather", dimension="dp"),
        replace(norm, group=(0, 2)),
        replace(norm, group=None),
    ]
    assert [call.dimension for call in with_dimension_of_wrapper(calls)] == ["dp", "dp", "tp", "tp"]
    assert [call.dimension for call in with_dimension_of_wrapper([norm])] == ["tp"]


US = 1000
MS = 1000 * US


def silent_job(
    groups: list[tuple[int, ...]],
    *,
    hosts: dict[int, str | None] | None = None,
    ahead_ns: dict[int, int] | None = None,
    rounds: int = 10,
    seed: int = 1,
) -> tuple[dict[int, list[Call]], dict[int, str | None]]:
    """All ranks call the same in the same order; members of a group leave within 5 us, groups at their own times."""
    generator = random.Random(seed)
    ranks = sorted(rank for group in groups for rank in group)
    calls: dict[int, list[Call]] = {rank: [] for rank in ranks}
    for number in range(rounds):
        for group in groups:
            end = number * 10 * MS + generator.randrange(8 * MS)
            for rank in group:
                own = end + generator.randrange(5 * US) + (ahead_ns or {}).get(rank, 0)
                kind = "all_reduce" if number % 2 else "all_gather"
                calls[rank].append(Call(rank, own - MS, own, 1, None, kind, 64, (), False, stream=20))
    return calls, hosts or dict.fromkeys(ranks)


def groups_of(calls: dict[int, list[Call]]) -> set[tuple[int, ...] | None]:
    return {call.group for own in calls.values() for call in own}


def test_ranks_that_leave_together_are_one_group() -> None:
    calls, hosts = silent_job([(0, 1, 2, 3)])
    assert groups_of(with_process_groups(calls, 4, hosts)) == {(0, 1, 2, 3)}


def test_pairs_that_call_the_same_in_the_same_order_are_told_apart() -> None:
    calls, hosts = silent_job([(0, 1), (2, 3)])
    found = with_process_groups(calls, 4, hosts)
    assert {call.group for call in found[0]} == {(0, 1)}
    assert {call.group for call in found[3]} == {(2, 3)}


@given(st.permutations(range(6)), st.integers(0, 99))
def test_any_partition_is_found(order: list[int], seed: int) -> None:
    groups = [tuple(sorted(order[:2])), tuple(sorted(order[2:]))]
    calls, hosts = silent_job(groups, seed=seed)
    assert groups_of(with_process_groups(calls, 6, hosts)) == set(groups)


def test_hosts_clocks_may_stand_apart_if_they_do_so_steadily() -> None:
    hosts: dict[int, str | None] = {0: "a", 1: "a", 2: "b", 3: "b"}
    ahead = {2: 7 * MS, 3: 7 * MS}
    calls, hosts = silent_job([(0, 2), (1, 3)], hosts=hosts, ahead_ns=ahead)
    assert groups_of(with_process_groups(calls, 4, hosts)) == {(0, 2), (1, 3)}
    calls, hosts = silent_job([(0, 2), (1, 3)], hosts=hosts, ahead_ns=ahead, rounds=4)
    assert groups_of(with_process_groups(calls, 4, hosts)) == {None}, "four meetings prove no offset"


def test_a_missing_trace_may_be_a_members() -> None:
    calls, hosts = silent_job([(0, 1)])
    assert groups_of(with_process_groups(calls, 4, hosts)) == {None}


def test_a_rank_that_calls_something_else_is_in_no_group() -> None:
    calls, hosts = silent_job([(0, 1, 2)])
    calls[2] = calls[2][:-1]
    found = with_process_groups(calls, 3, hosts)
    assert {call.group for call in found[0] + found[1]} == {(0, 1)}
    assert {call.group for call in found[2]} == {None}


@pytest.mark.shared
def test_eight_ranks_of_2023_without_arguments_are_split(shared_traces: Path) -> None:
    analysis = analyze([str(shared_traces / "public" / "param" / "dlrm_8rank_kineto")], keep=False).analysis
    assert analysis.ledger[TimeCategory.COMMUNICATION_UNSPLIT] == 0.0
    assert analysis.trace_quality.unmatched_collectives == 0.0
    rows = {(row.dimension, row.kind, row.bytes): row for row in analysis.collectives}
    assert {row.group for row in rows.values()} == {"0,1,2,3,4,5,6,7"}
    assert rows["ep", "all_to_all", 24576].count == 2
    assert rows["ep", "all_to_all", 24576].last_arriver == 7
    assert rows["dp", "all_reduce", 394241 * 4].count == 1
