"""Communication kernels: group, kind, size and peers, from wherever the trace has them."""

from __future__ import annotations

import pytest

from stepscope.analyzer.collectives.calls import AFTER_STEPS, BEFORE_STEPS, Call, PeerCall
from tests.analyzer.build import TraceBuilder
from tests.analyzer.readings import view_of


def calls_of(trace: TraceBuilder) -> list[Call]:
    return view_of(trace).calls


def stepped(rank: int = 0) -> TraceBuilder:
    trace = TraceBuilder(rank=rank, world_size=2)
    trace.step(3, 0, 1000)
    trace.kernel(50, 100, launch=10)
    return trace


def test_a_kernels_own_arguments_come_first() -> None:
    trace = stepped()
    trace.collective("_allgather_base", 100, 200, launch=20, group=(0, 1), elements=256, sequence=9)
    (call,) = calls_of(trace)
    assert (call.kind, call.group, call.num_bytes, call.sequence, call.step) == ("all_gather", (0, 1), 1024, 9, 3)
    assert call.described


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "all_reduce"),
        ("ncclKernel_ReduceScatter_RING_LL_Sum_half(ncclWorkElem)", "reduce_scatter"),
        ("nccldevkernel_allgather_ring_ll", "all_gather"),
        ("void vllm::cross_device_reduce_1stage<__half, 8>(vllm::RankData*)", "all_reduce"),
        ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", "p2p"),
        ("ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)", "unknown"),
    ],
)
def test_a_silent_kernel_takes_its_kind_from_its_name(name: str, kind: str) -> None:
    trace = stepped()
    trace.collective("", 100, 200, launch=20, group=None, described=False, name=name)
    (call,) = calls_of(trace)
    assert call.kind == kind
    assert call.group is None
    assert not call.described


def test_a_silent_kernel_takes_its_group_from_its_streams_other_calls() -> None:
    trace = stepped()
    name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage)"
    trace.collective("allreduce", 100, 200, launch=20, group=(0, 1), stream=20)
    trace.collective("", 210, 220, launch=30, group=None, described=False, stream=20, name=name)
    trace.collective("", 230, 240, launch=40, group=None, described=False, stream=33, name=name)
    assert [call.group for call in calls_of(trace)] == [(0, 1), (0, 1), None]


def test_a_grouped_send_receive_kernel_lists_the_peers_of_the_operators_before_it() -> None:
    trace = TraceBuilder(rank=5, world_size=8)
    trace.step(3, 0, 1000)
    trace.kernel(50, 100, launch=10)
    group = (1, 5, 7)
    trace.point_to_point(100, 200, launch=20, group=group, send_to=[7], receive_from=[1])
    trace.point_to_point(200, 300, launch=30, group=group, send_to=[7])
    trace.point_to_point(300, 400, launch=40, group=group, receive_from=[1])
    both, sent, received = calls_of(trace)
    assert (both.kind, both.peers) == ("p2p", (PeerCall(5, 7, 0), PeerCall(1, 5, 0)))
    assert (sent.kind, sent.peers) == ("send", (PeerCall(5, 7, 1),))
    assert (received.kind, received.peers) == ("recv", (PeerCall(1, 5, 1),))


@pytest.mark.parametrize(("number", "peer"), [(2, 2), (4, 4), (1, 2)])
def test_a_peer_is_a_rank_of_the_job_unless_it_can_only_be_a_place_in_the_group(number: int, peer: int) -> None:
    """In (0, 2, 4), 2 is a rank and not the third place; 1 is no member, so it is the second place."""
    trace = stepped()
    trace.point_to_point(100, 200, launch=20, group=(0, 2, 4), send_to=[number])
    (sent,) = calls_of(trace)
    assert sent.peers == (PeerCall(0, peer, 0),)


def test_the_order_of_peers_starts_anew_with_each_step() -> None:
    trace = stepped()
    trace.step(4, 1000, 2000)
    trace.kernel(1050, 1100, launch=1010)
    trace.point_to_point(100, 200, launch=20, group=(0, 1), send_to=[1])
    trace.point_to_point(1100, 1200, launch=1020, group=(0, 1), send_to=[1])
    assert [call.peers for call in calls_of(trace)] == [(PeerCall(0, 1, 0),), (PeerCall(0, 1, 0),)]


def test_calls_are_told_apart_by_when_they_were_launched() -> None:
    trace = TraceBuilder()
    trace.step(3, 100, 200)
    trace.kernel(150, 160, launch=110)
    for launch in (10, 120, 300):
        trace.collective("allreduce", launch + 50, launch + 60, launch=launch, group=(0, 1))
    assert [call.step for call in calls_of(trace)] == [BEFORE_STEPS, 3, AFTER_STEPS]


