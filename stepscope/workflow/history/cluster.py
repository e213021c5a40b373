"""State of the whole cluster by its metric history: nodes, GPUs with one metric and its deviation, figures, events."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stepscope.core.errors import UsageError
from stepscope.core.metrics.readings import GPU
from stepscope.core.text.numbers import UNKNOWN, is_readable, percent, significant, size
from stepscope.store.history.deviations import Deviation, deviations_of
from stepscope.store.history.questions import (
    GROUP_LABELS,
    GroupBy,
    HistoryEvent,
    HistoryEventKind,
    Labels,
    MetricHistory,
    Question,
    Statistic,
    TimeRange,
)
from stepscope.workflow.history.pages import UP

_S = 10**9
_DAY_NS = 86400 * _S
_WINDOW_NS, _STEP_NS = 300 * _S, 60 * _S
"""A GPU is compared with its job over so long, in such steps."""
_NEWEST_STEPS = 2
"""A value may be so many steps old."""
_INVENTORY_NS = 3600 * _S
"""GPUs that were there within this time are known, also while their node does not answer."""
_EVENT_SCORE = 2.0
"""Of an open health event; a deviation has 1 at most."""
_SETTLED_NS = 300 * _S
MAX_ABNORMAL = 10
LEAST_SCORE = 0.1
"""Share of a metric's scale from which a GPU is called abnormal."""


@dataclass(frozen=True, slots=True)
class MapMetric:
    """A metric that GPUs of the map are coloured by.

    Attributes:
        key: in URLs.
        scale: deviation from the job's median at which the colour is full: a share of the median if `is_relative`,
            else in the metric's unit.
        low, high: ends of the scale of values, in the metric's unit; no high: the largest value there is.
    """

    key: str
    title: str
    metric: str
    scale: float
    is_relative: bool
    low: float = 0.0
    high: float | None = None

    def score(self, deviation: Deviation) -> float:
        """The deviation as a share of the scale, -1 to 1; 0 where it is not known."""
        amount = deviation.ratio if self.is_relative else deviation.difference
        return 0.0 if amount is None else max(-1.0, min(1.0, amount / self.scale))

    def words(self, value: float) -> str:
        """A value of the metric as text, with its unit."""
        if not is_readable(value):
            return UNKNOWN
        if self.metric.endswith("_ratio"):
            return percent(value)
        if self.metric.endswith("_watts"):
            return f"{significant(value)} W"
        if self.metric.endswith("_celsius"):
            return f"{significant(value)} °C"
        return f"{value / 1e6:,.0f} MHz" if self.metric.endswith("_hertz") else size(round(value))

    def deviation_words(self, deviation: Deviation) -> str:
        """'12.3%, its job's median is 91.0% (−78.7 points)'."""
        amount = f"{percent(deviation.ratio)}" if deviation.ratio is not None else UNKNOWN
        if not self.is_relative:
            is_share = self.metric.endswith("_ratio")
            amount = f"{deviation.difference * 100:+.1f} points" if is_share else f"{deviation.difference:+.1f} °C"
        elif deviation.ratio is not None and deviation.ratio > 0:
            amount = f"+{amount}"
        median = self.words(deviation.median)
        return f"{self.title} {self.words(deviation.value)}, median of its job {median} ({amount.replace('-', '−')})"


MAP_METRICS: tuple[MapMetric, ...] = (
    MapMetric("sm-active", "SM activity", GPU + "sm_active_ratio", 0.5, is_relative=False, high=1.0),
    MapMetric("tensor-active", "Tensor activity", GPU + "tensor_active_ratio", 0.5, is_relative=False, high=1.0),
    MapMetric("dram-active", "Memory activity", GPU + "dram_active_ratio", 0.5, is_relative=False, high=1.0),
    MapMetric("utilization", "Utilization", GPU + "utilization_ratio", 0.5, is_relative=False, high=1.0),
    MapMetric("power", "Power", GPU + "power_watts", 0.5, is_relative=True),
    MapMetric("temperature", "Temperature", GPU + "temperature_celsius", 20.0, is_relative=False, low=20.0, high=95.0),
    MapMetric("sm-clock", "SM clock", GPU + "sm_clock_hertz", 0.5, is_relative=True),
    MapMetric("memory-used", "Memory used", GPU + "memory_used_bytes", 0.5, is_relative=True),
)
_INVENTORY_METRICS = (GPU + "info", GPU + "up", *(metric.metric for metric in MAP_METRICS))


