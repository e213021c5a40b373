"""How is one machine, as its agent tells it? The typed form of `GET /api/v1/node`, schema stepscope.node/1.

Metrics stand without their prefix `stepscope_gpu_`. Unknown is missing with its reason, never 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from stepscope.core.training_ranks import TrainingRank

NODE_SCHEMA = "stepscope.node/1"
NODE_PATH = "/api/v1/node"


@dataclass(frozen=True, slots=True)
class NodeSource:
    """One of the agent's sources.

    Attributes:
        name: of the source: "nvml", "host".
        is_up: it answers.
        reason: why not, a `MissingReason`; empty while it answers.
        detail: one line on it.
        age_seconds: of its last collection; None before the first.
        num_readings: values of that.
    """

    name: str
    is_up: bool
    reason: str
    detail: str
    age_seconds: float | None
    num_readings: int


@dataclass(frozen=True, slots=True)
class NodeJob:
    """A job that has the device.

    Attributes:
        kind, id, name, user, account, team, project, queue, workload: see `core.jobs.Job`.
        share: how it has the device: exclusive, time_sliced, mps.
        pids: its processes there.
    """

    kind: str
    id: str
    name: str = ""
    user: str = ""
    account: str = ""
    team: str = ""
    project: str = ""
    queue: str = ""
    workload: str = ""
    share: str = ""
    pids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeHealth:
    """How a device, or the machine beside its GPUs, is.

    Attributes:
        state: healthy, degraded, failed, unknown.
        reason: one line; empty when healthy, but for a note.
        codes: of its open events, the worst first.
        unchecked: codes of what could not be checked.
    """

    state: str
    reason: str
    codes: tuple[str, ...] = ()
    unchecked: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeEvent:
    """One episode of something being wrong; see `core.health.HealthEvent`.

    Attributes:
        code, labels, message, value, threshold, unit, first_ns, last_ns, ended_ns, count, since_start: of it.
        severity: info, warning, critical.
        action: what is to be done: "reset_gpu".
        action_line: the same for people.
    """

    code: str
    labels: dict[str, str]
    severity: str
    action: str
    action_line: str
    message: str
    value: float | None
    threshold: float | None
    unit: str
    first_ns: int
    last_ns: int
    ended_ns: int | None
    count: int
    since_start: bool


@dataclass(frozen=True, slots=True)
class NodeEvidence:
    """One number behind a class."""

    metric: str
    value: float
    unit: str
    threshold: float | None = None
    devices: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeClass:
    """What a device or a job spent the last minute on; see `core.fleet_class.FleetClass`.

    Attributes:
        cause, reasons: in the words of `core.causes`.
        confidence, summary, counters, begin_ns, end_ns: of it.
        shares: of time: computing, waiting, copying, empty; those that are known.
        evidence: numbers; of a job's, `devices` are places in its `devices`.
    """

    cause: str
    reasons: tuple[str, ...]
    confidence: float
    summary: str
    counters: str
    shares: dict[str, float]
    evidence: tuple[NodeEvidence, ...]
    begin_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class NodeJobClass:
    """What the devices of a job on this machine spent their time on; `devices` are their UUIDs."""

    job_kind: str
    job_id: str
    devices: tuple[str, ...]
    told: NodeClass


@dataclass(frozen=True, slots=True)
class NodeDevice:
    """A GPU or MIG instance.

    Attributes:
        labels: which: gpu, uuid; of MIG instances gpu_instance, compute_instance, mig_profile as well.
        info: what it is: name, driver, pci_bus_id.
        is_up: it answers, a MIG instance as its GPU does; None where no source says so.
        reason: why it does not, a `MissingReason`; empty while it does.
        age_seconds: of its newest value; None without one.
        values: metrics without further labels, in base units.
        by_label: metrics with one further label: metric -> label's value -> value.
        missing: metrics that have no value -> reason, a `MissingReason`.
        jobs: who has it.
        health: None where nobody judges it.
        spent: what it spent the last minute on; None where that is not known yet.
    """

    labels: dict[str, str]
    info: dict[str, str]
    is_up: bool | None
    reason: str
    age_seconds: float | None
    values: dict[str, float]
    by_label: dict[str, dict[str, float]]
    missing: dict[str, str]
    jobs: tuple[NodeJob, ...] = ()
    health: NodeHealth | None = None
    spent: NodeClass | None = None

    @property
    def key(self) -> str:
        """Which device of the machine it is; see `device_key`."""
        return device_key(self.labels)

    @property
    def name(self) -> str:
        """As people call it: the GPU's index, of MIG instances with their ids."""
        parts = [self.labels.get(label, "") for label in ("gpu", "gpu_instance", "compute_instance")]
        return "/".join(filter(None, parts))

    def marked(self, metric: str) -> str:
        """Which of the labels of a metric has 1; empty: none, or the metric is not there."""
        return next((label for label, value in self.by_label.get(metric, {}).items() if value == 1.0), "")


@dataclass(frozen=True, slots=True)
class NodeFinding:
    """Something that a source noticed in its last collection.

    Attributes:
        source: which.
        code: what kind: "busy_without_process".
        message: one line for people.
        labels: who or what it is of.
    """

    source: str
    code: str
    message: str
    labels: dict[str, str]


@dataclass(frozen=True, slots=True)
class Node:
    """One machine at one moment.

    Attributes:
        host: its name.
        version: of the agent.
        time_ns: now there, ns since the epoch.
        sources: in the order of their trust.
        devices: GPUs and MIG instances, by index.
        findings: of the sources.
        health: of the machine beside its GPUs; None where nobody judges it.
        events: what is wrong now, the worst first, then what is over, the newest first.
        job_classes: what each job spent the last minute on.
        ranks: training processes that speak to the agent.
        schema: of the document.
    """

    host: str
    version: str
    time_ns: int
    sources: tuple[NodeSource, ...]
    devices: tuple[NodeDevice, ...]
    findings: tuple[NodeFinding, ...] = ()
    health: NodeHealth | None = None
    events: tuple[NodeEvent, ...] = ()
    job_classes: tuple[NodeJobClass, ...] = ()
    ranks: tuple[TrainingRank, ...] = ()
    schema: str = field(default=NODE_SCHEMA)


def device_key(labels: Mapping[str, str]) -> str:
    """Which device of a machine: its UUID, or its index where it has hung since before it told one; empty: none.

    A MIG instance that only a dcgm-exporter tells of carries its GPU's UUID: its number is put behind.
    """
    uuid, gpu, instance = labels.get("uuid", ""), labels.get("gpu", ""), labels.get("gpu_instance", "")
    if instance and uuid.startswith("GPU-"):
        return f"{uuid}/{instance}"
    return uuid or (f"gpu {gpu}" if gpu else "")
