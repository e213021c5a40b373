"""A whole job: the right breakdown, the right rank as cause, and a table that adds up."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.analyzer.job import analyse_job
from stepscope.analyzer.summaries import JobContext
from stepscope.core.documents.analysis import Analysis, RooflineCoverage
from stepscope.core.vocabulary import Cause, Reason, TimeCategory
from tests.analyzer.build import MAIN, NS_PER_US, TraceBuilder
from tests.analyzer.jobs import TRANSFER_US, chain_of_waits, data_parallel
from tests.analyzer.readings import analyse, cause_us, notice_codes, rank_us, row_of, view_of


def test_waiting_ends_with_the_last_arrival_and_the_rest_is_transfer() -> None:
    analysis = analyse(*data_parallel([[100, 100], [300, 300]]))
    assert rank_us(analysis, 0, TimeCategory.WAIT) == 400
    assert rank_us(analysis, 1, TimeCategory.WAIT) == 0
    for rank in (0, 1):
        assert rank_us(analysis, rank, TimeCategory.COMMUNICATION) == 2 * TRANSFER_US
        assert rank_us(analysis, rank, TimeCategory.COMMUNICATION_UNSPLIT) == 0


def test_a_rank_that_always_computes_longer_is_a_straggler() -> None:
    analysis = analyse(*data_parallel([[100] * 6, [300] * 6, [100] * 6, [100] * 6]))
    assert cause_us(analysis, Cause.STRAGGLER) == 3 * 6 * 200
    assert row_of(analysis, Cause.STRAGGLER).ranks == [1]
    assert analysis.verdict.cause is Cause.STRAGGLER
    assert analysis.verdict.ranks == [1]


def test_a_late_rank_that_changes_is_imbalance() -> None:
    analysis = analyse(*data_parallel([[300, 100, 300, 100], [100, 300, 100, 300]]))
    assert cause_us(analysis, Cause.IMBALANCE) == 4 * 200
    assert cause_us(analysis, Cause.STRAGGLER) == 0
    assert sorted(row_of(analysis, Cause.IMBALANCE).ranks) == [0, 1]


def test_less_than_five_percent_more_compute_is_noise() -> None:
    analysis = analyse(*data_parallel([[1000] * 4, [1040] * 4]))
    assert cause_us(analysis, Cause.UNEXPLAINED) == 4 * 40
    assert cause_us(analysis, Cause.STRAGGLER) == cause_us(analysis, Cause.IMBALANCE) == 0


def test_five_percent_more_compute_counts() -> None:
    assert cause_us(analyse(*data_parallel([[1000] * 4, [1050] * 4])), Cause.STRAGGLER) == 4 * 50


def test_a_wait_for_a_rank_that_waited_itself_is_charged_to_the_one_it_waited_for() -> None:
    analysis = analyse(*chain_of_waits())
    assert rank_us(analysis, 0, TimeCategory.WAIT) == 3 * 320
    assert rank_us(analysis, 1, TimeCategory.WAIT) == 3 * 300
    straggler = row_of(analysis, Cause.STRAGGLER)
    assert straggler.ranks == [2]
    # of rank 0's 320 us in the first step and later ones, 300 are rank 2's compute and 20 rank 1's transfer with it
    assert cause_us(analysis, Cause.STRAGGLER) == 3 * (300 + 300)
    assert cause_us(analysis, Cause.UNEXPLAINED) == 0


def late_host_job() -> list[TraceBuilder]:
    """Rank 1's host loads data for 200 us before each all-reduce; rank 0 had queued everything."""
    traces = [TraceBuilder(rank=rank, world_size=2) for rank in (0, 1)]
    for step in range(3):
        begin = step * 1000
        for trace in traces:
            trace.step(step, begin, begin + 1000)
            trace.kernel(begin + 100, begin + 200, launch=begin + 1)
        traces[1].annotation("prof.data", begin + 190, begin + 390)
        for trace, start in ((traces[0], begin + 200), (traces[1], begin + 400)):
            launch = begin + 3 if start == begin + 200 else begin + 398
            trace.collective("allreduce", start, begin + 420, launch=launch, group=(0, 1))
            trace.kernel(begin + 420, begin + 1100, launch=launch + 1)
    return traces


def test_a_wait_for_a_late_host_is_charged_to_what_that_host_did() -> None:
    analysis = analyse(*late_host_job())
    assert rank_us(analysis, 1, TimeCategory.DATA_LOADING) == 3 * 190
    assert rank_us(analysis, 0, TimeCategory.WAIT) == 3 * 200
    assert row_of(analysis, Cause.DATA_LOADING).ranks == [1]
    # rank 1's own 190 us a step, and its share of rank 0's 200: 190 loading, 8 host, 2 launch
    assert cause_us(analysis, Cause.DATA_LOADING) == pytest.approx(3 * (190 + 190))
    assert cause_us(analysis, Cause.HOST_BOUND) == pytest.approx(3 * (8 + 8))


