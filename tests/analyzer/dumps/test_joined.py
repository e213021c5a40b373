"""Dumps change the verdict where they are of the job as it ended, and are a finding elsewhere."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stepscope.analyzer.dumps.hang import FlightRecords
from stepscope.analyzer.dumps.joined import RunDumps, with_dumps
from stepscope.analyzer.dumps.out_of_memory import RankSnapshot
from stepscope.analyzer.dumps.records import JobRecords
from stepscope.analyzer.dumps.stuck import StuckStep
from stepscope.analyzer.memory import explain_memory
from stepscope.core.documents.analysis import Analysis, EvidenceLayer, PredictedFix
from stepscope.core.documents.hang import HangEvidence, HangKind, LiveHang, LiveHangState
from stepscope.core.documents.memory import MemorySnapshot, OutOfMemoryNote
from stepscope.core.documents.nccl import NcclFinding
from stepscope.core.documents.run_directory import Step
from stepscope.core.hardware.health import Severity
from stepscope.core.text.verdict import verdict_text
from stepscope.core.vocabulary import Cause, Change, Reason
from tests.analyzer.dumps.jobs import SECOND, analysis_of, attempt, beside, hung, nccl_log, transports

HANG_NS = 100 * SECOND


def layer(analysis: Analysis, name: str) -> EvidenceLayer:
    assert analysis.job_time is not None
    return next(one for one in analysis.job_time.layers if one.layer == name)


def codes(analysis: Analysis) -> list[str]:
    return [notice.code for notice in analysis.warnings]


def steps(*ends: float) -> list[Step]:
    """Steps of one second that end at these seconds."""
    return [Step(index, int((end - 1) * SECOND), int(end * SECOND)) for index, end in enumerate(ends)]


def joined_hang(records: JobRecords, flight: FlightRecords | None = None) -> Analysis:
    return with_dumps(analysis_of(Cause.DATA_LOADING), RunDumps(flight or hung()), records)


def test_without_dumps_nothing_changes() -> None:
    analysis = analysis_of(Cause.DATA_LOADING)
    assert with_dumps(analysis, RunDumps(), JobRecords(4)) == analysis


def test_a_hang_is_the_verdict_and_the_loss_before_it_comes_next() -> None:
    analysis = joined_hang(JobRecords(4, [attempt(0)], {rank: steps(98.0, 99.0) for rank in range(4)}))
    verdict = analysis.verdict
    assert (verdict.cause, verdict.reasons, verdict.ranks) == (Cause.HANG, [Reason.HOST], [2])
    assert (verdict.bottleneck, verdict.share, verdict.fix) == (None, None, None)
    assert verdict.next is not None
    assert (verdict.next.cause, verdict.next.share) == (Cause.DATA_LOADING, 0.3)
    assert verdict.secondary[0].cause is Cause.DATA_LOADING
    assert (layer(analysis, "flight").used, layer(analysis, "flight").agrees) == (True, True)
    text = verdict_text(analysis)
    assert text.lines()[0].startswith("HANG  host: rank 2 never called")
    assert text.evidence.endswith("than ranks 0–1, 3, by 4 flight recorder dumps.")
    assert [name for name, _ in text.remedies] == ["Fix", "Next"]


@pytest.mark.parametrize(
    ("records", "why"),
    [
        (JobRecords(4, [attempt(0), attempt(200 * SECOND)]), "of an earlier attempt"),
        (JobRecords(4, [attempt(0)], {0: steps(99.0, 102.0)}), "trained on"),
        (JobRecords(4, [attempt(0, "finished", 102 * SECOND)], {0: steps(99.0, 100.5)}), "trained on"),
        (JobRecords(4, [attempt(0, "finished", 102 * SECOND)]), "trained on"),
        (JobRecords(2, [attempt(0)]), "of another job: of ranks 2–3, and this one has 2 ranks"),
        (JobRecords(8, [attempt(0)]), "of another job: it has 4 ranks, and this one 8"),
    ],
)
def test_dumps_of_another_time_or_job_are_a_finding(records: JobRecords, why: str) -> None:
    flight = hung()
    dumps = [replace(dump, descriptions={"0": "default_pg"}) for dump in flight.dumps]
    analysis = joined_hang(records, flight._replace(dumps=dumps))
    assert analysis.verdict == analysis_of(Cause.DATA_LOADING).verdict
    assert not layer(analysis, "flight").used
    assert "hang_dumps" in codes(analysis)
    assert why in layer(analysis, "flight").note


def test_a_rank_that_left_early_does_not_excuse_those_that_wait_for_it() -> None:
    """Rank 0, which writes the manifest, has finished; the others have no step after their call."""
    flight = hung(guilty=0)
    records = JobRecords(
        4, [attempt(0, "finished", 99 * SECOND)], {0: steps(99.0), **{rank: steps(99.0) for rank in (1, 2, 3)}}
    )
    assert joined_hang(records, flight).verdict.ranks == [0]


def test_a_rank_whose_dump_is_damaged_is_not_blamed_for_having_left_none() -> None:
    flight = hung()
    there = FlightRecords([dump for dump in flight.dumps if dump.rank != 2], unreadable={2})
    analysis = joined_hang(JobRecords(4, [attempt(0)]), there)
    assert analysis.verdict.cause is Cause.DATA_LOADING
    assert "rank 2, whose dump cannot be read" in layer(analysis, "flight").note


@pytest.mark.parametrize("is_of_attempt", [True, False])
def test_dumps_that_an_earlier_hang_left_are_kept_apart_from_those_of_the_last(is_of_attempt: bool) -> None:
    """Rank 2 left none this time: it does not count with the one of the hang before, which the job outlived."""
    before, last = hung(guilty=0), hung(guilty=2, at_ns=HANG_NS + 50 * SECOND)
    dumps = [dump for dump in last.dumps if dump.rank != 2] + [dump for dump in before.dumps if dump.rank == 2]
    attempts = [attempt(0), attempt(120 * SECOND)] if is_of_attempt else [attempt(0)]
    ended = {} if is_of_attempt else {rank: steps(99.0, 149.0) for rank in range(4)}
    analysis = joined_hang(JobRecords(4, attempts, ended), FlightRecords(dumps))
    assert (analysis.verdict.cause, analysis.verdict.ranks) == (Cause.HANG, [2])
    assert analysis.verdict.reasons == [Reason.MISSING_RANK]
    assert any("dumps of rank 2 are of an earlier time" in notice.message for notice in analysis.warnings)


STUCK = StuckStep(0, 41, HANG_NS, "the wait for data", is_still=True, is_in_collective=False)


def test_without_flight_recorders_steps_that_do_not_end_tell() -> None:
    alone = with_dumps(
        analysis_of(Cause.CHECKPOINT, world_size=1), RunDumps(FlightRecords(stuck=[STUCK])), JobRecords(1)
    )
    assert (alone.verdict.cause, alone.verdict.reasons, alone.verdict.ranks) == (Cause.HANG, [Reason.HOST], [0])
    assert alone.verdict.summary == "rank 0 stands still in step 41, in the wait for data"
    others = [STUCK._replace(rank=rank, is_in_collective=True, where="all_reduce") for rank in (1, 2, 3)]
    several = joined_hang(JobRecords(4), FlightRecords(stuck=[STUCK, *others]))
    assert several.verdict.ranks == [0]
    assert "outside of the collective" in several.verdict.summary
    nobody = joined_hang(JobRecords(4), FlightRecords(stuck=others))
    assert (nobody.verdict.cause, nobody.verdict.ranks) == (Cause.HANG, [])
    assert nobody.verdict.confidence < 0.5


@pytest.mark.parametrize(
    ("stuck", "records"),
    [
        ([STUCK, STUCK._replace(rank=1, is_still=False)], JobRecords(4)),
        ([STUCK], JobRecords(4, [attempt(0)], {0: steps(101.0, 103.0)})),
        ([STUCK], JobRecords(4, [attempt(0), attempt(200 * SECOND)])),
        ([STUCK], JobRecords(4, [attempt(0, "finished")])),
        ([STUCK._replace(rank=4)], JobRecords(4)),
        ([], JobRecords(4)),
    ],
)
def test_steps_that_make_progress_or_ended_are_no_hang(stuck: list[StuckStep], records: JobRecords) -> None:
    before = analysis_of(Cause.DATA_LOADING)
    assert with_dumps(before, RunDumps(FlightRecords(stuck=stuck)), records) == before


@pytest.mark.parametrize("state", [LiveHangState.BUSY, LiveHangState.NONE])
def test_of_a_long_step_whose_ranks_make_progress_no_dump_shows_a_hang(state: LiveHangState) -> None:
    live = LiveHang(state, ranks=[2], summary="rank 2 at work: a checkpoint", step=41)
    analysis = joined_hang(JobRecords(4), hung()._replace(live=live))
    assert analysis.verdict == analysis_of(Cause.DATA_LOADING).verdict
    assert layer(analysis, "flight").note == "step 41 is long: rank 2 at work: a checkpoint"


def test_a_job_that_ended_while_one_rank_wrote_a_checkpoint_did_not_hang() -> None:
    analysis = joined_hang(JobRecords(4), hung()._replace(at_work={2: "a checkpoint"}))
    assert analysis.verdict == analysis_of(Cause.DATA_LOADING).verdict
    assert layer(analysis, "flight").note.endswith("the others wait for rank 2, in a checkpoint")


def test_a_hang_that_ranks_report_without_recorders_is_the_verdict() -> None:
    evidence = [HangEvidence([3], "in load (train.py:7)")]
    live = LiveHang(
        LiveHangState.HANG, HangKind.HOST, [Reason.HOST], [3], 0.6, "rank 3 not in the collective", evidence, 41, 30.0
    )
    analysis = joined_hang(JobRecords(4), FlightRecords(live=live))
    assert (analysis.verdict.cause, analysis.verdict.ranks) == (Cause.HANG, [3])
    assert verdict_text(analysis).evidence == "Rank 3 in load (train.py:7), the step is open for 30 s."


def test_where_it_is_too_early_nobody_is_not_called_a_hang() -> None:
    all_alike = hung()._replace(live=LiveHang(LiveHangState.UNDECIDED, step=41))
    assert joined_hang(JobRecords(4), all_alike).verdict.ranks == [2]
    dumps = [replace(dump, operations=all_alike.dumps[0].operations) for dump in all_alike.dumps]
    before = analysis_of(Cause.DATA_LOADING).verdict
    assert joined_hang(JobRecords(4), all_alike._replace(dumps=dumps)).verdict == before
    assert joined_hang(JobRecords(4), FlightRecords(dumps)).verdict.cause is Cause.HANG


def test_a_slow_transport_is_the_reason_of_exposed_communication() -> None:
    log = transports(nccl_log(environment=["NCCL_IB_DISABLE=1"]))
    analysis = with_dumps(analysis_of(Cause.COMMUNICATION), RunDumps(nccl=log), JobRecords(4))
    verdict = analysis.verdict
    assert verdict.reasons[0] is Reason.WRONG_TRANSPORT
    assert verdict.summary.endswith("because ranks 0–3 use NET/Socket: NCCL_IB_DISABLE=1")
    assert verdict.actions[0] == "unset NCCL_IB_DISABLE (now 1)"
    assert verdict.fix is not None
    assert verdict.fix.action == verdict.actions[0]
    assert (verdict.evidence[-1].ranks, verdict.evidence[-1].unit) == ([0, 1, 2, 3], "ways")
    assert analysis.root_causes[0].reasons == [Reason.WRONG_TRANSPORT, Reason.NO_OVERLAP]
    assert layer(analysis, "nccl").used
    assert "ranks 0–3 use NET/Socket, not a network card with GDRDMA" in verdict_text(analysis).evidence


def test_where_some_ranks_have_the_variable_they_are_named() -> None:
    log = transports(nccl_log(16, environment=["NCCL_IB_DISABLE=1"], of_ranks=range(8, 16)), 16)
    verdict = with_dumps(analysis_of(Cause.COMMUNICATION, world_size=16), RunDumps(nccl=log), JobRecords(16)).verdict
    assert verdict.summary.endswith("because ranks 8–15 use NET/Socket: NCCL_IB_DISABLE=1")
    assert verdict.actions[0] == "unset NCCL_IB_DISABLE (now 1) on ranks 8–15"
    assert verdict.evidence[-1].ranks == list(range(8, 16))


def test_the_step_after_another_change_is_not_promised_of_the_variable() -> None:
    before = analysis_of(Cause.COMMUNICATION)
    fix = PredictedFix("no_sync()", 30.0, 1.3, 0.05, "model", change=Change.NO_SYNC)
    before = replace(before, verdict=replace(before.verdict, fix=fix, actions=["no_sync()"]))
    log = transports(nccl_log(environment=["NCCL_IB_DISABLE=1"]))
    verdict = with_dumps(before, RunDumps(nccl=log), JobRecords(4)).verdict
    assert (verdict.fix, verdict.actions) == (None, ["unset NCCL_IB_DISABLE (now 1)", "no_sync()"])


def test_a_reason_that_the_trace_gives_too_agrees() -> None:
    analysis = analysis_of(Cause.COMMUNICATION)
    rows = [replace(analysis.root_causes[0], reasons=[Reason.WRONG_TRANSPORT])]
    analysis = replace(analysis, root_causes=rows)
    slow, fast = transports(nccl_log()), transports(nccl_log(via="NET/IB/0/GDRDMA"))
    assert layer(with_dumps(analysis, RunDumps(nccl=slow), JobRecords(4)), "nccl").agrees is True
    contradicted = with_dumps(analysis, RunDumps(nccl=fast), JobRecords(4))
    assert layer(contradicted, "nccl").agrees is False
    assert contradicted.verdict == analysis.verdict
    assert "transports_disagree" in codes(contradicted)


@pytest.mark.parametrize(("share", "has_reason"), [(0.2, True), (0.02, False)])
def test_of_communication_beside_the_verdict_the_reason_is_added_where_it_takes_time(
    share: float, has_reason: bool
) -> None:
    before = beside(analysis_of(Cause.DATA_LOADING), share)
    analysis = with_dumps(before, RunDumps(nccl=transports(nccl_log())), JobRecords(4))
    assert (analysis.verdict.cause, analysis.verdict.actions) == (before.verdict.cause, before.verdict.actions)
    assert analysis.verdict.next is not None
    assert (Reason.WRONG_TRANSPORT in analysis.verdict.next.reasons) == has_reason
    assert "nccl_log" in codes(analysis)


@pytest.mark.parametrize(
    ("world_size", "hosts", "why"),
    [(2, {}, "it has 4 ranks, and this one 2"), (4, {0: "other.site"}, "its rank 0 is on node0, and this one's on")],
)
def test_a_log_of_another_job_is_not_used(world_size: int, hosts: dict[int, str], why: str) -> None:
    before = analysis_of(Cause.COMMUNICATION)
    log = transports(nccl_log(), world_size)
    analysis = with_dumps(before, RunDumps(nccl=log), JobRecords(world_size, hosts=hosts))
    assert analysis.verdict == before.verdict
    assert not layer(analysis, "nccl").used
    assert why in layer(analysis, "nccl").note


def test_ranks_of_smaller_communicators_are_not_the_job_s() -> None:
    pair = [line.replace("0xab", "0xcd") for line in nccl_log(2)]
    log = transports([*nccl_log(via="NET/IB/0/GDRDMA"), *pair])
    assert all(one.ok for one in log.of_job.transports)
    analysis = with_dumps(analysis_of(Cause.COMMUNICATION), RunDumps(nccl=log), JobRecords(4))
    assert Reason.WRONG_TRANSPORT not in analysis.verdict.reasons


@pytest.mark.parametrize(
    ("code", "hosts", "reasons"),
    [
        ("shared_nic", 2, [Reason.SHARED_NIC]),
        ("shared_nic", 1, []),
        ("slow_nvlink", 1, [Reason.SLOW_LINK]),
        ("gpu_fault", 2, []),
    ],
)
def test_findings_on_machines_are_reasons_and_other_errors_warnings(
    code: str, hosts: int, reasons: list[Reason]
) -> None:
    log = transports(nccl_log(via="NET/IB/0/GDRDMA", hosts=hosts))
    found = NcclFinding(code, Severity.WARNING, "2 GPUs share 1 network card", "log", 1)
    log = log._replace(report=replace(log.report, findings=[found]))
    before = analysis_of(Cause.COMMUNICATION)
    analysis = with_dumps(before, RunDumps(nccl=log), JobRecords(4))
    assert analysis.verdict.reasons == [*reasons, *before.verdict.reasons]
    assert ("nccl_gpu_fault" in codes(analysis)) == (code == "gpu_fault")


def test_without_a_log_it_is_said_where_it_would_tell_more() -> None:
    bound = with_dumps(analysis_of(Cause.COMMUNICATION), RunDumps(), JobRecords(4))
    assert "NCCL_DEBUG_FILE" in layer(bound, "nccl").note
    assert bound.verdict == analysis_of(Cause.COMMUNICATION).verdict


def snapshot(rank: int, time_ns: int, *, is_failed: bool = True) -> RankSnapshot:
    note = OutOfMemoryNote(0, 4 << 30, 8 << 30, 1 << 20, "backward") if is_failed else None
    return RankSnapshot(rank, explain_memory(MemorySnapshot(), note), time_ns)


def test_memory_that_ran_out_at_the_end_is_the_verdict_also_where_others_then_hang() -> None:
    dumps = RunDumps(hung(guilty=1), [snapshot(1, 99 * SECOND)])
    analysis = with_dumps(analysis_of(Cause.DATA_LOADING), dumps, JobRecords(4, [attempt(0, "exception")]))
    verdict = analysis.verdict
    assert (verdict.cause, verdict.ranks) == (Cause.OUT_OF_MEMORY, [1])
    assert len(verdict.reasons) == 1
    assert "also_hang" in codes(analysis)
    assert verdict_text(analysis).lines()[0].startswith("OUT OF MEMORY  ")


@pytest.mark.parametrize(
    ("records", "is_told"),
    [
        (JobRecords(4, [attempt(0)], {1: steps(99.0, 101.0, 102.0)}), "and trained on"),
        (JobRecords(4, [attempt(0), attempt(150 * SECOND)]), "in an earlier attempt"),
        (JobRecords(4, [attempt(0, "finished")]), "and trained on"),
    ],
)
def test_memory_that_ran_out_earlier_is_a_finding(records: JobRecords, is_told: str) -> None:
    before = analysis_of(Cause.DATA_LOADING)
    analysis = with_dumps(before, RunDumps(snapshots=[snapshot(1, 99 * SECOND)]), records)
    assert analysis.verdict == before.verdict
    assert any(is_told in notice.message for notice in analysis.warnings)


def test_a_snapshot_of_a_healthy_job_changes_nothing() -> None:
    before = analysis_of(Cause.DATA_LOADING)
    analysis = with_dumps(before, RunDumps(snapshots=[snapshot(1, 0, is_failed=False)]), JobRecords(4))
    assert analysis.verdict == before.verdict
    assert analysis.warnings == before.warnings
    assert layer(analysis, "memory").used
