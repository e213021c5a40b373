"""Jobs on a machine: which devices they have, and what those devices spend their time on (fleet classes).

A GPU that is split into MIG instances is not used itself: each of its instances is a device of its own. A fleet class
has a cause as the verdict of a trace has; the cause of a wait and the slow kernel need traces.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum

from stepscope.core.hardware.devices import Device
from stepscope.core.metrics.agent import JOB_FACTS
from stepscope.core.metrics.readings import Labels
from stepscope.core.vocabulary import Cause, Evidence, Reason

_FACTS = {label.removeprefix("job_"): label for label in JOB_FACTS}
"""Labels of a job's fields."""


class JobKind(StrEnum):
    """Document of a node's jobs: what started a job."""

    SLURM = "slurm"
    KUBERNETES = "kubernetes"
    PROCESSES = "processes"  # no known scheduler: processes of one container, launcher or process group


class Share(StrEnum):
    """Document of a node's jobs: how a job has a device."""

    EXCLUSIVE = "exclusive"
    TIME_SLICED = "time_sliced"  # other jobs have it too, in turns
    MPS = "mps"  # other jobs may run at the same time, by NVIDIA's multi-process service


class JobSource(StrEnum):
    """Document of a node's jobs: source of an assignment."""

    PROCESS = "process"  # a process of it holds memory there
    SLURM_ENVIRONMENT = "slurm_environment"  # SLURM_STEP_GPUS or SLURM_JOB_GPUS of a process of it
    DEVICE_CGROUP = "device_cgroup"  # it may open the device's file, and not those of others
    HPC_JOB_FILE = "hpc_job_file"  # a file that the job's prolog wrote for dcgm-exporter
    KUBELET = "kubelet"  # the kubelet gave it to the pod
    DCGM_EXPORTER = "dcgm_exporter"  # its page names the job or pod


class UseState(StrEnum):
    """Document of a node's jobs: use of a device at a moment."""

    BUSY = "busy"  # held, and kernels ran within the last minutes
    HELD_BUT_IDLE = "held_but_idle"  # allocated, or a process holds memory, and no kernel ran for minutes
    FREE = "free"
    UNATTRIBUTED = "unattributed"  # used, by no job that is known
    UNKNOWN = "unknown"  # it does not answer or has no activity counters, or its job has run no kernel yet


@dataclass(frozen=True, slots=True)
class Job:
    """Document of a node's jobs: one job as one node knows it. Texts are empty where they are not known.

    Attributes:
        kind, id: identify the job. Slurm: its job id, the same on all nodes. Kubernetes: namespace/pod. Processes: id
            of the launcher or group leader, and its start in ticks since boot ("4711-123456").
        account: Slurm's account, Kubernetes' namespace.
        team, project: from labels or variables that the operator names.
        queue: Slurm's partition, Kueue's queue.
        workload: workload of a pod: "JobSet/llama", "PyTorchJob/llama"; the same on all nodes.
        array: task of a Slurm array: "120_3".
    """

    kind: JobKind
    id: str
    name: str = ""
    user: str = ""
    account: str = ""
    team: str = ""
    project: str = ""
    queue: str = ""
    workload: str = ""
    array: str = ""

    @property
    def key(self) -> tuple[JobKind, str]:
        """Identity of the job."""
        return self.kind, self.id

    def is_called(self, text: str) -> bool:
        """Whether a text is its id, name, array task or workload, also without the prefix."""
        names = {self.id, self.id.rpartition("/")[2], self.name, self.array, self.workload}
        names |= {self.workload.partition("/")[2], self.id.partition("-")[0] if self.kind is JobKind.PROCESSES else ""}
        return bool(text) and text in names


@dataclass(frozen=True, slots=True)
class Assignment:
    """Document of a node's jobs: a job and a device that it has.

    Attributes:
        sources: of the assignment, the most certain first.
        pids: processes of the job that hold the device, in the agent's PID namespace; may be empty.
        steps: Slurm steps ("0", "batch") or containers.
    """

    job: Job
    device: Device
    share: Share = Share.EXCLUSIVE
    sources: tuple[JobSource, ...] = ()
    pids: tuple[int, ...] = ()
    steps: tuple[str, ...] = ()