def test_a_wait_while_the_own_host_is_late_too_is_the_own_hosts() -> None:
    traces = [TraceBuilder(rank=rank, world_size=2) for rank in (0, 1)]
    for step in range(3):
        begin = step * 1000
        for trace, start in zip(traces, (begin + 200, begin + 400), strict=True):
            trace.step(step, begin, begin + 1000)
            trace.kernel(begin + 100, start, launch=begin + 1)
            trace.collective("allreduce", start, begin + 420, launch=begin + 3, group=(0, 1))
            trace.kernel(begin + 420, begin + 1100, launch=begin + 350)
    analysis = analyse(*traces)
    assert rank_us(analysis, 0, TimeCategory.WAIT) == 3 * 200
    assert cause_us(analysis, Cause.HOST_BOUND) == 3 * 150
    assert cause_us(analysis, Cause.STRAGGLER) == 3 * 50


def test_a_head_start_from_before_the_window_is_before_window() -> None:
    traces = [TraceBuilder(rank=rank, world_size=2) for rank in (0, 1)]
    for trace, late in zip(traces, (0, 500), strict=True):
        trace.step(1, 0, 100)
        trace.kernel(1000 + late, 1100 + late, launch=10)
        trace.collective("allreduce", 1100 + late, 1620, launch=20, group=(0, 1))
    analysis = analyse(*traces)
    assert rank_us(analysis, 0, TimeCategory.WAIT) == 500
    assert cause_us(analysis, Cause.BEFORE_WINDOW) == 500


def test_a_missing_rank_leaves_communication_unsplit_with_the_reason() -> None:
    traces = data_parallel([[100] * 3, [300] * 3])
    analysis = analyse(traces[0])
    assert rank_us(analysis, 0, TimeCategory.COMMUNICATION_UNSPLIT) == 3 * (200 + TRANSFER_US)
    assert rank_us(analysis, 0, TimeCategory.WAIT) == 0
    assert row_of(analysis, Cause.COMMUNICATION).reasons == [Reason.ARRIVALS_UNKNOWN]
    assert analysis.job.missing_ranks == [1]
    assert "missing_ranks" in notice_codes(analysis)
    assert analysis.verdict.confidence <= 0.5


def test_a_lone_rank_with_a_high_number_does_not_claim_to_be_a_whole_job() -> None:
    trace = TraceBuilder(rank=3, world_size=None)
    trace.kernel(10, 20, launch=5)
    analysis = analyse(trace)
    assert (analysis.job.world_size, analysis.job.missing_ranks) == (4, [0, 1, 2])


def test_while_one_of_two_collectives_transfers_nobody_waits() -> None:
    traces = [TraceBuilder(rank=rank, world_size=2) for rank in (0, 1)]
    for rank, trace in enumerate(traces):
        trace.step(1, 0, 900)
        trace.kernel(1000, 1100, launch=1)
        first, second = ((1100, 1100), (1150, 1300))[rank]
        trace.collective("allreduce", first, 1200, launch=2, group=(0, 1), stream=20)
        trace.collective("_allgather_base", second, 1320, launch=3, group=(0, 1), stream=21)
        trace.kernel(1400, 1500, launch=4)
    analysis = analyse(*traces)
    # rank 0: [1100, 1150) both lack rank 1; [1150, 1200) one transfers; [1200, 1300) the other still lacks it
    assert rank_us(analysis, 0, TimeCategory.WAIT) == 50 + 100
    assert rank_us(analysis, 0, TimeCategory.COMMUNICATION) == 50 + 20


def test_communication_behind_compute_is_hidden_and_costs_nothing() -> None:
    traces = [TraceBuilder(rank=rank, world_size=2) for rank in (0, 1)]
    for trace in traces:
        trace.step(1, 0, 900)
        trace.kernel(1000, 1400, launch=1)
        trace.collective("allreduce", 1100, 1300, launch=2, group=(0, 1))
    analysis = analyse(*traces)
    assert analysis.ranks[0].hidden_communication == 0.5
    assert rank_us(analysis, 0, TimeCategory.COMMUNICATION) == 0
    assert analysis.collectives[0].hidden == 1.0


def test_ranks_on_hosts_whose_clocks_differ_are_aligned_first() -> None:
    def on_own_host(rank: int, trace: TraceBuilder) -> None:
        trace.host = f"node{rank}"
        trace.base_ns = rank * 123_456_789

    analysis = analyse(*data_parallel([[100] * 4, [300] * 4], adjust=on_own_host))
    assert rank_us(analysis, 0, TimeCategory.WAIT) == 4 * 200
    assert analysis.trace_quality.clock_residual_us == 0.0


