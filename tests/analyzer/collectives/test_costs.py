"""Communication: bandwidth, hidden share, skew and last arrival of collectives, and their problems."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepscope.analyzer.collectives.costs import transfer_faults
from stepscope.analyzer.rank_view import RankView
from stepscope.analyzer.summaries import JobContext
from stepscope.core.documents.analysis import Analysis, Collective
from stepscope.core.vocabulary import Cause, Reason, TimeCategory
from stepscope.workflow.analyze import analyze
from tests.analyzer.build import TraceBuilder
from tests.analyzer.jobs import data_parallel
from tests.analyzer.readings import analyse, row_of, view_of

MIB = 1 << 20


def test_bandwidth_is_of_the_transfer_and_not_of_the_waiting() -> None:
    """4,096 bytes in 20 us after the last arrival, though the first member's kernel lasts 120."""
    analysis = analyse(*data_parallel([[100, 100], [200, 200]]))
    (row,) = analysis.collectives
    assert (row.kind, row.count, row.bytes) == ("all_reduce", 2, 4096)
    assert row.algbw_gbs == pytest.approx(4096 / 20e-6 / 1e9)
    assert row.busbw_gbs == pytest.approx(row.algbw_gbs)  # 2 (n-1)/n = 1 for two ranks
    assert (row.last_arriver, row.times_last) == (1, 2)
    assert [row.skew_ms, row.largest_skew_ms] == pytest.approx([0.1, 0.1])
    assert [row.transfer_ms, row.wait_ms] == pytest.approx([0.04, 0.2])
    assert [row.exposed_wait_ms, row.exposed_transfer_ms] == pytest.approx([0.2, 0.08])
    assert (row.hidden, row.hidden_wait, row.hidden_transfer) == (0.0, 0.0, 0.0)
    assert (row.link, row.latency_bound) == ("nvlink", True)


def _on_two_hosts(rank: int, trace: TraceBuilder) -> None:
    trace.host = f"node{rank // 2}"


def test_between_hosts_the_networks_rate_tells_what_to_expect_and_without_it_nothing_does() -> None:
    traces = data_parallel([[100], [100], [100], [100]], adjust=_on_two_hosts)
    (unknown,) = analyse(*traces).collectives
    assert (unknown.link, unknown.expected_busbw_gbs, unknown.latency_bound) == (None, None, None)

    (row,) = analyse(*traces, context=JobContext(network_bytes_per_second=50e9)).collectives
    assert (row.link, row.bytes, row.latency_bound) == ("network", 4096, True)
    seconds = (3.6 + 4 * 0.47 + 2 * 2.7) / 1e6 + 4096 * 1.5 / 100e9 / 0.25  # LL over two hosts' two cards each
    assert row.expected_busbw_gbs == pytest.approx(4096 * 1.5 / seconds / 1e9)


def test_hidden_waiting_is_told_from_hidden_transfer() -> None:
    """Compute covers the first rank's wait of 60 us and 10 of its 40 us of transfer."""
    traces = [TraceBuilder(rank=rank, world_size=2) for rank in (0, 1)]
    for rank, trace in enumerate(traces):
        trace.step(5, 0, 50)
        trace.kernel(1000, 1100, launch=10)
        trace.collective("allreduce", 1100 + 60 * rank, 1200, launch=20, group=(0, 1))
        trace.kernel(1110 if rank == 0 else 1200, 1170 if rank == 0 else 1210, launch=30)
    (row,) = analyse(*traces).collectives
    assert row.hidden_wait == pytest.approx(50 / 60)
    assert row.hidden_transfer == pytest.approx(10 / 80)


def test_who_comes_late_and_how_late() -> None:
    analysis = analyse(*data_parallel([[100, 150], [200, 100], [100, 100]]))
    assert [(row.rank, row.times_last) for row in analysis.arrivals] == [(1, 1), (0, 1), (2, 0)]
    assert [row.mean_late_ms for row in analysis.arrivals] == [pytest.approx(x) for x in (0.05, 0.025, 0.0)]


def test_the_last_arriver_is_the_one_waited_for_longest_and_not_the_one_last_most_often() -> None:
    """Rank 1 is 100 us late once, rank 0 by 1 us three times: 100 of the 103 us of waiting are for rank 1."""
    (row,) = analyse(*data_parallel([[100, 101, 101, 101], [200, 100, 100, 100]])).collectives
    assert (row.last_arriver, row.times_last, row.count) == (1, 1, 4)
    assert [row.wait_ms, row.skew_ms, row.largest_skew_ms] == pytest.approx([0.103, 0.103 / 4, 0.1])


