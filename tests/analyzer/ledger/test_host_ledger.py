"""Host ledger: without a device, every instant of the training thread is attributed by the open operations."""

from __future__ import annotations

from stepscope.core.vocabulary import Reason, TimeCategory
from stepscope.trace.columns import Category, ProcessGroup
from tests.analyzer.build import WORKER, TraceBuilder
from tests.analyzer.readings import analyse, attributed_us, ledger_us, rank_us, view_of

WORLD = ProcessGroup("0", "default_pg", (0, 1))


def host_trace(rank: int = 0, *, world_size: int = 1) -> TraceBuilder:
    trace = TraceBuilder(rank=rank, world_size=world_size, gpu=None)
    trace.step(1, 0, 1000)
    return trace


def test_operators_compute_and_the_rest_is_the_hosts() -> None:
    trace = host_trace()
    trace.operator("aten::mm", 100, 300)
    trace.operator("aten::empty", 120, 130)
    view = view_of(trace)
    assert ledger_us(view) == {"compute": 200, "host_bound": 800}
    assert attributed_us(view, TimeCategory.COMPUTE_OTHER) == {"compute_bound": 200}
    assert not view.on_device


def test_simulated_compute_counts_as_compute() -> None:
    trace = host_trace()
    trace.annotation("simulated_compute", 100, 300)
    assert ledger_us(view_of(trace)) == {"compute": 200, "host_bound": 800}


def test_loader_and_checkpoint_claim_the_operators_inside_them() -> None:
    trace = host_trace()
    trace.annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 0, 100)
    trace.operator("aten::stack", 10, 60)
    trace.annotation("checkpoint", 500, 700)
    trace.operator("aten::copy_", 550, 600)
    assert ledger_us(view_of(trace)) == {"data_loading": 100, "checkpoint": 200, "host_bound": 700}


def test_operators_beside_communication_in_flight_hide_it() -> None:
    trace = host_trace()
    trace.operator("c10d::allreduce_", 100, 120)
    trace.annotation("gloo:all_reduce", 110, 400, thread=WORKER)
    trace.operator("aten::mm", 200, 300)
    assert ledger_us(view_of(trace)) == {"compute": 100, "communication_unsplit": 200, "host_bound": 700}


def test_a_backward_node_that_waits_for_its_reduction_does_not_compute_meanwhile() -> None:
    trace = host_trace()
    trace.operator("autograd::engine::evaluate_function: RegisterPostBackwardFunctionBackward", 100, 500)
    trace.operator("RegisterPostBackwardFunctionBackward", 110, 490)
    trace.operator("aten::cat", 120, 140)
    trace.annotation("gloo:all_reduce", 150, 450, thread=WORKER)
    assert ledger_us(view_of(trace)) == {"compute": 100, "communication_unsplit": 300, "host_bound": 600}


def test_operators_inside_a_communication_operator_are_part_of_it() -> None:
    trace = host_trace()
    trace.operator("c10d::allreduce_", 100, 200)
    trace.operator("aten::zeros", 110, 120)
    assert ledger_us(view_of(trace)) == {"communication_unsplit": 100, "host_bound": 900}


def test_two_gloo_ranks_split_waiting_from_transfer() -> None:
    traces = []
    for rank, arrival in ((0, 100), (1, 600)):
        trace = TraceBuilder(rank=rank, world_size=2, gpu=None, groups=(WORLD,))
        trace.step(1, 0, 1000)
        if rank == 1:
            trace.operator("aten::mm", 0, 600)
        trace.operator("c10d::allreduce_", arrival, 700)
        trace.annotation("gloo:all_reduce", arrival + 1, 700, thread=WORKER)
        traces.append(trace)
    analysis = analyse(*traces)
    assert rank_us(analysis, 0, TimeCategory.WAIT) == 500
    assert rank_us(analysis, 0, TimeCategory.COMMUNICATION) == 100
    assert rank_us(analysis, 1, TimeCategory.WAIT) == 0
    assert rank_us(analysis, 1, TimeCategory.COMMUNICATION) == 100


def test_one_gloo_rank_alone_does_not_know_who_was_late() -> None:
    trace = TraceBuilder(rank=0, world_size=2, gpu=None, groups=(WORLD,))
    trace.step(1, 0, 1000)
    trace.operator("c10d::allreduce_", 100, 700)
    analysis = analyse(trace)
    assert rank_us(analysis, 0, TimeCategory.COMMUNICATION_UNSPLIT) == 600
    assert rank_us(analysis, 0, TimeCategory.WAIT) == 0


def test_garbage_collections_inside_operators_are_the_hosts() -> None:
    trace = TraceBuilder(gpu=None)
    trace.step(1, 0, 100)
    trace.operator("MyFunctionBackward", 10, 90)
    trace.operator("Python GC", 40, 80, thread=77, category=Category.PYTHON_FUNCTION)
    view = view_of(trace)
    assert ledger_us(view) == {"compute": 40, "host_bound": 60}
    assert view.host_work.late_ns[Reason.GC] == 40_000