def test_hosts_joined_by_nothing_that_tells_the_time_are_unsplit() -> None:
    traces = data_parallel([[100] * 4, [300] * 4])
    for trace in traces:
        trace.host = f"node{trace.rank}"
        trace._descriptions = [replace(told, kind="broadcast") for told in trace._descriptions]
    analysis = analyse(*traces)
    assert rank_us(analysis, 0, TimeCategory.COMMUNICATION_UNSPLIT) == 4 * (200 + TRANSFER_US)


def test_one_step_only_lowers_the_confidence() -> None:
    one, many = (analyse(*data_parallel([[100] * n, [400] * n])) for n in (1, 4))
    assert one.job.num_steps == 1
    assert one.verdict.cause is many.verdict.cause is Cause.STRAGGLER
    assert one.verdict.confidence < many.verdict.confidence


def test_a_single_rank_is_a_job_of_one() -> None:
    trace = TraceBuilder(rank=None)
    trace.step(1, 0, 100)
    trace.kernel(10, 60, launch=5)
    analysis = analyse(trace)
    assert analysis.job.world_size == 1
    assert analysis.trace_quality.unmatched_collectives is None
    assert analysis.trace_quality.collective_args is None


def test_the_whole_file_has_no_steps_and_still_adds_up() -> None:
    analysis = analyse(*data_parallel([[100] * 3, [300] * 3]), whole_file=True)
    assert rank_us(analysis, 0, TimeCategory.WAIT) == 3 * 200


def test_calls_that_cannot_have_met_are_not_split() -> None:
    """Without steps and sequence numbers, a profiler that started one call later shifts the whole series."""
    traces = data_parallel([[1000] * 5, [3000] * 5])
    late = TraceBuilder(rank=1, world_size=2)
    late._rows = traces[1]._rows[5:]
    late._descriptions = [replace(told, row=told.row - 5) for told in traces[1]._descriptions[1:]]
    for trace in (traces[0], late):
        for row in trace._rows:
            row.name = row.name.replace("ProfilerStep", "Step")
    analysis = analyse(traces[0], late)
    assert rank_us(analysis, 0, TimeCategory.WAIT) == 0
    assert rank_us(analysis, 0, TimeCategory.COMMUNICATION_UNSPLIT) > 4 * 2000


def test_capturing_that_slows_the_step_is_said() -> None:
    context = JobContext(unprofiled_step_ms=0.2)
    analysis = analyse(*data_parallel([[100] * 3, [300] * 3]), context=context)
    assert analysis.trace_quality.profiler_distortion == pytest.approx(0.6)
    assert "profiler_distortion" in notice_codes(analysis)


def test_captured_steps_that_differ_are_compared_with_no_other() -> None:
    """A checkpoint in one of them is not the profiler's doing."""
    context = JobContext(unprofiled_step_ms=0.1)
    analysis = analyse(*data_parallel([[100, 900, 100], [100, 900, 100]]), context=context)
    assert analysis.trace_quality.profiler_distortion is None
    assert analysis.job.unprofiled_step_ms == 0.1
    codes = notice_codes(analysis)
    assert "unlike_steps" in codes
    assert "profiler_distortion" not in codes


def test_more_ranks_than_cores_without_a_device_are_oversubscribed() -> None:
    traces = []
    for rank in range(3):
        trace = TraceBuilder(rank=rank, world_size=3, gpu=None)
        trace.step(1, 0, 100)
        trace.operator("aten::mm", 0, 80, thread=MAIN)
        traces.append(trace)
    analysis = analyse(*traces, context=JobContext(num_cpus=2))
    assert "oversubscribed" in notice_codes(analysis)
    assert analysis.verdict.confidence <= 0.5
    asleep = analyse(*traces, context=JobContext(num_cpus=2, simulated_compute=True))
    assert "oversubscribed" not in notice_codes(asleep)


def test_collectives_are_measured_from_the_last_arrival_to_the_end() -> None:
    (row,) = analyse(*data_parallel([[100] * 4, [300] * 4])).collectives
    assert (row.group, row.kind, row.bytes, row.count, row.last_arriver) == ("0,1", "all_reduce", 4096, 4, 1)
    assert row.transfer_ms == pytest.approx(4 * TRANSFER_US / 1e3)
    assert row.wait_ms == pytest.approx(4 * 200 / 1e3)
    assert row.skew_ms == pytest.approx(0.2)
    assert row.algbw_gbs == pytest.approx(4096 / (TRANSFER_US * NS_PER_US))
    assert row.busbw_gbs == row.algbw_gbs  # two ranks: 2 (n - 1) / n = 1