@dataclass(frozen=True, slots=True)
class NodeState:
    """A node of the cluster.

    Attributes:
        name: address of its agent.
        is_up: whether the agent answered the newest scrape, which is not too old.
        seen_ns: time of the newest scrape, ns since the epoch.
        num_gpus: GPUs and MIG instances; they follow those of the nodes before it.
    """

    name: str
    rack: str
    is_up: bool
    seen_ns: int
    num_gpus: int


@dataclass(frozen=True, slots=True)
class AbnormalGpu:
    """A GPU unlike the others of its job, or with an open health event.

    Attributes:
        cell: its index.
        why: a line each.
    """

    cell: int
    why: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ClusterState:
    """The cluster at one time.

    Attributes:
        at_ns: time of the newest scrape, ns since the epoch; None: there was none within a day.
        is_stale: whether the newest scrape is too old to be called the present.
        metrics: those that the history has.
        metric: of values and deviations; None where the history has none of the map's.
        gpus: labels of each GPU or MIG instance, by node.
        values: mean of the newest known minute, in the metric's unit; NaN where unknown; shape (gpus,).
        deviations: of each GPU from its job; None where it is not known.
        jobs: kind and id of the job of each GPU; None: no single one.
        allocated, busy: GPUs that have a job, and those whose kernels ran; None where the history does not say.
        watts: of all GPUs; None where the history does not say.
        abnormal: the worst first.
        events: of the last day, the newest first.
    """

    at_ns: int | None
    is_stale: bool
    metrics: tuple[MapMetric, ...]
    metric: MapMetric | None
    nodes: tuple[NodeState, ...]
    gpus: tuple[Labels, ...]
    values: NDArray[np.float64]
    deviations: tuple[Deviation | None, ...]
    jobs: tuple[tuple[str, str] | None, ...]
    allocated: int | None
    busy: int | None
    watts: float | None
    abnormal: tuple[AbnormalGpu, ...]
    events: tuple[HistoryEvent, ...]

    @property
    def num_up(self) -> int:
        """Nodes that answer."""
        return sum(node.is_up for node in self.nodes)

    @property
    def open_events(self) -> list[HistoryEvent]:
        """Gaps and health events that last."""
        kinds = (HistoryEventKind.HEALTH, HistoryEventKind.GAP)
        return [event for event in self.events if event.end_ns is None and event.kind in kinds]

    def node_of(self, cell: int) -> NodeState:
        """The node of a GPU."""
        first = 0
        for node in self.nodes:
            first += node.num_gpus
            if cell < first:
                return node
        raise IndexError(cell)


@dataclass(frozen=True, slots=True)
class _Base:
    """What the states of all metrics have in common."""

    at_ns: int
    is_stale: bool
    nodes: tuple[NodeState, ...]
    gpus: tuple[Labels, ...]
    allocated: int | None
    busy: int | None
    watts: float | None
    events: tuple[HistoryEvent, ...]


