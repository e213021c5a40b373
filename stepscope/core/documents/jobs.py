"""Jobs on a machine: which devices they have, and what those devices spend their time on (fleet classes).

A GPU that is split into MIG instances is not used itself: each of its instances is a device of its own. A fleet class
has the cause that a verdict of a trace has; what counters of one GPU cannot tell (whose fault a wait is, which kernel
is slow) stays with the traces.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum

from stepscope.core.documents.evidence import Evidence
from stepscope.core.hardware.devices import Device
from stepscope.core.metrics.agent import JOB_FACTS
from stepscope.core.metrics.readings import Labels
from stepscope.core.vocabulary.causes import Cause, Reason

_FACTS = {label.removeprefix("job_"): label for label in JOB_FACTS}
"""Fields of a job, and their labels."""


class JobKind(StrEnum):
    """Who started it."""

    SLURM = "slurm"
    KUBERNETES = "kubernetes"
    PROCESSES = "processes"  # nobody that we know: processes of one launcher or session


class Share(StrEnum):
    """How does a job have a device?"""

    EXCLUSIVE = "exclusive"
    TIME_SLICED = "time_sliced"  # others have it too, each in its turn
    MPS = "mps"  # others may run at the same time, by NVIDIA's multi-process service


class JobSource(StrEnum):
    """How is it known that a job has a device?"""

    PROCESS = "process"  # a process of it holds memory there
    SLURM_ENVIRONMENT = "slurm_environment"  # SLURM_STEP_GPUS or SLURM_JOB_GPUS of a process of it
    DEVICE_CGROUP = "device_cgroup"  # it may open the device's file, and not those of others
    HPC_JOB_FILE = "hpc_job_file"  # a file that the job's prolog wrote for dcgm-exporter
    KUBELET = "kubelet"  # the kubelet gave it to the pod
    DCGM_EXPORTER = "dcgm_exporter"  # its page names the job or pod


class UseState(StrEnum):
    """What becomes of a device's time. A device is in one of them at any moment."""

    BUSY = "busy"  # held, and kernels ran within the last minutes
    HELD_BUT_IDLE = "held_but_idle"  # allocated, or a process holds memory, and no kernel ran for minutes
    FREE = "free"
    UNATTRIBUTED = "unattributed"  # it is used, by nobody that can be named
    UNKNOWN = "unknown"  # it does not answer or tell whether kernels run, or its job has just begun and ran none yet


@dataclass(frozen=True, slots=True)
class Job:
    """One job as one node knows it. Texts are empty where they are not known.

    Attributes:
        kind, id: which job. Slurm: its number, the same on all nodes. Kubernetes: namespace/pod. Processes: id of the
            launcher or session leader, and its start in ticks since boot ("4711-123456").
        name: for people.
        user: whose.
        account: Slurm's account, Kubernetes' namespace.
        team, project: by labels or variables that the operator names.
        queue: Slurm's partition, Kueue's queue.
        workload: what a pod is part of: "JobSet/llama", "PyTorchJob/llama"; the same on all nodes.
        array: of a Slurm array: "120_3".
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
        """What stays the same while more becomes known of it."""
        return self.kind, self.id

    def is_called(self, text: str) -> bool:
        """Whether a person may mean it by this: its id, name, array task, or what it is part of."""
        names = {self.id, self.id.rpartition("/")[2], self.name, self.array, self.workload}
        names |= {self.workload.partition("/")[2], self.id.partition("-")[0] if self.kind is JobKind.PROCESSES else ""}
        return bool(text) and text in names


@dataclass(frozen=True, slots=True)
class Assignment:
    """A job has a device.

    Attributes:
        job: which.
        device: the GPU or MIG instance.
        share: how.
        sources: how it is known.
        pids: processes of the job that hold it, in the agent's PID namespace; none where it is held without.
        steps: of Slurm: "0", "batch"; of Kubernetes: containers.
    """

    job: Job
    device: Device
    share: Share = Share.EXCLUSIVE
    sources: tuple[JobSource, ...] = ()
    pids: tuple[int, ...] = ()
    steps: tuple[str, ...] = ()


def job_labels(job: Job) -> Labels:
    """What all series of a job carry."""
    return ("job_id", job.id), ("job_kind", job.kind.value)


def job_facts(job: Job) -> Labels:
    """What `stepscope_job_info` carries beside; facts that are not known have no label."""
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
"""All that a fleet class can be."""


class Counters(StrEnum):
    """By which counters was it told? The first is the best; docs/explanation/fleet-class.md tells how good each is."""

    SM = "sm"  # SM activity beside the engine's: GPM on Hopper and newer, full PROF fields
    PIPES = "pipes"  # tensor and memory activity without the SMs': a dcgm-exporter's default page
    POWER = "power"  # utilisation and power alone: no profiling counters
    NONE = "none"


@dataclass(frozen=True, slots=True)
class TimeShares:
    """A GPU's time by what it did, shares that add up to 1. Estimates, not measurements, but for `empty`.

    Attributes:
        computing: kernels that compute or move the GPU's memory.
        waiting: communication kernels, which spin on a few SMs until their peers come and the bytes are through. None,
            as `computing`, where the two cannot be told apart.
        copying: between host and GPU, while no kernel ran.
        empty: nothing.
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
    """What one GPU, or all GPUs of one job, spent a window of time on.

    Attributes:
        cause: one of `FLEET_CAUSES`.
        reasons: narrow it down, where counters can.
        confidence: 0..1; what it is made of is told in docs/explanation/fleet-class.md. 0 of `insufficient_evidence`.
        summary: one line for people.
        evidence: what it rests on: value and threshold of each metric.
        shares: of the time; None where they are not known.
        counters: by what it was told.
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
    """A job, and what its devices on one machine spent their time on.

    Attributes:
        job: which.
        devices: its devices there; evidence names them by their place in this order.
        fleet_class: what they spent their time on.
    """

    job: Job
    devices: tuple[Device, ...]
    fleet_class: FleetClass


@dataclass(frozen=True, slots=True)
class FleetReport:
    """The newest classes on one machine, of devices and of jobs."""

    devices: Mapping[Device, FleetClass] = field(default_factory=dict)
    jobs: tuple[JobClass, ...] = ()
