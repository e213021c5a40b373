"""Document of one machine as its agent sees it (`stepscope.node/1`), and status of several (`stepscope.status/1`).

Metrics are named without their prefix `stepscope_gpu_`. Unknown is missing with its reason, never 0.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields, replace
from enum import StrEnum
from typing import Any

from stepscope.core.documents.health import event_document
from stepscope.core.documents.jobs import Assignment, FleetClass, Job, JobClass
from stepscope.core.hardware.devices import Device
from stepscope.core.hardware.health import Health, HealthEvent, OperatorNote
from stepscope.core.protocol.messages import Heartbeat, Hello
from stepscope.core.protocol.verdicts import LiveVerdict
from stepscope.core.vocabulary import Notice

NODE_SCHEMA = "stepscope.node/1"
NODE_PATH = "/api/v1/node"


class NodeView(StrEnum):
    """Value of the path's query `view`: a part of the document. Agents that do not know it serve all."""

    STATUS = "status"  # what a status needs: no values, ended events, classes or ranks
    TABLE = "table"  # the same with the values, classes and states of a table of GPUs


TABLE_VALUES = (
    "utilization_ratio",
    "tensor_active_ratio",
    "dram_active_ratio",
    "power_watts",
    "power_limit_watts",
    "memory_used_bytes",
    "memory_total_bytes",
    "temperature_celsius",
    "sm_clock_hertz",
)
_TABLE_LABELLED = ("throttle_reason", "use_state")


@dataclass(frozen=True, slots=True)
class NodeSource:
    """Node document: one of the agent's sources.

    Attributes:
        name: of the source: "nvml", "host".
        is_up: it answers.
        reason: why it does not, a `MissingReason`; empty while it answers.
        detail: one line on the reason.
        age_seconds: of its last collection; None before the first.
        num_readings: values in its last collection.
    """

    name: str
    is_up: bool
    reason: str
    detail: str
    age_seconds: float | None
    num_readings: int


@dataclass(frozen=True, slots=True)
class NodeDevice:
    """Node document: a GPU or MIG instance.

    Attributes:
        info: labels of its info metric: name, driver, pci_bus_id, ...
        is_up: it answers, a MIG instance if its GPU does; None if no source reports it, or a page has it no more.
        reason: why it does not, a `MissingReason`; empty while it does.
        age_seconds: of its newest value; None without one.
        values: metrics without further labels, in base units.
        by_label: metrics with one further label: metric -> label's value -> value.
        missing: metrics that have no value -> reason, a `MissingReason`.
        jobs: the jobs that have it.
        health: None if nothing checks it.
        spent: what it spent the last minute on; None if not known yet.
    """

    device: Device
    info: dict[str, str]
    is_up: bool | None
    reason: str
    age_seconds: float | None
    values: dict[str, float]
    by_label: dict[str, dict[str, float]]
    missing: dict[str, str]
    jobs: tuple[Assignment, ...] = ()
    health: Health | None = None
    spent: FleetClass | None = None

    def marked(self, metric: str) -> str:
        """The label value of a metric whose value is 1; empty if there is none."""
        return next((label for label, value in self.by_label.get(metric, {}).items() if value == 1.0), "")


@dataclass(frozen=True, slots=True)
class NodeFinding:
    """Node document: a finding of a source in its last collection; see `Finding`."""

    source: str
    code: str
    message: str
    labels: dict[str, str]


@dataclass(frozen=True, slots=True)
class Node:
    """Node document: one machine at one moment.

    Attributes:
        host: name of the machine.
        version: of the agent.
        time_ns: the machine's clock, ns since the epoch.
        sources: in the order of their trust.
        devices: GPUs and MIG instances, by index.
        health: of the machine beside its GPUs; None if nothing checks it.
        events: open events, the worst first, then ended events, the newest first.
        job_classes: what each job spent the last minute on.
        ranks: training processes that are connected to the agent.
        verdicts: of the runs that judge themselves while they run.
    """

    host: str
    version: str
    time_ns: int
    sources: tuple[NodeSource, ...]
    devices: tuple[NodeDevice, ...]
    findings: tuple[NodeFinding, ...] = ()
    health: Health | None = None
    events: tuple[HealthEvent, ...] = ()
    job_classes: tuple[JobClass, ...] = ()
    ranks: tuple[TrainingRank, ...] = ()
    verdicts: tuple[RunVerdict, ...] = ()
    schema: str = field(default=NODE_SCHEMA)