class ClusterReader:
    """Reads states of the cluster one after another; what changes seldom is asked for once a minute.

    Args:
        stale_after_ns: age from which a scrape is not the present.
    """

    def __init__(self, history: MetricHistory, *, stale_after_ns: int) -> None:
        self._history, self._stale_after_ns = history, stale_after_ns
        self._known: frozenset[str] = frozenset()
        self._inventory: tuple[int, list[Labels]] = (0, [])
        self._base: tuple[int, _Base | None] = (0, None)

    def read(self, key: str | None, now_ns: int, *, reuse_ns: int = 0) -> ClusterState:
        """The cluster now.

        Args:
            key: of the metric; None or one that the history does not have: the first that it has.
            reuse_ns: what all metrics have in common may be so old, ns.

        Raises:
            UnreachableError, DataError, UsageError: as the history's methods.
        """
        if now_ns - self._base[0] > reuse_ns:
            self._known = frozenset(metric.name for metric in self._history.metrics())
            self._base = (now_ns, self._read_base(now_ns))
        base = self._base[1]
        metrics = tuple(metric for metric in MAP_METRICS if metric.metric in self._known)
        metric = next((one for one in metrics if one.key == key), metrics[0] if metrics else None)
        if base is None:
            return ClusterState(None, True, metrics, metric, (), (), np.empty(0), (), (), None, None, None, (), ())
        values = np.full(len(base.gpus), np.nan)
        deviations: list[Deviation | None] = [None] * len(base.gpus)
        jobs: list[tuple[str, str] | None] = [None] * len(base.gpus)
        if metric is not None:
            self._fill(base, metric, values, deviations, jobs)
        return ClusterState(
            base.at_ns,
            base.is_stale,
            metrics,
            metric,
            base.nodes,
            base.gpus,
            values,
            tuple(deviations),
            tuple(jobs),
            base.allocated,
            base.busy,
            base.watts,
            _abnormal(base, metric, deviations),
            base.events,
        )

    def _read_base(self, now_ns: int) -> _Base | None:
        if UP not in self._known:
            return None
        question = Question(UP, (GroupBy.NODE, GroupBy.RACK))
        for within_ns in (_SETTLED_NS, _DAY_NS):
            scrapes = self._history.latest(question, at_ns=_ms(now_ns), within_ns=within_ns)
            if len(scrapes.groups):
                break
        else:
            return None
        at_ns = int(scrapes.times_ns.max())
        gpus = self._read_inventory(at_ns)
        of_node: dict[str, list[Labels]] = defaultdict(list)
        for labels in gpus:
            of_node[dict(labels).get("instance", "")].append(labels)
        nodes = []
        for group, seen_ns, up in zip(scrapes.groups, scrapes.times_ns.tolist(), scrapes.values, strict=True):
            if at_ns - seen_ns > _SETTLED_NS:
                continue
            labels_of = dict(group)
            name = labels_of.get("instance", "")
            is_up = up > 0 and at_ns - seen_ns <= self._stale_after_ns
            nodes.append(NodeState(name, labels_of.get("rack", ""), is_up, seen_ns, len(of_node[name])))
        nodes.sort(key=lambda node: (natural(node.rack), natural(node.name)))
        events = sorted(self._history.events(at_ns - _DAY_NS, now_ns), key=lambda one: -one.start_ns)
        return _Base(
            at_ns,
            now_ns - at_ns > self._stale_after_ns,
            tuple(nodes),
            tuple(labels for node in nodes for labels in sorted(of_node[node.name], key=_gpu_order)),
            self._number(Question(GPU + "job_info", (GroupBy.GPU,), Statistic.COUNT), at_ns),
            self._total(Question(GPU + "use_state", (), Statistic.COUNT, {"state": "busy"}), at_ns),
            self._sum(Question(GPU + "power_watts", (), Statistic.SUM), at_ns),
            tuple(events),
        )

    def _read_inventory(self, at_ns: int) -> list[Labels]:
        if abs(at_ns - self._inventory[0]) > _STEP_NS:
            metric = next((name for name in _INVENTORY_METRICS if name in self._known), None)
            found: list[Labels] = []
            if metric is not None:
                time = TimeRange(_ms(at_ns - _INVENTORY_NS), _ms(at_ns), _INVENTORY_NS)
                found = list(self._history.range(Question(metric, (GroupBy.GPU,)), time).groups)
            self._inventory = (at_ns, found)
        return self._inventory[1]

    def _fill(
        self,
        base: _Base,
        metric: MapMetric,
        values: NDArray[np.float64],
        deviations: list[Deviation | None],
        jobs: list[tuple[str, str] | None],
    ) -> None:
        end_ns = _ms(base.at_ns)
        cells = {labels: cell for cell, labels in enumerate(base.gpus)}
        newest = TimeRange(end_ns - _NEWEST_STEPS * _STEP_NS, end_ns, _STEP_NS)
        answer = self._history.range(Question(metric.metric, (GroupBy.GPU,)), newest)
        for labels, row in zip(answer.groups, answer.values, strict=True):
            cell = cells.get(labels)
            if cell is not None:
                values[cell] = row[~np.isnan(row)][-1]
        time = TimeRange(end_ns - _WINDOW_NS, end_ns, _STEP_NS)
        answer = self._history.range(Question(metric.metric, (GroupBy.GPU, GroupBy.JOB)), time)
        latest = [-1] * len(base.gpus)  # a GPU may have had several jobs
        for group, row, deviation in zip(answer.groups, answer.values, deviations_of(answer), strict=True):
            cell = cells.get(tuple(pair for pair in group if pair[0] in GROUP_LABELS[GroupBy.GPU]))
            step = int(np.flatnonzero(~np.isnan(row))[-1])
            if cell is None or step < max(latest[cell], len(row) - _NEWEST_STEPS):
                continue
            latest[cell], deviations[cell] = step, deviation
            of = dict(group)
            jobs[cell] = (of.get("job_kind", ""), of["job_id"]) if of.get("job_id") else None

    def _number(self, question: Question, at_ns: int) -> int | None:
        if question.metric not in self._known:
            return None
        return len(self._history.latest(question, at_ns=_ms(at_ns)).groups)

    def _total(self, question: Question, at_ns: int) -> int | None:
        total = self._sum(question, at_ns, unknown=0.0)
        return None if total is None else round(total)

    def _sum(self, question: Question, at_ns: int, *, unknown: float | None = None) -> float | None:
        if question.metric not in self._known:
            return None
        found = self._history.latest(question, at_ns=_ms(at_ns)).values
        return float(found.sum()) if len(found) else unknown


