"""Analyses of jobs, and dumps beside them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from stepscope.analyzer.dumps.hang import FlightRecords
from stepscope.analyzer.dumps.transports import JobLog
from stepscope.analyzer.job_time.job_verdict import RunFacts
from stepscope.analyzer.nccl import explain_nccl
from stepscope.analyzer.nccl.transports import transports_of_job
from stepscope.analyzer.summaries import JobContext
from stepscope.analyzer.untraced_job import analyse_untraced_job
from stepscope.collectors.nccl.log import read_log
from stepscope.core.documents.analysis import Analysis, NextCause, PredictedFix, RootCause
from stepscope.core.documents.run_directory import Attempt
from stepscope.core.vocabulary import Cause, Reason
from tests.analyzer.hang.recorders import Job
from tests.analyzer.job_time.records import rank_steps

SECOND = 1_000_000_000


def analysis_of(cause: Cause, *, world_size: int = 4, **verdict: Any) -> Analysis:
    """A job on GPUs whose verdict is this cause, with 30% of training time."""
    more = {"figures": {"memory_allocated_bytes": 1e9}}
    facts = RunFacts([rank_steps(rank, [40.0] * 40, lambda _: more) for rank in range(world_size)])
    analysis = analyse_untraced_job(facts, JobContext(), world_size=world_size)
    fields: dict[str, Any] = {
        "cause": cause,
        "bottleneck": True,
        "share": 0.3,
        "confidence": 0.9,
        "summary": "30% of training time",
        "actions": ["larger buckets", "no_sync()"],
        "fix": PredictedFix("larger buckets", 28.0, 1.4, 0.05, "replay"),
    }
    row = RootCause(cause, [Reason.NO_OVERLAP], 0.3, 12.0, None, [], [])
    return replace(analysis, verdict=replace(analysis.verdict, **(fields | verdict)), root_causes=[row])


def beside(analysis: Analysis, share: float) -> Analysis:
    """The same with communication next."""
    return replace(analysis, verdict=replace(analysis.verdict, next=NextCause(Cause.COMMUNICATION, share)))


def hung(num_ranks: int = 4, guilty: int = 2, *, at_ns: int = 100 * SECOND, backend: str = "nccl") -> FlightRecords:
    """Dumps of a job of which one rank does not make the second call."""
    others = [rank for rank in range(num_ranks) if rank != guilty]
    job = Job({"0": tuple(range(num_ranks))}, backend).call("0").call("0", others, done=False)
    dumps = [
        replace(dump, operations=tuple(replace(call, created_ns=at_ns + call.record) for call in dump.operations))
        for dump in job.dumps()
    ]
    return FlightRecords(dumps)


def nccl_log(
    num_ranks: int = 4,
    *,
    via: str = "NET/Socket/0",
    environment: Sequence[str] = (),
    of_ranks: Collection[int] = range(99),
    hosts: int = 2,
) -> list[str]:
    """Lines of a job's log: a ring over machines of equally many ranks, of which some have an environment."""
    lines = []
    for rank in range(num_ranks):
        begin = f"node{rank * hosts // num_ranks}:{100 + rank}:1 [0] NCCL INFO "
        join = f"ncclCommInitRank comm 0x1 rank {rank} nranks {num_ranks} cudaDev 0 nvmlDev 0 busId 1 commId 0xab"
        own = environment if rank in of_ranks else ()
        lines += [f"{begin}{name} set by environment to {value}." for name, _, value in map(_split, own)]
        lines.append(f"{begin}{join} - Init START")
        target = (rank + 1) % num_ranks
        inside = rank * hosts // num_ranks == target * hosts // num_ranks
        lines.append(f"{begin}Channel 00/0 : {rank}[0] -> {target}[0] [send] via {'P2P/CUMEM' if inside else via}")
    return lines


def _split(setting: str) -> tuple[str, str, str]:
    return setting.partition("=")


def transports(lines: Sequence[str], world_size: int = 4) -> JobLog:
    """The log as the analysis gets it."""
    events = list(read_log(enumerate(lines, 1), file="log"))
    return JobLog(explain_nccl(events), transports_of_job(events, world_size))


def attempt(start_ns: int, ended: str | None = None, end_ns: int | None = None) -> Attempt:
    return Attempt(start_ns, end_ns, ended, 4)