event = st.tuples(
    st.sampled_from(["kernel", "collective", "silent", "copy", "send", "sync", "prof.data", "checkpoint"]),
    st.integers(0, 300),
    st.integers(0, 60),
    st.one_of(st.none(), st.integers(0, 80)),
)


def any_rank(rank: int, num_ranks: int, events: list[tuple[str, int, int, int | None]], steps: int) -> TraceBuilder:
    trace = TraceBuilder(rank=rank, world_size=num_ranks, host=None if steps == 2 else "node0")
    for number in range(steps):
        trace.step(number, number * 120, number * 120 + 120)
    group = tuple(range(num_ranks))
    for kind, start, length, lead in events:
        launch, end = (None if lead is None else start - lead), start + length
        if kind == "kernel" or (launch is None and kind != "copy"):
            trace.kernel(start, end, launch=launch)
        elif kind in ("collective", "silent"):
            assert launch is not None
            described = kind == "collective"
            trace.collective("allreduce", start, end, launch=launch, group=group, described=described)
        elif kind == "send" and num_ranks > 1:
            assert launch is not None
            peer = (rank + 1) % num_ranks
            trace.point_to_point(start, end, launch=launch, group=group, send_to=[peer], receive_from=[peer])
        elif kind == "copy":
            trace.copy(start, end, launch=start - (lead or 0))
        elif kind == "sync":
            trace.runtime("cudaStreamSynchronize", start, end)
        else:
            trace.annotation(kind, start, end)
    trace.kernel(330, 340, launch=100)
    return trace


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(event, max_size=8), min_size=1, max_size=3), st.integers(0, 3))
def test_any_job_adds_up_and_gets_a_verdict(ranks: list[list[tuple[str, int, int, int | None]]], steps: int) -> None:
    analysis: Analysis = analyse(
        *[any_rank(rank, len(ranks), events, steps) for rank, events in enumerate(ranks)]
    )  # checks the sums itself
    assert analysis.verdict.summary
    assert all(row.fraction > 0 for row in analysis.root_causes)


def test_a_utilization_above_one_is_warned_about_and_not_printed() -> None:
    views = [view_of(trace) for trace in data_parallel([[1000] * 3, [1000] * 3])]
    views = [
        replace(view, step_flops=1e12, executed_flops=1e12, peak_flops=1e12, coverage=RooflineCoverage(1.0, 0.0, 0.0))
        for view in views
    ]
    analysis, _ = analyse_job(views, JobContext())
    assert analysis.job.mfu is None
    assert "impossible_mfu" in {notice.code for notice in analysis.warnings}


@pytest.mark.parametrize(("costed", "mfu"), [(0.4, None), (0.6, pytest.approx(0.5, rel=0.01))])
def test_a_utilization_is_told_only_where_most_kernels_have_a_cost(costed: float, mfu: object) -> None:
    views = [view_of(trace) for trace in data_parallel([[1000] * 3, [1000] * 3])]
    step_seconds = float(views[0].window.whole_step_ns.mean()) / 1e9
    coverage = RooflineCoverage(costed, 1 - costed, 0.0)
    views = [replace(view, step_flops=0.5e12 * step_seconds, peak_flops=1e12, coverage=coverage) for view in views]
    assert analyse_job(views, JobContext())[0].job.mfu == mfu


def test_a_rank_that_numbers_its_steps_otherwise_is_matched_by_their_order() -> None:
    """Rank 1's steps are 105 and 106, the others' 5 and 6; the figures are as with equal numbers."""
    compute = [[100, 150], [200, 100], [100, 100]]
    straight, other = data_parallel(compute), data_parallel(compute)
    for row in other[1]._rows:
        row.name = row.name.replace("ProfilerStep#", "ProfilerStep#10")
    expected, found = analyse(*straight), analyse(*other)
    assert found.trace_quality.unmatched_collectives == 0.0
    assert [notice.code for notice in found.warnings if notice not in expected.warnings] == ["steps_by_order"]
    assert found.ledger == expected.ledger
    assert found.collectives == expected.collectives
    assert [[step.index for step in rank.steps] for rank in found.ranks] == [[5, 6]] * 3


def test_another_stretch_of_the_run_is_not_matched_by_order() -> None:
    """Rank 1's capture begins after rank 0's has ended."""
    traces = data_parallel([[100, 150], [200, 100]])
    for row in traces[1]._rows:
        row.name = row.name.replace("ProfilerStep#", "ProfilerStep#10")
        row.start, row.end = row.start + 10_000, row.end + 10_000
    found = analyse(*traces)
    assert found.trace_quality.unmatched_collectives == 1.0
    assert "steps_by_order" not in [notice.code for notice in found.warnings]