def _abnormal(base: _Base, metric: MapMetric | None, deviations: Sequence[Deviation | None]) -> tuple[AbnormalGpu, ...]:
    why: dict[int, list[str]] = defaultdict(list)
    score: dict[int, float] = defaultdict(float)
    by_uuid = {dict(labels).get("uuid", ""): cell for cell, labels in enumerate(base.gpus)}
    by_place = {_place(dict(labels)): cell for cell, labels in enumerate(base.gpus)}
    for event in base.events:
        if event.kind is HistoryEventKind.HEALTH and event.end_ns is None:
            labels = dict(event.labels)
            cell = by_uuid.get(labels.get("uuid") or "-", by_place.get(_place(labels)) if "gpu" in labels else None)
            if cell is not None:
                why[cell].append(f"{event.code}: {event.text}" if event.code not in event.text else event.text)
                score[cell] += _EVENT_SCORE
    for cell, deviation in enumerate(deviations if metric is not None else ()):
        if metric is not None and deviation is not None and abs(metric.score(deviation)) >= LEAST_SCORE:
            why[cell].append(metric.deviation_words(deviation))
            score[cell] += abs(metric.score(deviation))
    worst = sorted(why, key=lambda cell: (-score[cell], cell))[:MAX_ABNORMAL]
    return tuple(AbnormalGpu(cell, tuple(why[cell])) for cell in worst)


def _place(labels: Mapping[str, str]) -> tuple[str, str]:
    return labels.get("instance", ""), labels.get("gpu", "")


def natural(text: str) -> tuple[tuple[str, int], ...]:
    """Key that sorts node9 before node10."""
    return tuple((word, int(number or 0)) for word, number in re.findall(r"(\D*)(\d*)", text))


def _gpu_order(labels: Labels) -> tuple[object, ...]:
    of = dict(labels)
    return natural(of.get("gpu", "")), natural(of.get("gpu_instance", "")), labels


def _ms(time_ns: int) -> int:
    return time_ns // 10**6 * 10**6


def map_metric(key: str) -> MapMetric:
    """The metric of the map with this key.

    Raises:
        UsageError: there is none.
    """
    found = next((metric for metric in MAP_METRICS if metric.key == key), None)
    if found is None:
        keys = ", ".join(metric.key for metric in MAP_METRICS)
        raise UsageError(f"no metric {key!r} of the map", what_next=f"give one of {keys}")
    return found