@dataclass(frozen=True, slots=True)
class TrainingRank:
    """Node document: one process under `profile()`, at one moment; ages end at that moment.

    Attributes:
        key: id of the process, the same after a restart of the agent.
        hello: who it is.
        heartbeat: the newest; None before the first.
        pid: in the agent's namespace, unlike that of `hello`; None if not known.
        uid: of the process's user.
        heartbeat_age_ms: since its newest message.
        step_age_ms: since its newest finished step ended, or since the start; None before the first heartbeat.
        known_since: when its user began to use the run's name, monotonic seconds of the agent. Not part of the
            document.
        verdict: the newest that it sent on its run; None without one, or where it is old. Part of the document's
            `verdicts`.
    """

    key: str
    hello: Hello
    heartbeat: Heartbeat | None
    pid: int | None
    uid: int | None
    heartbeat_age_ms: float
    step_age_ms: float | None = None
    known_since: float = 0.0
    verdict: LiveVerdict | None = None

    @property
    def rank(self) -> int:
        """Its rank in the job."""
        return self.hello.rank

    @property
    def doing(self) -> str | None:
        """The named phase that the open step is in."""
        return self.heartbeat.doing if self.heartbeat else None


@dataclass(frozen=True, slots=True)
class RunVerdict:
    """Node document: live verdict of a run, as its own processes sent it.

    Attributes:
        verdict: whose `run` is the name that the node gives the run.
        uid: of the run's user; None if not known.
        pids: of the run's processes on the machine that are known, in the agent's namespace.
    """

    verdict: LiveVerdict
    uid: int | None
    pids: tuple[int, ...]


def run_verdicts(ranks: Iterable[TrainingRank]) -> tuple[RunVerdict, ...]:
    """The newest live verdict of each run of these processes, by the run's name."""
    of_runs: dict[str, list[TrainingRank]] = {}
    for rank in ranks:
        of_runs.setdefault(rank.hello.run, []).append(rank)
    found = []
    for run, members in sorted(of_runs.items()):
        verdicts = [(rank.verdict, rank.uid) for rank in members if rank.verdict is not None]
        if verdicts:
            verdict, uid = max(verdicts, key=lambda pair: pair[0].time_ns)
            pids = tuple(rank.pid for rank in members if rank.pid is not None)
            found.append(RunVerdict(replace(verdict, run=run), uid, pids))
    return tuple(found)


def node_document(node: Node) -> dict[str, Any]:
    """The JSON document of a node: devices by their labels, jobs flat, known shares of time rounded to 4 digits."""
    return {
        **asdict(replace(node, devices=(), events=(), job_classes=(), ranks=())),
        "devices": [_device_document(one) for one in node.devices],
        "events": [event_document(one) for one in node.events],
        "job_classes": [
            {
                "job_kind": one.job.kind,
                "job_id": one.job.id,
                "devices": [device.uuid for device in one.devices],
                "told": _class_document(one.fleet_class),
            }
            for one in node.job_classes
        ],
        "ranks": [_rank_document(one) for one in node.ranks],
    }


def node_view(node: Node, view: NodeView) -> dict[str, Any]:
    """The JSON document of a node with a part of its content, which `view` names in it."""
    events = tuple(one for one in node.events if one.ended_ns is None)
    devices = tuple(_device_view(one, view) for one in node.devices)
    short = replace(node, devices=devices, events=events, job_classes=(), ranks=())
    return {**node_document(short), "view": view}


def _device_view(one: NodeDevice, view: NodeView) -> NodeDevice:
    bare = replace(one, info={}, values={}, by_label={}, missing={}, spent=None)
    if view is NodeView.STATUS:
        return bare
    return replace(
        bare,
        values={name: one.values[name] for name in TABLE_VALUES if name in one.values},
        by_label={name: one.by_label[name] for name in _TABLE_LABELLED if name in one.by_label},
        spent=one.spent and replace(one.spent, evidence=(), summary=""),
    )


