"""Passes of micro-batches: which marks they are, and which kernels belong to them."""

from __future__ import annotations

from stepscope.analyzer.pipeline.schedules import Pass, Task
from stepscope.trace.columns import NONE
from tests.analyzer.build import AUTOGRAD, TraceBuilder
from tests.analyzer.readings import view_of

NO_PASSES = ("PP:2RECV_F0", "PP:0SEND_F1", "PP:0SEND_B1", "PP:2REDUCE_GRAD", "PP:0UNSHARD", "PP:0RESHARD", "PP:F0")


def host_marks(*names: str) -> list[Task]:
    trace = TraceBuilder(gpu=None)
    trace.step(0, 0, 1000)
    trace.operator("aten::mm", 10, 20)
    for place, name in enumerate(names):
        trace.annotation(name, 100 + 10 * place, 106 + 10 * place)
    return [mark.task for mark in view_of(trace).micro_batches]


def test_only_passes_count() -> None:
    found = host_marks("PP:0F0", *NO_PASSES, "PP:12B31", "PP:3I4", "PP:3W4")
    assert found == [
        Task(Pass.FORWARD, 0, 0),
        Task(Pass.BACKWARD, 12, 31),
        Task(Pass.BACKWARD_INPUT, 3, 4),
        Task(Pass.BACKWARD_WEIGHT, 3, 4),
    ]


def test_marks_that_name_their_stage_win_over_gpipes() -> None:
    assert host_marks("Forward 0", "Backward 0") == [Task(Pass.FORWARD, NONE, 0), Task(Pass.BACKWARD, NONE, 0)]
    assert host_marks("Forward 0", "PP:1F0", "Backward 0", "PP:1B0") == [
        Task(Pass.FORWARD, 1, 0),
        Task(Pass.BACKWARD, 1, 0),
    ]


def test_two_passes_at_once_share_their_mark_one_to_two() -> None:
    trace = TraceBuilder(gpu=None)
    trace.step(0, 0, 1000)
    trace.operator("aten::mm", 10, 20)
    trace.annotation("PP:(0F5;7B2)OVERLAP_F_B", 100, 400)
    forward, backward = view_of(trace).micro_batches
    assert (forward.task, backward.task) == (Task(Pass.FORWARD, 0, 5), Task(Pass.BACKWARD, 7, 2))
    assert (forward.start_ns, forward.end_ns, backward.end_ns) == (100_000, 200_000, 400_000)


def test_a_kernel_belongs_to_the_mark_under_which_any_thread_launched_it() -> None:
    trace = TraceBuilder()
    trace.step(3, 0, 100)
    trace.annotation("PP:0F0", 10, 20)
    trace.annotation("PP:0B0", 30, 40)
    trace.annotation("PP:0W0", 50, 60)
    trace.kernel(1000, 1100, launch=12)
    trace.kernel(1100, 1150, launch=18)
    trace.kernel(1200, 1300, launch=25)  # under no mark
    trace.kernel(1300, 1700, launch=32, thread=AUTOGRAD)
    trace.kernel(1700, 1800, launch=40)  # the mark has ended
    forward, backward, weights = view_of(trace).micro_batches
    assert (forward.step, forward.start_ns, forward.end_ns, forward.busy_ns) == (3, 1_000_000, 1_150_000, 150_000)
    assert (backward.start_ns, backward.end_ns, backward.busy_ns) == (1_300_000, 1_700_000, 400_000)
    assert (weights.task.kind, weights.busy_ns) == (Pass.BACKWARD_WEIGHT, 0)
