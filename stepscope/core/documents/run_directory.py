"""Layout of a run directory, and its manifest run.json.

run.json                       who, where, mesh, versions, environment, attempts, unprofiled step time
traces/step{k}/rank{r}.json.gz each capture in its own folder, k = first captured step; step{k}-attempt{n} of the job's
                               second and later starts
steps/rank{r}.jsonl            one line a step, appended whole; there from the start on, then empty
truth/rank{r}.jsonl            of simulated compute only: one line a step by the process's own clock
flight/rank{r}                 flight recorder of a rank that failed, or whose step did not end
flight/rank{r}.stuck.json      what that rank was in; rank{r}.stacks.txt its threads' stacks
flight/live/rank{r}            the same while the step still lasts, with rank{r}.state: how the rank is
memory/rank{r}.pickle          CUDA memory snapshot of a rank that ran out of memory
memory/rank{r}-oom.pickle      the same as profile() writes it, with the step's state in rank{r}-oom.json
memory/step{n}/rank{r}.pickle  snapshot at the end of step n; rank{r}.json says whose its blocks are
nccl/                          logs of NCCL, and what its inspector and RAS said
checkpoints/step{n}/           of reference workloads that write them: after n steps
analysis.json, timeline.json   once analysed
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import PurePath

RUN_SCHEMA = "stepscope.run/1"
RUN_FILE = "run.json"
ANALYSIS_FILE = "analysis.json"
TIMELINE_FILE = "timeline.json"
TRACES_FOLDER = "traces"
STEPS_FOLDER = "steps"
TRUTH_FOLDER = "truth"
FLIGHT_FOLDER = "flight"
LIVE_FOLDER = "live"
"""In flight/: what ranks whose steps last long say of themselves; gone with the step."""
MEMORY_FOLDER = "memory"
NCCL_FOLDER = "nccl"
"""Logs of NCCL, and what its inspector and RAS said."""
CHECKPOINT_FOLDER = "checkpoints"
CHECKPOINT_INDEX = ".metadata"
"""What torch.distributed.checkpoint writes last into a checkpoint's folder."""

PHASE_PREFIX = "prof.phase: "
"""How the spans of `prof.phase` begin in a trace."""
WHOLE_STEPS_KEY = "stepscope_whole_steps"
"""Top-level key of a captured trace: the steps recorded from their beginning to their end."""


def trace_path(first_step: int, rank: int, attempt: int = 1) -> PurePath:
    """Path of one rank's trace inside the run directory; `first_step` is the first captured step."""
    folder = f"step{first_step}" if attempt == 1 else f"step{first_step}-attempt{attempt}"
    return PurePath(TRACES_FOLDER, folder, f"rank{rank}.json.gz")


def steps_path(rank: int) -> PurePath:
    """Path of one rank's step telemetry inside the run directory."""
    return PurePath(STEPS_FOLDER, f"rank{rank}.jsonl")


def flight_path(rank: int) -> PurePath:
    """Path of one rank's flight recorder in the run directory; NCCL adds the rank to a prefix, hence no suffix."""
    return PurePath(FLIGHT_FOLDER, f"rank{rank}")


def stuck_path(rank: int) -> PurePath:
    """Path of what one rank was in when its step did not end, inside the run directory."""
    return PurePath(FLIGHT_FOLDER, f"rank{rank}.stuck.json")


def stacks_path(rank: int) -> PurePath:
    """Path of the stacks of one rank's threads, as text, inside the run directory."""
    return PurePath(FLIGHT_FOLDER, f"rank{rank}.stacks.txt")


def live_record_path(rank: int) -> PurePath:
    """Path of one rank's flight recorder while its step lasts long, inside the run directory."""
    return PurePath(FLIGHT_FOLDER, LIVE_FOLDER, f"rank{rank}")


def live_state_path(rank: int) -> PurePath:
    """Path of how one rank is while its step lasts long, inside the run directory."""
    return PurePath(FLIGHT_FOLDER, LIVE_FOLDER, f"rank{rank}.state")


def memory_snapshot_path(rank: int) -> PurePath:
    """Path of one rank's CUDA memory snapshot inside the run directory."""
    return PurePath(MEMORY_FOLDER, f"rank{rank}.pickle")


def oom_snapshot_path(rank: int) -> PurePath:
    """Path of the CUDA memory snapshot of a rank at the moment its memory ran out, inside the run directory."""
    return PurePath(MEMORY_FOLDER, f"rank{rank}-oom.pickle")


def oom_report_path(rank: int) -> PurePath:
    """Path of what that rank was in at that moment, inside the run directory."""
    return PurePath(MEMORY_FOLDER, f"rank{rank}-oom.json")


def periodic_snapshot_path(step: int, rank: int) -> PurePath:
    """Path of one rank's CUDA memory snapshot at the end of a step, inside the run directory."""
    return PurePath(MEMORY_FOLDER, f"step{step}", f"rank{rank}.pickle")


def memory_owners_path(step: int, rank: int) -> PurePath:
    """Path of the categories of that snapshot's blocks, inside the run directory."""
    return PurePath(MEMORY_FOLDER, f"step{step}", f"rank{rank}.json")


@dataclass(frozen=True, slots=True)
class Attempt:
    """One start of the job. Times are ns since the epoch; `end_ns` is None while it runs or when it was killed."""

    start_ns: int
    end_ns: int | None
    ended: str | None
    """finished | exception | signal | measuring stopped; None while it runs"""
    world_size: int


@dataclass(frozen=True, slots=True)
class RunManifest:
    """The content of run.json."""

    run: str
    host: str
    world_size: int
    mesh: dict[str, int]
    """sizes by dimension: tp, pp, dp, ep, cp; those not known are absent"""
    num_cpus: int
    """processors this host may use"""
    versions: dict[str, str]
    environment: dict[str, str]
    attempts: list[Attempt]
    unprofiled_step_ms: float | None = None
    """rank 0's median step before the first capture; after it when none was before"""
    simulated_compute: bool = False
    """layers sleep instead of computing"""
    labels: dict[str, str] = field(default_factory=dict)
    schema: str = RUN_SCHEMA
