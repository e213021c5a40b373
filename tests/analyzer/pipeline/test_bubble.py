"""Pipeline bubble: recognized, and split into structural, imbalance and variance parts."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.analyzer.job import analyse_job
from stepscope.analyzer.pipeline.bubble import explain_bubble
from stepscope.analyzer.pipeline.schedules import MicroBatch, Pass, Task
from stepscope.analyzer.pipeline.stages import find_chains
from stepscope.analyzer.rank_view import RankView
from stepscope.analyzer.summaries import JobContext
from stepscope.core.documents.analysis import Pipeline
from stepscope.core.vocabulary import Cause, TimeCategory
from stepscope.trace.columns import NONE, ProcessGroup
from tests.analyzer.build import TraceBuilder
from tests.analyzer.jobs import pipelined
from tests.analyzer.readings import analyse, rank_us, row_of, view_of


def figures(traces: list[TraceBuilder]) -> Pipeline:
    pipeline = analyse(*traces).pipeline
    assert pipeline is not None
    return pipeline


@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 2), (2, 8), (4, 4), (4, 6)])
@pytest.mark.parametrize("gpipe", [False, True])
def test_on_even_stages_the_bubble_is_the_textbooks(stages: int, micro_batches: int, gpipe: bool) -> None:
    traces = pipelined([100] * stages, [200] * stages, num_micro_batches=micro_batches, gpipe=gpipe, steps=6)
    found = figures(traces)
    assert (found.stages, found.micro_batches, found.chunks) == (stages, micro_batches, 1)
    assert found.schedule == ("gpipe" if gpipe else "1f1b")
    assert found.textbook == pytest.approx((stages - 1) / (micro_batches + stages - 1))
    assert found.measured == pytest.approx(found.textbook, abs=0.03)
    assert found.structural == pytest.approx(found.textbook, abs=0.03)
    assert found.imbalance == pytest.approx(0, abs=0.01)
    assert found.variance == pytest.approx(0, abs=0.03)


def test_uneven_stages_show_as_imbalance() -> None:
    found = figures(pipelined([100, 200], [200, 400], num_micro_batches=4))
    assert found.imbalance > 0.1
    assert found.structural + found.imbalance + found.variance == pytest.approx(found.measured)
    assert found.variance == pytest.approx(0, abs=0.03)


def test_even_stages_gain_what_the_replay_of_their_kernels_says() -> None:
    traces = pipelined([100, 200], [200, 400], num_micro_batches=4)
    views = {rank: view_of(trace) for rank, trace in enumerate(traces)}
    (chain,) = find_chains({rank: view.calls for rank, view in views.items()})
    parts = explain_bubble(chain, views)
    assert parts is not None
    # the first forward, four passes of each kind of the longer stage, the last backward; evenly five of each
    assert parts.evened_ns / 1e3 == pytest.approx((100 + 4 * 600 + 200) - 5 * 450, rel=0.05)


def test_waits_that_the_schedule_explains_are_bubble_and_the_bubble_is_named() -> None:
    analysis = analyse(*pipelined([100] * 2, [200] * 2, num_micro_batches=2))
    # the last stage's window begins with one forward's wait, and ends before it would wait again
    for rank, expected in ((0, 3 * 300), (1, 100 + 2 * 300)):
        assert rank_us(analysis, rank, TimeCategory.BUBBLE) == pytest.approx(expected, rel=0.05)
        assert rank_us(analysis, rank, TimeCategory.WAIT) == pytest.approx(0, abs=60)
    assert analysis.verdict.cause is Cause.PIPELINE_BUBBLE


def test_waits_for_a_heavier_stage_are_charged_to_imbalance() -> None:
    analysis = analyse(*pipelined([100, 300], [200, 600], num_micro_batches=4))
    assert row_of(analysis, Cause.IMBALANCE).fraction > 0.1
    assert row_of(analysis, Cause.IMBALANCE).fraction > 0.5 * row_of(analysis, Cause.PIPELINE_BUBBLE).fraction


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, 300), min_size=2, max_size=4), st.integers(1, 6), st.booleans())
def test_the_parts_always_add_up_to_what_was_measured(forward: list[int], micro_batches: int, gpipe: bool) -> None:
    backward = [2 * time for time in forward]
    analysis = analyse(*pipelined(forward, backward, num_micro_batches=micro_batches, gpipe=gpipe, steps=2))
    found = analysis.pipeline
    assert found is not None
    assert found.structural + found.imbalance + found.variance == pytest.approx(found.measured)
    assert min(found.structural, found.imbalance, found.variance) >= 0


def test_a_profiler_that_started_in_the_middle_of_a_step_does_not_turn_the_chain_round() -> None:
    traces = pipelined([100] * 2, [200] * 2, num_micro_batches=2)
    traces[1].point_to_point(900, 905, launch=-10, group=(0, 1), send_to=[0])
    traces[0].point_to_point(900, 905, launch=-10, group=(0, 1), receive_from=[1])
    assert find_chains({trace.rank or 0: view_of(trace).calls for trace in traces}) == [(0, 1)]


def test_an_exchange_in_a_ring_is_no_pipeline() -> None:
    traces = [TraceBuilder(rank=rank, world_size=3) for rank in range(3)]
    for rank, trace in enumerate(traces):
        trace.step(0, 0, 100)
        trace.kernel(100, 200, launch=1)
        following, previous = [(rank + 1) % 3], [(rank - 1) % 3]
        trace.point_to_point(200, 250, launch=2, group=(0, 1, 2), send_to=following, receive_from=previous)
    assert analyse(*traces).pipeline is None


def test_a_one_way_stream_of_sends_is_no_pipeline() -> None:
    traces = [TraceBuilder(rank=rank, world_size=2) for rank in range(2)]
    for rank, trace in enumerate(traces):
        trace.step(0, 0, 100)
        trace.kernel(100, 200, launch=1)
        send_to, receive_from = ([1], []) if rank == 0 else ([], [0])
        trace.point_to_point(200, 250, launch=2, group=(0, 1), send_to=send_to, receive_from=receive_from)
    assert analyse(*traces).pipeline is None


def marked_views(stage_of: dict[int, list[int]], *, plain: bool = False) -> dict[int, RankView]:
    """Two host ranks whose marks follow GPipe on the given virtual stages, two micro-batches."""
    groups = (ProcessGroup("0", "default_pg", (0, 1)),)
    views = {}
    for rank, stages in stage_of.items():
        trace = TraceBuilder(rank=rank, world_size=2, gpu=None, groups=groups)
        trace.step(0, 0, 1000)
        peer = 1 - rank
        operators = ["send", "recv_"] if rank == 0 else ["recv_", "send"]
        for place, name in enumerate(operators):
            trace.operator(f"c10d::{name}", 100 + 10 * place, 105 + 10 * place, concrete=f'["", "", "{peer}", "0"]')
        view = view_of(trace)
        tasks = [Task(Pass.FORWARD, stage, number) for stage in stages for number in range(2)]
        tasks += [Task(Pass.BACKWARD, stage, number) for stage in reversed(stages) for number in range(2)]
        marks = [
            MicroBatch(
                replace(task, stage=NONE) if plain else task, 0, 1000 * (200 + 10 * place), 1000 * (210 + 10 * place)
            )
            for place, task in enumerate(tasks)
        ]
        views[rank] = replace(view, micro_batches=marks)
    return views


def test_marks_that_do_not_name_their_stage_take_it_from_the_chain() -> None:
    parts = explain_bubble((0, 1), marked_views({0: [0], 1: [1]}, plain=True))
    assert parts is not None
    assert (parts.figures.schedule, parts.figures.chunks, parts.figures.micro_batches) == ("gpipe", 1, 2)


def test_several_stages_a_rank_one_after_another_are_looped() -> None:
    parts = explain_bubble((0, 1), marked_views({0: [0, 2], 1: [1, 3]}))
    assert parts is not None
    assert (parts.figures.schedule, parts.figures.chunks) == ("looped_bfs", 2)


def test_marks_of_which_a_stage_is_missing_explain_nothing_and_break_nothing() -> None:
    views = marked_views({0: [0, 3], 1: [1, 4]})
    assert explain_bubble((0, 1), views) is None
    analysis, _ = analyse_job(list(views.values()), JobContext())
    assert analysis.pipeline is None
