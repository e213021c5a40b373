"""Layout of a run directory, its manifest run.json, its steps and those of logs (`stepscope.steps/1`), its timelines.

run.json                       the manifest: host, mesh, versions, environment, settings, attempts, unprofiled step time
traces/step{k}/rank{r}.json.gz one folder per capture, k = first captured step; step{k}-attempt{n} in the job's second
                               and later attempts
views/step{k}/rank{r}.view     the per-rank half of an analysis of that trace; rank0.light.view: the replay of the
                               light captures of all ranks; rank{r}.removed.json: traces of the capture that were
                               removed because their views stand for them, by the process of that rank
steps/rank{r}.jsonl            one line per step, appended whole; created empty at the start
metrics/rank{r}.jsonl          counters of the rank's own GPUs and host, one line per message of the node's agent
ranks/rank{r}.json             where the rank runs: host, GPU, process, the scheduler's job
truth/rank{r}.jsonl            only with simulated compute: one line per step by the process's own clock
flight/rank{r}                 flight recorder of a rank that failed, or whose step did not end
flight/rank{r}.stuck.json      state of that rank; rank{r}.stacks.txt has the stacks of its threads
flight/live/rank{r}            flight recorder during a long step, with rank{r}.state: the state of the rank
memory/rank{r}.pickle          CUDA memory snapshot of a rank that ran out of memory
memory/rank{r}-oom.pickle      the same, written by profile(), with the state of the step in rank{r}-oom.json
memory/step{n}/rank{r}.pickle  snapshot at the end of step n; rank{r}.json has the categories of its blocks
nccl/                          logs of NCCL, and output of its inspector and RAS
uploads/{node}.json            what each node has uploaded, of a run that leaves its nodes
checkpoints/step{n}/           of reference workloads that write them, after n steps
analysis.json, timeline.json   after `stepscope analyze`
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from enum import StrEnum
from pathlib import PurePath

from stepscope.core.documents.training_settings import TrainingSettings
from stepscope.core.vocabulary import Notice

RUN_SCHEMA = "stepscope.run/1"
RUN_FILE = "run.json"
ANALYSIS_FILE = "analysis.json"
TIMELINE_FILE = "timeline.json"
LIVE_VERDICT_FILE = "verdict.json"
"""The newest live verdict of the running job."""
TRACES_FOLDER = "traces"
LIGHT_FOLDER = "light"
"""Light captures, of the GPU's activities and runtime calls alone: folders and files as in traces/."""
VIEWS_FOLDER = "views"
REMOVED_SUFFIX = ".removed.json"
STEPS_FOLDER = "steps"
METRICS_FOLDER = "metrics"
RANKS_FOLDER = "ranks"
TRUTH_FOLDER = "truth"
FLIGHT_FOLDER = "flight"
LIVE_FOLDER = "live"
"""In flight/: state of ranks in a long step; removed when the step ends."""
MEMORY_FOLDER = "memory"
NCCL_FOLDER = "nccl"
UPLOADS_FOLDER = "uploads"
CHECKPOINT_FOLDER = "checkpoints"
CHECKPOINT_BYTES = "checkpoint_bytes"
"""Figure of a step: bytes of the checkpoints that a rank wrote in it."""
CHECKPOINT_INDEX = ".metadata"
"""The file that torch.distributed.checkpoint writes last into a checkpoint."""

PHASE_PREFIX = "prof.phase: "
"""Prefix of the names of `prof.phase` spans in a trace."""
WHOLE_STEPS_KEY = "stepscope_whole_steps"
"""Top-level key of a captured trace: the steps that it contains from beginning to end."""


def trace_path(first_step: int, rank: int, attempt: int = 1, *, is_light: bool = False) -> PurePath:
    """Document layout of a run directory: path of one rank's trace; `first_step` is the first captured step."""
    folder = f"step{first_step}" if attempt == 1 else f"step{first_step}-attempt{attempt}"
    return PurePath(LIGHT_FOLDER if is_light else TRACES_FOLDER, folder, f"rank{rank}.json.gz")