def job_labels(job: Job) -> Labels:
    """Document of a node's jobs: fields of a job as the labels of all its series."""
    return ("job_id", job.id), ("job_kind", job.kind.value)


def job_facts(job: Job) -> Labels:
    """Document of a node's jobs: fields that `stepscope_job_info` has as labels; unknown facts have no label."""
    return tuple((label, getattr(job, field)) for field, label in _FACTS.items() if getattr(job, field))


FLEET_CAUSES: tuple[Cause, ...] = (
    Cause.COMPUTE_BOUND,
    Cause.MEMORY_BOUND,
    Cause.LATENCY_BOUND,
    Cause.COMMUNICATION,
    Cause.DATA_LOADING,
    Cause.HOST_BOUND,
    Cause.CHECKPOINT,
    Cause.COPY,
    Cause.THROTTLED,
    Cause.HANG,
    Cause.IDLE,
    Cause.INSUFFICIENT_EVIDENCE,
)
"""Causes of fleet classes of devices."""


class Counters(StrEnum):
    """Fleet document: counters that a class is based on, the best first (docs/explanation/fleet-class.md)."""

    SM = "sm"  # SM activity beside the engine's: GPM on Hopper and newer, full PROF fields
    PIPES = "pipes"  # tensor and memory activity without the SMs': a dcgm-exporter's default page
    POWER = "power"  # utilisation and power alone: no profiling counters
    NONE = "none"


@dataclass(frozen=True, slots=True)
class TimeShares:
    """Fleet document: shares of a GPU's time, which add up to 1. All but `empty` are estimates.

    Attributes:
        computing: kernels that compute or move the GPU's memory.
        waiting: communication kernels, which spin on a few SMs until their peers arrive and the bytes are transferred.
            None, as `computing`, if the two cannot be distinguished.
        copying: copies between host and GPU while no kernel ran.
        empty: no kernel and no copy.
    """

    computing: float | None
    waiting: float | None
    copying: float
    empty: float

    @property
    def busy(self) -> float:
        """Share of time in which any kernel ran."""
        return 1.0 - self.copying - self.empty


@dataclass(frozen=True, slots=True)
class FleetClass:
    """Fleet document: what one GPU, or all GPUs of one job, spent a window of time on.

    Attributes:
        cause: one of `FLEET_CAUSES`; of a job also `straggler`.
        reasons: narrow the cause down, if counters can.
        confidence: 0..1, see docs/explanation/fleet-class.md; 0 of `insufficient_evidence`.
        summary: one line for people.
        evidence: value and threshold of each metric; `ranks` are places in the devices of a job.
        shares: None if not known.
        counters: that the class is based on.
        begin_ns, end_ns: the window, ns since the epoch.
    """

    cause: Cause
    reasons: tuple[Reason, ...]
    confidence: float
    summary: str
    evidence: tuple[Evidence, ...]
    shares: TimeShares | None
    counters: Counters
    begin_ns: int
    end_ns: int

    def spent(self) -> dict[str, float]:
        """The shares that are known, by name."""
        shares = {} if self.shares is None else asdict(self.shares)
        return {name: share for name, share in shares.items() if share is not None}


@dataclass(frozen=True, slots=True)
class JobClass:
    """Fleet document: a job, and what its devices on one machine spent their time on.

    Attributes:
        job: which.
        devices: its devices on the machine; evidence names them by their place in this order.
    """

    job: Job
    devices: tuple[Device, ...]
    fleet_class: FleetClass


@dataclass(frozen=True, slots=True)
class FleetReport:
    """Fleet document: the newest classes on one machine, of devices and of jobs."""

    devices: Mapping[Device, FleetClass] = field(default_factory=dict)
    jobs: tuple[JobClass, ...] = ()