def test_uneven_all_to_alls_share_a_row_of_the_mean_size_apart_from_the_exchange_of_the_counts() -> None:
    """Rank 0 brings 1,000 and 1,400 elements of four bytes, rank 1 1,200 and 1,000; 4 and 8 are counts."""
    sizes = [(4, 8), (1000, 1200), (4, 8), (1400, 1000)]
    traces = [TraceBuilder(rank=rank, world_size=2) for rank in (0, 1)]
    for rank, trace in enumerate(traces):
        trace.step(5, 0, 50)
        trace.kernel(0, 100, launch=5)
        for place, elements in enumerate(sizes):
            start, launch = 200 + 100 * place, 10 + 10 * place
            trace.collective("all_to_allv", start, start + 20, launch=launch, group=(0, 1), elements=elements[rank])
    rows = sorted(analyse(*traces).collectives, key=lambda row: row.bytes or 0)
    assert [(row.kind, row.bytes, row.count) for row in rows] == [("all_to_all", 24, 2), ("all_to_all", 4600, 2)]
    assert rows[1].algbw_gbs == pytest.approx(4600 / 20e-6 / 1e9)


def test_waiting_for_a_rank_that_is_there_is_known_although_another_ranks_trace_is_missing() -> None:
    """Rank 1 comes 100 us after rank 0; rank 2's trace is missing, so it may have come even later."""
    analysis = analyse(*data_parallel([[100], [200], [150]])[:2])
    assert analysis.ledger[TimeCategory.WAIT] == 0.0
    (cost,) = analysis.communication_by_dimension
    windows_us = sum(rank.window_ms for rank in analysis.ranks) * 1e3
    assert cost.unsplit * windows_us == pytest.approx(120 + 20)
    assert cost.unsplit_wait_at_least * windows_us == pytest.approx(100)


def collective(**about: object) -> Collective:
    fields = dict.fromkeys(Collective.__dataclass_fields__)
    told = {
        "group": "0,1",
        "dimension": "dp",
        "kind": "all_reduce",
        "bytes": 100 * MIB,
        "count": 10,
        "busbw_gbs": 200.0,
        "expected_busbw_gbs": 350.0,
        "transfer_ms": 10.0,
        "hidden": 0.9,
        "hidden_transfer": 0.9,
        "exposed_transfer_ms": 2.0,
        "link": "nvlink",
        "latency_bound": False,
    }
    return Collective(**{**fields, **told, **about})  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def views() -> dict[int, RankView]:
    trace = TraceBuilder()
    trace.kernel(0, 10, launch=0)
    return {0: view_of(trace)}


@pytest.mark.parametrize(
    ("rows", "reasons"),
    [
        ([collective()], []),
        ([collective(busbw_gbs=25.0)], [Reason.WRONG_TRANSPORT]),
        ([collective(busbw_gbs=90.0)], [Reason.SLOW_LINK]),
        ([collective(busbw_gbs=5.0, expected_busbw_gbs=45.0, link="pcie")], [Reason.SLOW_LINK]),
        ([collective(busbw_gbs=5.0, expected_busbw_gbs=45.0, link="network")], [Reason.SLOW_LINK]),
        ([collective(busbw_gbs=1.0, expected_busbw_gbs=4.0, latency_bound=True)], [Reason.SMALL_MESSAGES]),
        ([collective(busbw_gbs=25.0, exposed_transfer_ms=1.0), collective(exposed_transfer_ms=9.0)], []),
        ([collective(hidden_transfer=0.01)], [Reason.NO_OVERLAP]),
        ([collective(hidden_transfer=0.01, kind="all_gather"), collective()], [Reason.NO_PREFETCH]),
        ([collective(hidden_transfer=0.01, dimension="tp")], [Reason.NO_OVERLAP]),
        ([collective(hidden_transfer=0.01, dimension=dimension) for dimension in ("dp", "tp")], [Reason.NO_OVERLAP]),
        ([collective(hidden_transfer=0.01, dimension="pp")], []),
        ([collective(exposed_transfer_ms=0.0, hidden_transfer=0.01)], []),
        ([collective(expected_busbw_gbs=None, busbw_gbs=1.0, link=None, latency_bound=None)], []),
    ],
)
def test_what_is_wrong_with_the_exposed_transfers(
    rows: list[Collective], reasons: list[Reason], views: dict[int, RankView]
) -> None:
    assert [reason for reason, _ in transfer_faults(rows, views, 2)] == reasons