def view_path(trace: PurePath, variant: str = "") -> PurePath:
    """Document layout of a run directory: path of the view of one rank's trace; `variant` tells its views apart."""
    name = trace.name.removesuffix(".gz").removesuffix(".json")
    return PurePath(VIEWS_FOLDER, trace.parent.name, f"{name}.{variant}.view" if variant else f"{name}.view")


class KeepTraces(StrEnum):
    """Which traces of a capture stay once views stand for them."""

    OUTLIERS = "outliers"
    ALL = "all"
    NONE = "none"


def removed_path(capture: str, rank: int) -> PurePath:
    """Document layout of a run directory: path of a rank's record of the traces of a capture that were removed."""
    return PurePath(VIEWS_FOLDER, capture, f"rank{rank}{REMOVED_SUFFIX}")


class RankFile(StrEnum):
    """Layout of a run directory: a file of each rank, as a pattern of its path."""

    STEPS = f"{STEPS_FOLDER}/rank{{rank}}.jsonl"
    COUNTERS = f"{METRICS_FOLDER}/rank{{rank}}.jsonl"
    PLACE = f"{RANKS_FOLDER}/rank{{rank}}.json"
    FLIGHT_RECORDER = f"{FLIGHT_FOLDER}/rank{{rank}}"  # NCCL appends the rank to a prefix, hence no suffix
    STUCK_REPORT = f"{FLIGHT_FOLDER}/rank{{rank}}.stuck.json"
    STACKS = f"{FLIGHT_FOLDER}/rank{{rank}}.stacks.txt"
    LIVE_RECORD = f"{FLIGHT_FOLDER}/{LIVE_FOLDER}/rank{{rank}}"
    LIVE_STATE = f"{FLIGHT_FOLDER}/{LIVE_FOLDER}/rank{{rank}}.state"
    MEMORY_SNAPSHOT = f"{MEMORY_FOLDER}/rank{{rank}}.pickle"
    OOM_SNAPSHOT = f"{MEMORY_FOLDER}/rank{{rank}}-oom.pickle"
    OOM_REPORT = f"{MEMORY_FOLDER}/rank{{rank}}-oom.json"
    PERIODIC_SNAPSHOT = f"{MEMORY_FOLDER}/step{{step}}/rank{{rank}}.pickle"
    MEMORY_OWNERS = f"{MEMORY_FOLDER}/step{{step}}/rank{{rank}}.json"

    def path(self, rank: int, step: int = 0) -> PurePath:
        """Path inside the run directory; `step` is that of a periodic snapshot."""
        return PurePath(self.format(rank=rank, step=step))


@dataclass(frozen=True, slots=True)
class Attempt:
    """Run manifest: one start of the job. Times are ns since the epoch; `end_ns` is None while it runs or if killed."""

    start_ns: int
    end_ns: int | None
    ended: str | None
    """finished | exception | signal | measuring stopped; None while it runs"""
    world_size: int
    first_step: int | None = None
    """number of the first step as the training code gave it; None where steps were numbered on"""
    last_step: int | None = None
    """last step that it ended, also one without a line, where it was killed and the next attempt could tell"""
    first_step_ns: int | None = None
    """start of its first step, known with `last_step`"""
    last_step_ns: int | None = None
    """end of its last step, known with `last_step`"""


@dataclass(frozen=True, slots=True)
class RunManifest:
    """The document run.json."""

    run: str
    host: str
    world_size: int
    mesh: dict[str, int]
    """sizes by dimension (tp, pp, dp, ep, cp); unknown ones are absent"""
    num_cpus: int
    """processors that the process may use"""
    versions: dict[str, str]
    environment: dict[str, str]
    """variables that change how a step runs, from a fixed list of names"""
    attempts: list[Attempt]
    unprofiled_step_ms: float | None = None
    """median step of rank 0 before the first capture, or after it where there is none before"""
    simulated_compute: bool = False
    """layers sleep instead of computing"""
    labels: dict[str, str] = field(default_factory=dict)
    cpu_affinity: str = ""
    """the processors that rank 0 may use at its start, as the kernel lists them ("0-3,8"); empty when unknown"""
    settings: TrainingSettings | None = None
    """the latest: read at the start, before each capture and at the end"""
    schema: str = RUN_SCHEMA


