"""Groups of machines by job, node or rack: what is wrong in each, and how its GPUs do."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import median

from stepscope.analyzer.fleet.outliers import outliers
from stepscope.core.documents.jobs import Job
from stepscope.core.documents.node import NodeDevice, StatusFinding, StatusReport
from stepscope.core.vocabulary import Cause
from stepscope.workflow.nodes.answers import NodeAnswer
from stepscope.workflow.nodes.status import is_wrong, rank_of, status_of

RACK_LABELS = ("rack", "__meta_rack", "topology_rack")
"""Labels of targets that name a rack; the first that is set counts."""


class GroupBy(StrEnum):
    """What machines are grouped by."""

    JOB = "job"
    NODE = "node"
    RACK = "rack"


def rack_names(pattern: re.Pattern[str] | None = None) -> Callable[[NodeAnswer], str]:
    """The function that gives the rack of a node; empty if it is not known.

    Args:
        pattern: finds the rack in the host's name, as its first group or all of it; None: only labels name it.
    """

    def rack(answer: NodeAnswer) -> str:
        labels = dict(answer.labels)
        named = next((labels[name] for name in RACK_LABELS if labels.get(name)), "")
        if named or pattern is None:
            return named
        match = pattern.search(answer.node.host if answer.node else _host(answer.agent))
        return (match[1] if match.re.groups else match[0]) or "" if match else ""

    return rack


def _host(agent: str) -> str:
    return agent.partition("://")[2].rpartition(":")[0]


@dataclass(frozen=True, slots=True)
class Problem:
    """One kind of finding on all machines of a group.

    Attributes:
        group: name of the group; empty without grouping, or if it is not known.
        finding: the first; its message stands for all.
        is_same: all have this message.
        places: of each finding, its machine and GPU.
        num_machines, num_gpus: that have it.
    """

    group: str
    finding: StatusFinding
    is_same: bool
    places: tuple[tuple[str, str], ...]
    num_machines: int
    num_gpus: int


_NUMBER = re.compile(r"\d[\d.,]*(?:e[+-]?\d+)?")


def problems_of(report: StatusReport, by: GroupBy | None = None) -> list[Problem]:
    """One line a problem: findings that differ at most in numbers are joined, within a group; the worst first.

    Args:
        by: None joins those of all machines.
    """
    joined: dict[tuple[object, ...], list[StatusFinding]] = {}
    for finding in report.findings:
        note = finding.acknowledged
        known = note and (note.by, note.why)
        kind = finding.severity, finding.code, _NUMBER.sub("#", finding.message), known
        for group in _groups_of(finding, by):
            joined.setdefault((group, *kind), []).append(finding)
    made = [_problem(str(key[0]), findings) for key, findings in joined.items()]
    made.sort(key=lambda one: (rank_of(one.finding), -len(one.places)))
    if by is not None:  # the groups stay together, the worst first
        places = {group: number for number, group in enumerate(dict.fromkeys(one.group for one in made))}
        made.sort(key=lambda one: places[one.group])
    return made


def _groups_of(finding: StatusFinding, by: GroupBy | None) -> Iterable[str]:
    if by is None:
        return ("",)
    if by is GroupBy.NODE:
        return (_machine(finding),)
    if by is GroupBy.RACK:
        return (finding.rack,)
    return [job_text(job) for job in finding.jobs] or ("",)


def _machine(finding: StatusFinding) -> str:
    return finding.host or finding.agent.partition("://")[2]


def _problem(group: str, findings: list[StatusFinding]) -> Problem:
    first = findings[0]
    gpus = {(one.agent, one.gpu) for one in findings if one.gpu}
    machines = {one.agent for one in findings}
    places = tuple((_machine(one), one.gpu) for one in findings)
    is_same = all(one.message == first.message for one in findings)
    return Problem(group, first, is_same, places, len(machines), len(gpus))


def job_text(job: Job) -> str:
    """A job for people: its name, id and user."""
    facts = ", ".join(filter(None, (job.id if job.name and job.name != job.id else "", job.user)))
    return f"{job.name or job.id} ({facts})" if facts else job.name or job.id


@dataclass(frozen=True, slots=True)
class Outlier:
    """A GPU that differs from the others of its job.

    Attributes:
        gpu: short name of it, on its machine.
        metric: without its prefix.
        value, usual: its value, and the job's median.
    """

    gpu: str
    metric: str
    value: float
    usual: float


@dataclass(frozen=True, slots=True)
class _Limit:
    metric: str
    low: float | None
    high: float | None
    is_relative: bool


_LIMITS = (
    _Limit("utilization_ratio", 0.25, None, is_relative=False),
    _Limit("sm_clock_hertz", 0.10, None, is_relative=True),
    _Limit("power_watts", 0.25, None, is_relative=True),
    _Limit("temperature_celsius", None, 15.0, is_relative=False),
)
"""How far from the others of its job a GPU is said to be an outlier. A judgement, and wide: healthy GPUs of one model
differ in power and temperature, and those of a rack by their place in it."""


@dataclass(slots=True)
class MachineGroup:
    """Machines of one job or rack, or one machine, and how its GPUs do.

    Attributes:
        name: of the group; empty if it is not known.
        agents: addresses of its machines' agents.
        devices: its GPUs and MIG instances.
        findings: what is wrong there.
        outliers: GPUs that differ from the others of their job, each with its machine.
        jobs: on its GPUs.
        racks: of its machines.
    """

    name: str
    agents: set[str] = field(default_factory=set)
    devices: list[NodeDevice] = field(default_factory=list)
    findings: list[StatusFinding] = field(default_factory=list)
    outliers: list[tuple[str, Outlier]] = field(default_factory=list)
    jobs: dict[str, Job] = field(default_factory=dict)
    racks: set[str] = field(default_factory=set)

    @property
    def is_quiet(self) -> bool:
        """Whether nothing there needs a look."""
        return not self.outliers and not any(map(is_wrong, self.findings))

    @property
    def has_acknowledged(self) -> bool:
        """Whether something there is wrong of which an operator knows."""
        return any(one.acknowledged is not None for one in self.findings)

    @property
    def num_gpus(self) -> int:
        return sum(1 for one in self.devices if not one.device.instance)

    @property
    def classes(self) -> Counter[Cause]:
        """What its GPUs spend their time on."""
        return Counter(one.spent.cause for one in self.devices if one.spent is not None)

    def middle(self, metric: str) -> float | None:
        """Median of a metric's known values."""
        known = self._known(metric)
        return median(known) if known else None

    def most(self, metric: str) -> float | None:
        return max(self._known(metric), default=None)

    def total(self, metric: str) -> float | None:
        """Sum of a metric's known values."""
        known = self._known(metric)
        return sum(known) if known else None

    def _known(self, metric: str) -> list[float]:
        return [one.values[metric] for one in self.devices if metric in one.values]

    def add(self, other: MachineGroup) -> None:
        """Add the machines of another."""
        self.agents |= other.agents
        self.devices += other.devices
        self.jobs |= other.jobs
        self.racks |= other.racks