def _rank_document(one: TrainingRank) -> dict[str, Any]:
    hello = asdict(one.hello)
    del hello["version"], hello["wants"]
    heartbeat = asdict(one.heartbeat) if one.heartbeat else {}
    return {
        **hello,
        "key": one.key,
        "pid": one.pid,
        "uid": one.uid,
        "heartbeat_age_ms": one.heartbeat_age_ms,
        "state": heartbeat.get("state"),
        "doing": heartbeat.get("doing"),
        "step": heartbeat.get("index"),
        "step_ms": heartbeat.get("ms"),
        "step_age_ms": one.step_age_ms,
        "data_wait_ms": heartbeat.get("data_wait_ms"),
        "phases_ms": heartbeat.get("phases_ms", {}),
        "figures": heartbeat.get("figures", {}),
    }


def _device_document(one: NodeDevice) -> dict[str, Any]:
    values = {
        each.name: getattr(one, each.name) for each in fields(one)
    }  # asdict() copies each value, ten times slower
    del values["device"]
    return {
        "labels": dict(one.device.labels()),
        **values,
        "jobs": [_job_document(job) for job in one.jobs],
        "health": asdict(one.health) if one.health else None,
        "spent": _class_document(one.spent) if one.spent else None,
    }


def _job_document(one: Assignment) -> dict[str, Any]:
    document = asdict(one.job)
    del document["array"]
    return {**document, "share": one.share, "pids": one.pids}


def _class_document(one: FleetClass) -> dict[str, Any]:
    return {
        **asdict(replace(one, evidence=(), shares=None)),
        "shares": {name: round(share, 4) for name, share in one.spent().items()},
        "evidence": [
            {name: getattr(each, name) for name in ("metric", "value", "unit", "threshold")} | {"devices": each.ranks}
            for each in one.evidence
        ],
    }


STATUS_SCHEMA = "stepscope.status/1"


@dataclass(frozen=True, slots=True)
class StatusFinding:
    """Status document: a problem of a machine.

    Attributes:
        agent: address of the agent that reports it, or does not answer.
        host: name of the machine; empty if not known.
        gpu, uuid: of the device; empty for the machine.
        code: "agent_unreachable", "health_unknown", "source_down", "gpu_down", or a health event's code.
        severity: critical or warning; info is a note that may be no problem.
        message: one line for people.
        action: what to do, for people; empty if not known.
        rack: of the machine; empty if not known.
        jobs: that have the device, of the machine those that have any.
        event: id of the health event; empty of what is none.
        acknowledged: by whom and why; None: by nobody. An acknowledged finding does not count as wrong.
    """

    agent: str
    host: str
    gpu: str
    uuid: str
    code: str
    severity: str
    message: str
    action: str = ""
    rack: str = ""
    jobs: tuple[Job, ...] = ()
    event: str = ""
    acknowledged: OperatorNote | None = None


class NodeState(StrEnum):
    """Status document: what is known of one machine."""

    OK = "ok"  # no critical event, warning or failing source
    PROBLEM = "problem"
    UNKNOWN = "unknown"  # its agent does not answer, or reads no GPU


@dataclass(frozen=True, slots=True)
class StatusNode:
    """Status document: reachability and number of GPUs of one machine.

    Attributes:
        agent: address of its agent.
        host, version: name of the machine and version of the agent; empty if it does not answer.
        num_gpus: GPUs without MIG instances.
        is_reachable: the agent answers.
        state: what is known of it.
        rack: where it stands; empty if not known.
    """

    agent: str
    host: str
    version: str
    num_gpus: int
    is_reachable: bool
    state: NodeState = NodeState.OK
    rack: str = ""


@dataclass(frozen=True, slots=True)
class StatusReport:
    """Status document: status of several machines.

    Attributes:
        nodes: in the order of the agents' addresses given.
        findings: the worst first, then by node; acknowledged ones last.
        warnings: agents that did not answer.
    """

    nodes: tuple[StatusNode, ...]
    findings: tuple[StatusFinding, ...]
    warnings: tuple[Notice, ...] = ()
    schema: str = field(default=STATUS_SCHEMA)