def test_the_collectives_of_a_graph_follow_one_another_in_the_order_they_ran() -> None:
    trace = stepped()
    trace.collective("allreduce", 100, 110, launch=20, group=(0, 1))
    names = ["gemm", "ncclDevKernel_AllGather_RING_LL(a)", "ncclDevKernel_AllReduce_Sum_f32_RING_LL(a)"]
    trace.graph([(200, 210), (220, 230), (215, 219)], launch=120, names=names)
    assert [call.kind for call in calls_of(trace)] == ["all_reduce", "all_reduce", "all_gather"]
    assert {call.group for call in calls_of(trace)} == {(0, 1)}


def test_a_silent_kernel_takes_kind_size_and_root_from_the_spans_around_its_launch() -> None:
    trace = stepped()
    trace.annotation("DistributedDataParallel.forward", 110, 140)
    trace.operator("c10d::broadcast_", 115, 135, concrete='["", "", "1", "0"]', dims="[[8]]", types='["float"]')
    trace.collective("", 200, 220, launch=120, group=None, described=False)
    trace.operator("nccl:all_to_all", 145, 165, dims="[[6144]]", types='["float"]')
    trace.collective("", 230, 240, launch=150, group=None, described=False, name="ncclKernel_SendRecv_RING_SIMPLE(a)")
    broadcast, exchange = calls_of(trace)
    assert (broadcast.kind, broadcast.num_bytes, broadcast.dimension, broadcast.described) == (
        "broadcast",
        32,
        "dp",
        False,
    )
    assert (exchange.kind, exchange.num_bytes, exchange.dimension) == ("all_to_all", 24576, "ep")


def test_the_operator_of_a_kernel_tells_the_root() -> None:
    trace = TraceBuilder(rank=1, world_size=4)
    trace.step(3, 0, 1000)
    trace.kernel(50, 100, launch=10)
    trace.collective("broadcast", 100, 200, launch=20, group=(1, 3), root=1)
    trace.collective("allreduce", 200, 300, launch=30, group=(1, 3), root=1)
    assert [call.root for call in calls_of(trace)] == [3, None]


def test_sends_without_arguments_name_their_peer_in_the_annotation() -> None:
    trace = stepped()
    name = "ncclKernel_SendRecv_RING_SIMPLE(a)"
    trace.annotation("nccl:send 0->1", 110, 120)
    trace.annotation("nccl:recv 0<-1", 121, 129)
    trace.collective("", 140, 200, launch=130, group=None, described=False, name=name)
    trace.annotation("nccl:send 0->1", 210, 230)
    trace.collective("", 240, 300, launch=220, group=None, described=False, name=name)
    both, sent = calls_of(trace)
    assert (both.kind, both.peers) == ("p2p", (PeerCall(0, 1, 0), PeerCall(1, 0, 0)))
    assert (sent.kind, sent.peers) == ("send", (PeerCall(0, 1, 1),))


def test_a_stream_that_several_groups_share_tells_no_group() -> None:
    trace = stepped()
    trace.collective("allreduce", 100, 110, launch=20, group=(0, 1), stream=7)
    trace.collective("allreduce", 120, 130, launch=30, group=(0, 1, 2, 3), stream=7)
    trace.collective("", 140, 150, launch=40, group=None, described=False, stream=7)
    assert [call.group for call in calls_of(trace)] == [(0, 1), (0, 1, 2, 3), None]


def test_a_launch_that_the_trace_lost_lies_between_its_neighbours() -> None:
    trace = stepped()
    trace.collective("allreduce", 100, 110, launch=20, group=(0, 1))
    trace.kernel(120, 130, name="ncclDevKernel_AllReduce_Sum_f32_RING_LL(a)", stream=20)
    trace.collective("allgather", 140, 150, launch=40, group=(0, 1))
    calls = calls_of(trace)
    assert [call.kind for call in calls] == ["all_reduce", "all_reduce", "all_gather"]
    assert {call.step for call in calls} == {3}


def test_each_graph_launch_of_a_step_has_a_number() -> None:
    trace = stepped()
    names = ["ncclDevKernel_AllGather_RING_LL(a)"]
    for launch in (120, 220):
        trace.graph([(launch + 10, launch + 20)], launch=launch, names=names)
    trace.collective("allreduce", 300, 310, launch=290, group=(0, 1))
    trace.step(4, 1000, 2000)
    trace.graph([(1210, 1220)], launch=1200, names=names)
    assert [call.graph_launch for call in calls_of(trace)] == [0, 1, None, 0]
