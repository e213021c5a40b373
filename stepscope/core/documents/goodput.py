"""Goodput (`stepscope.goodput/1`): what the GPU-time of jobs went to, their attempts, and how often to checkpoint.

GPU-time is the number of ranks times the wall-clock time, from a job's first start to its end; one rank has one GPU.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from stepscope.core.vocabulary import GoodputClass, Notice

GOODPUT_SCHEMA = "stepscope.goodput/1"


@dataclass(frozen=True, slots=True)
class AttemptGoodput:
    """Goodput document: one start of the job.

    Attributes:
        run: path of the run directory.
        attempt: its number in that run, from 1 on.
        start_ns: ns since the epoch; None where run.json does not have it.
        end_ns: None where the attempt was killed, or still runs.
        ended: finished | exception | signal | measuring stopped | killed; None: it still runs, or was killed.
        first_step, last_step: the job's own numbers; None without a step.
        num_steps: that it trained.
        num_lost_steps: of them, those that a later attempt made worthless, as it resumed from an earlier step.
        num_repeated_steps: of them, those that an earlier attempt had trained. Both are None where it is not known
            which step a later attempt, or this one, resumed from.
        restart_seconds: from the last step of the attempt before to its own first step; None for the first.
        recovery_seconds: from its first step until the job was as far as before; None for the first, and where it never
            was, or where the step that it resumed from is not known.
    """

    run: str
    attempt: int
    start_ns: int | None
    end_ns: int | None
    ended: str | None
    world_size: int
    first_step: int | None
    last_step: int | None
    num_steps: int
    num_lost_steps: int | None
    num_repeated_steps: int | None
    restart_seconds: float | None
    recovery_seconds: float | None


@dataclass(frozen=True, slots=True)
class CheckpointCost:
    """Goodput document: the checkpoints of a job, by the phases of its steps.

    Attributes:
        num_checkpoints: that the steps recorded.
        seconds: that training waits for one, the mean.
        bytes: of one, all ranks together; None where unknown.
        gb_per_second: 1e9 bytes; None where the size is unknown.
        interval_steps, interval_seconds: from one to the next, the median; None with fewer than two in an attempt.
    """

    num_checkpoints: int
    seconds: float
    bytes: int | None
    gb_per_second: float | None
    interval_steps: int | None
    interval_seconds: float | None


@dataclass(frozen=True, slots=True)
class CheckpointAdvice:
    """Goodput document: how often to write a checkpoint, by Daly's formula from the measured failures and cost.

    Attributes:
        num_failures: attempts that did not finish, without a last one that may still run.
        seconds_between_failures: None without a failure.
        seconds: of training between two checkpoints, at which least time is lost to both; None without a failure, or
            where the cost of a checkpoint is not known.
        steps: the same in steps.
        low_seconds, high_seconds: the same by the ends of the 90% interval of the failure rate; without a failure there
            is no upper end.
    """

    num_failures: int
    seconds_between_failures: float | None
    seconds: float | None
    steps: int | None
    low_seconds: float | None
    high_seconds: float | None


@dataclass(frozen=True, slots=True)
class JobGoodput:
    """Goodput document: one job, of one or more run directories.

    Attributes:
        attempts: starts of the job, in order.
        job: the label `job` of its runs, else the name of the run.
        runs: paths of its run directories in order of time.
        device_kind: gpu | cpu.
        world_sizes: of its attempts in order, without repetitions.
        wall_seconds: from its first start to its end or its last step.
        rank_seconds: number of ranks times wall-clock time: GPU-seconds where each rank has a GPU.
        goodput: share of productive training.
        time: share of `rank_seconds` by class; adds up to 1.
        num_kept_steps: steps whose result was kept.
        num_lost_steps, num_repeated_steps: of all attempts; None where it is not known which step one resumed from.
    """

    job: str
    runs: list[str]
    device_kind: str
    world_sizes: list[int]
    wall_seconds: float
    rank_seconds: float
    goodput: float
    time: dict[GoodputClass, float]
    num_kept_steps: int | None
    num_lost_steps: int | None
    num_repeated_steps: int | None
    attempts: list[AttemptGoodput]
    checkpoints: CheckpointCost | None
    checkpoint_advice: CheckpointAdvice


@dataclass(frozen=True, slots=True)
class ClusterGoodput:
    """Goodput document: all jobs together; shares as of `JobGoodput`, weighted by GPU-time."""

    num_jobs: int
    num_attempts: int
    rank_seconds: float
    goodput: float
    time: dict[GoodputClass, float]


@dataclass(frozen=True, slots=True)
class GoodputReport:
    """The document `stepscope.goodput/1`; jobs in order of GPU-time, the largest first."""

    jobs: list[JobGoodput]
    total: ClusterGoodput
    warnings: list[Notice] = field(default_factory=list)
    schema: str = GOODPUT_SCHEMA