@dataclass(frozen=True, slots=True)
class RankPlace:
    """The document ranks/rank{r}.json: where a rank of the latest attempt runs.

    Attributes:
        start_ns: start of profiling in this process, ns since the epoch.
        gpu_uuid: GPU-... or MIG-...; None without a GPU, or before torch has begun to use it.
        job_kind, job_id: the scheduler's or launcher's own; None where it set no variable.
    """

    rank: int
    local_rank: int
    host: str
    pid: int
    start_ns: int
    gpu_uuid: str | None = None
    job_kind: str | None = None
    job_id: str | None = None


@dataclass(frozen=True, slots=True)
class RankTimeline:
    """Timeline document: one rank's window, cut into segments of one category each.

    Attributes:
        start_ns: start of each segment, ascending, ns since the epoch on the job's clock.
        end_ns: end of the last segment; segment i ends where segment i + 1 starts.
        categories: of each segment, as an index in CATEGORY_ORDER.
        step_starts_ns: device boundaries of the steps in the window.
        step_indices: number of the step that begins at each boundary.
    """

    rank: int
    start_ns: list[int]
    end_ns: int
    categories: list[int]
    step_starts_ns: list[int]
    step_indices: list[int]


STEPS_SCHEMA = "stepscope.steps/1"


@dataclass(frozen=True, slots=True)
class Step:
    """Steps document: one finished step of one rank, by the clock of its host: one line of steps/rank{r}.jsonl.

    In a line, `figures` are fields of their own beside these, and what is empty or has its default may be left out.

    Attributes:
        start_ns, end_ns: ns since the epoch.
        data_wait_ns: time that the loop waited for its batches.
        phases: ns by name; one phase may lie inside another, but an evaluation is without the checkpoints inside of it.
        figures: what the training code passed to `prof.step`, and what is measured beside (loss, tokens, memory, ...).
        captured: a profiler recorded the step, which makes it longer.
        anomalies: kinds of anomaly found in the step.
        non_finite: names of figures that were NaN or infinite; they are not among the others.
        attempt: which start of the job, from 1 on.
        state: of the profiler's schedule: wait, warmup, active.
        export_ns: time spent after the step to write a trace; not part of a step.
        prepare_ns: time spent after the step to set up and start the profiler; not part of a step.
        device_ns: the GPU's time from the end of the step before to the end of this one, by CUDA events; None: unknown.
        exposed_data_wait_ns: the GPU's time from the beginning to the end of the waits for batches: less than
            `data_wait_ns` where earlier work kept the GPU busy. None: unknown.
        exposed_phases: the same for each phase, its own GPU work included; unknown ones are absent.
        run_delay_ns: time that the threads which launch the work (the training thread, autograd's) were runnable and
            had no CPU; steps shorter than 50 ms share what was read for several, by their durations. None: unknown.
        num_compilations, compile_ns: compilations by torch.compile that ended in the step, and their time.
    """

    index: int
    start_ns: int
    end_ns: int
    data_wait_ns: int = 0
    phases: dict[str, int] = field(default_factory=dict)
    figures: dict[str, float] = field(default_factory=dict)
    captured: bool = False
    anomalies: list[str] = field(default_factory=list)
    non_finite: list[str] = field(default_factory=list)
    attempt: int = 1
    state: str = "wait"
    export_ns: int = 0
    prepare_ns: int = 0
    device_ns: int | None = None
    exposed_data_wait_ns: int | None = None
    exposed_phases: dict[str, int] = field(default_factory=dict)
    run_delay_ns: int | None = None
    num_compilations: int = 0
    compile_ns: int = 0


RESERVED_FIELDS = frozenset(each.name for each in fields(Step)) - {"figures"}
"""Names of a line's own fields, which no figure can have."""