def groups_of_two(num: int, **slow: object) -> list[Collective]:
    """Transfers of so many pairs of ranks, those of the first one as told."""
    healthy = [collective(group=f"{2 * pair},{2 * pair + 1}") for pair in range(1, num)]
    return [*healthy, collective(group="0,1", **slow)]


@pytest.mark.parametrize("num", [1, 8, 128])
def test_one_bad_link_is_named_in_a_job_of_any_size(num: int, views: dict[int, RankView]) -> None:
    ((reason, evidence),) = transfer_faults(groups_of_two(num, busbw_gbs=90.0, exposed_transfer_ms=6.0), views, 2)
    assert (reason, evidence[0].ranks) == (Reason.SLOW_LINK, [0, 1])


def test_slow_transfers_that_hold_no_rank_up_are_no_fault(views: dict[int, RankView]) -> None:
    assert transfer_faults(groups_of_two(128, busbw_gbs=90.0, exposed_transfer_ms=0.2), views, 2) == []


@pytest.mark.shared
def test_traffic_over_host_memory_is_the_wrong_transport(shared_traces: Path) -> None:
    def analysis_of(case: str) -> Analysis:
        return analyze([str(shared_traces / "h100x2" / case)], keep=False).analysis

    slow = row_of(analysis_of("fsdp_p2poff"), Cause.COMMUNICATION)
    assert slow.reasons == [Reason.WRONG_TRANSPORT]
    numbers = {item.metric: item for item in slow.evidence}
    assert numbers["bus_bandwidth"].value == pytest.approx(24.7, abs=0.1)
    assert numbers["expected_bus_bandwidth"].value > 300
    for case in ("ddp", "fsdp"):
        analysis = analysis_of(case)
        assert row_of(analysis, Cause.COMMUNICATION).reasons == []
        assert [cost.dimension for cost in analysis.communication_by_dimension] == ["dp"]
        assert analysis.job.mesh.dp == 2


@pytest.mark.shared
def test_eight_ranks_of_2023_come_late_as_known(shared_traces: Path) -> None:
    """The first collective's skew is 7,624 us; HTA names ranks 2 and 7 as stragglers."""
    analysis = analyze([str(shared_traces / "public" / "param" / "dlrm_8rank_kineto")], keep=False).analysis
    first = max(analysis.collectives, key=lambda row: row.wait_ms or 0.0)
    assert first.largest_skew_ms == pytest.approx(7.624)
    assert {row.rank for row in analysis.arrivals[:2]} == {2, 7}
    assert analysis.arrivals[-1].rank == 1


@pytest.mark.shared
def test_waiting_of_two_gloo_ranks_is_what_reading_their_spans_by_hand_gives(shared_traces: Path) -> None:
    """Rank 0 issues at 324.22, 472.42, 584.24, 747.12 and 886.00 ms what rank 1 joins at 461.96, 475.68, 711.37, 842.48
    and 886.17; rank 1 waits at 479.13, 480.85 and 493.26 until 479.95, 481.07 and 499.64."""
    analysis = analyze([str(shared_traces / "public" / "torch213_gloo")], keep=False).analysis
    waited_ms = {row.rank: row.ledger[TimeCategory.WAIT] * row.window_ms for row in analysis.ranks}
    assert waited_ms[0] == pytest.approx(137.74 + 3.26 + 127.13 + 95.36 + 0.17, abs=0.5)
    assert waited_ms[1] == pytest.approx(0.82 + 0.22 + 6.38, abs=0.2)
    assert analysis.ledger[TimeCategory.COMMUNICATION_UNSPLIT] == 0.0
    sizes = {(row.kind, row.bytes) for row in analysis.collectives}
    assert sizes == {("all_reduce", 37408), ("all_reduce", 40), ("all_gather", 32), ("p2p", 12)}
    assert (analysis.job.mesh.dp, analysis.job.mesh.pp) == (2, None)