def groups_of(
    answers: Sequence[NodeAnswer], by: GroupBy, rack: Callable[[NodeAnswer], str] = lambda _: ""
) -> list[MachineGroup]:
    """The machines in groups, those with critical findings first, quiet ones last.

    Args:
        rack: where a node stands.
    """
    groups: dict[str, MachineGroup] = {}

    def group(name: str) -> MachineGroup:
        return groups.setdefault(name, MachineGroup(name))

    odd = _outliers(answers)
    for answer in answers:
        place = rack(answer)
        machine = answer.node.host if answer.node else answer.agent.partition("://")[2]
        names = {GroupBy.NODE: machine, GroupBy.RACK: place, GroupBy.JOB: ""}
        devices = answer.node.devices if answer.node and not answer.error else ()
        for device in devices:
            jobs = {job_text(one.job): one.job for one in device.jobs}
            for name in (jobs or [""]) if by is GroupBy.JOB else [names[by]]:
                into = group(name)
                into.agents.add(answer.agent)
                into.racks.add(place)
                into.devices.append(device)
                into.jobs |= jobs
                into.outliers += [(machine, one) for one in odd.get((answer.agent, device.device.key), ())]
        if not devices:
            into = group(names[by])
            into.agents.add(answer.agent)
            into.racks.add(place)
    for finding in status_of(answers, rack).findings:
        for name in _groups_of(finding, by):
            group(name).findings.append(finding)
    return sorted(groups.values(), key=_rank)


def _rank(group: MachineGroup) -> tuple[tuple[bool, int], int, int, str]:
    wrong = [one for one in group.findings if is_wrong(one)]
    worst = min(map(rank_of, wrong), default=(True, 0))
    return worst, -len(wrong), -len(group.outliers), group.name


def _outliers(answers: Iterable[NodeAnswer]) -> dict[tuple[str, str], list[Outlier]]:
    """By agent and the device's key."""
    of_job: dict[tuple[str, str], list[tuple[str, NodeDevice]]] = {}
    for answer in answers:
        for device in answer.node.devices if answer.node and not answer.error else ():
            if len(device.jobs) == 1:
                of_job.setdefault(device.jobs[0].job.key, []).append((answer.agent, device))
    found: dict[tuple[str, str], list[Outlier]] = {}
    for members in of_job.values():
        for place, outlier in _outliers_of_job([device for _, device in members]):
            agent, device = members[place]
            found.setdefault((agent, device.device.key), []).append(outlier)
    return found


def _outliers_of_job(devices: Sequence[NodeDevice]) -> Iterator[tuple[int, Outlier]]:
    for limit in _LIMITS:
        values = [one.values.get(limit.metric) for one in devices]
        known = [value for value in values if value is not None]
        if not known:
            continue
        usual = median(known)
        scale = usual if limit.is_relative else 1.0
        low, high = (None if one is None else one * scale for one in (limit.low, limit.high))
        for place in outliers(values, low=low, high=high):
            value = values[place]
            assert value is not None
            yield place, Outlier(devices[place].device.name, limit.metric, value, usual)