@dataclass(frozen=True, slots=True)
class RankSteps:
    """Steps document: a rank's steps in order. Steps that a restart repeats replace the earlier ones."""

    rank: int
    steps: list[Step] = field(default_factory=list)

    def add(self, step: Step) -> None:
        """Append a step, which replaces an earlier one of its index and all that followed it."""
        while self.steps and self.steps[-1].index >= step.index:
            self.steps.pop()
        self.steps.append(step)


@dataclass(frozen=True, slots=True)
class LoggedSteps:
    """Steps that one line of a training framework's log stands for.

    Attributes:
        index: of the last one, in the log's own count.
        num_steps: how many.
        ms: mean duration of a step; the next two are means as well.
        data_wait_rank: the rank whose wait it is; None where the log does not say.
        attempt: which start of the job, from 1 on.
    """

    index: int
    num_steps: int
    ms: float
    data_wait_ms: float | None = None
    data_wait_rank: int | None = None
    phases_ms: dict[str, float] = field(default_factory=dict)
    figures: dict[str, float] = field(default_factory=dict)
    attempt: int = 1


@dataclass(frozen=True, slots=True)
class TrainingLog:
    """Steps of one log, in order. Steps that a restart repeats replace the earlier ones.

    Attributes:
        source: the framework that wrote it.
    """

    source: str
    steps: list[LoggedSteps]
    notices: list[Notice] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class StepRow:
    """Steps document: one step of the job. Times are the longest of any rank, in ms: all ranks wait for the slowest.

    Attributes:
        index: number of the step.
        ms: duration.
        data_wait_ms: wait for the loader.
        captured: whether it was profiled.
        anomalies: what was unusual in it, such as a loss spike.
        phases_ms: duration of each named phase.
        slowest_rank: the rank with the longest step; None where all take equally long, as ranks that wait for each
            other do, and where a log does not say.
        data_wait_rank: the rank with the longest wait for data; None without one.
        num_steps: steps that the row stands for, of which `index` is the last; more than one in a log, which gives
            means of several steps.
        figures: mean over the ranks that recorded it.
    """

    index: int
    ms: float
    slowest_rank: int | None
    data_wait_ms: float
    phases_ms: dict[str, float]
    figures: dict[str, float]
    captured: bool
    anomalies: list[str]
    data_wait_rank: int | None = None
    num_steps: int = 1


@dataclass(frozen=True, slots=True)
class StepTimeSummary:
    """Steps document: duration of the settled steps in ms; all None without one."""

    p50: float | None
    p95: float | None
    max: float | None


DATA_WAIT = "data"
"""Name of a wait for data among long waits; other names are phases."""


@dataclass(frozen=True, slots=True)
class LongWait:
    """A step that took long because ranks waited, for data or in a phase, while the others waited for them.

    Attributes:
        name: `data`, or the phase.
        ranks: that waited themselves; empty where a log does not say.
        ms: the longest such wait.
        usual_ms: median of the other steps.
        step_ms, usual_step_ms: the same of the step.
    """

    step: int
    name: str
    ranks: list[int]
    ms: float
    usual_ms: float
    step_ms: float
    usual_step_ms: float


@dataclass(frozen=True, slots=True)
class StepReport:
    """The document `stepscope.steps/1`: all steps of a job.

    Attributes:
        num_settled: steps behind the figures below: neither captured nor the first.
        data_wait: share of the settled steps' time, over all ranks; None where it is not recorded.
        longest_data_wait: the same of the rank that waited longest at each step, for which the others waited.
        phases: the same for each phase.
        steps: in order.
        source: what recorded the steps: stepscope, torchtitan, or the framework of a log.
    """

    ranks: list[int]
    num_steps: int
    num_settled: int
    step_ms: StepTimeSummary
    data_wait: float | None
    phases: dict[str, float]
    steps: list[StepRow]
    warnings: list[Notice] = field(default_factory=list)
    longest_data_wait: float | None = None
    long_waits: list[LongWait] = field(default_factory=list)
    source: str = "stepscope"
    schema: str = STEPS_SCHEMA
