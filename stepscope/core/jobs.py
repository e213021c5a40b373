"""Who uses which GPU, and does it work? The words of jobs, and how they stand in a collection's readings.

A GPU that is split into MIG instances is not used itself: each of its instances is a device of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from stepscope.core.gpu_metrics import GPU
from stepscope.core.job_metrics import JOB, JOB_FACTS
from stepscope.core.readings import GPU_LABELS, Collection, Labels

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
        device: labels of the GPU or MIG instance, as its readings have them (`GPU_LABELS`); `uuid` joins.
        share: how.
        sources: how it is known.
        pids: processes of the job that hold it, in the agent's PID namespace; none where it is held without.
        steps: of Slurm: "0", "batch"; of Kubernetes: containers.
    """

    job: Job
    device: Labels
    share: Share = Share.EXCLUSIVE
    sources: tuple[JobSource, ...] = ()
    pids: tuple[int, ...] = ()
    steps: tuple[str, ...] = ()

    @property
    def uuid(self) -> str:
        """Of the device."""
        return dict(self.device).get("uuid", "")


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """What a device is used for now."""

    device: Labels
    state: UseState


def assignments_of(collection: Collection) -> tuple[Assignment, ...]:
    """Who has which device, of what the source of jobs collected; in its order."""
    jobs: dict[tuple[str, str], Job] = {}
    pids: dict[tuple[Labels, str, str], list[int]] = {}
    told: list[tuple[Labels, Mapping[str, str]]] = []
    for reading in collection.readings:
        if not reading.metric.startswith((JOB, GPU + "job_info")):
            continue
        labels = dict(reading.labels)
        key = labels.get("job_kind", ""), labels.get("job_id", "")
        if reading.metric == JOB + "info":
            facts = {field: labels.get(label, "") for field, label in _FACTS.items()}
            jobs[key] = Job(JobKind(key[0]), key[1], **facts)
        elif reading.metric == JOB + "process_info":
            pids.setdefault((device_of(reading.labels), *key), []).append(int(labels["pid"]))
        elif reading.metric == GPU + "job_info":
            told.append((device_of(reading.labels), labels))
    return tuple(
        Assignment(
            jobs.get((labels["job_kind"], labels["job_id"])) or Job(JobKind(labels["job_kind"]), labels["job_id"]),
            device,
            Share(labels["share"]),
            tuple(JobSource(word) for word in labels["source"].split("+") if word),
            tuple(sorted(pids.get((device, labels["job_kind"], labels["job_id"]), ()))),
            tuple(word for word in labels.get("step", "").split("+") if word),
        )
        for device, labels in told
    )


def uses_of(collection: Collection) -> tuple[DeviceUse, ...]:
    """What each device is used for now, of what the source of jobs collected."""
    return tuple(
        DeviceUse(device_of(reading.labels), UseState(dict(reading.labels)["state"]))
        for reading in collection.readings
        if reading.metric == GPU + "use_state"
    )


def device_of(labels: Labels) -> Labels:
    """Those of the labels that say which device it is."""
    return tuple(pair for pair in labels if pair[0] in GPU_LABELS)


def job_labels(job: Job) -> Labels:
    """What all series of a job carry."""
    return ("job_id", job.id), ("job_kind", job.kind.value)


def job_facts(job: Job) -> Labels:
    """What `stepscope_job_info` carries beside; facts that are not known have no label."""
    return tuple((label, getattr(job, field)) for field, label in _FACTS.items() if getattr(job, field))
