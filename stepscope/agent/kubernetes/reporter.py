"""Reporter of this machine's health to Kubernetes: keeps the node's condition and sends events, in a thread of its own.

Health never waits for it. A server that does not answer is asked again after 5 s, 10 s, ... up to 5 minutes.
"""

from __future__ import annotations

import logging
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from stepscope.agent.config.settings import KubernetesSettings
from stepscope.agent.kubernetes.node_api import NodeApi, NodeApiError
from stepscope.agent.kubernetes.node_report import (
    ConditionStatus,
    EventQueue,
    NodeCondition,
    NodeEvents,
    SettledCondition,
    condition_document,
    condition_of,
)
from stepscope.collectors.jobs.kubernetes.api_server import KubernetesApi
from stepscope.collectors.kernel_log import boot_id
from stepscope.core.errors import UsageError
from stepscope.core.hardware.health import HealthReport, Severity
from stepscope.core.metrics.agent import AGENT
from stepscope.core.metrics.readings import Collection, Missing, Reading, labels_of
from stepscope.core.process import WorkerThread

_log = logging.getLogger(__name__)

_LOOK_SECONDS = 5.0
_MIN_SECONDS = 30.0
"""Between two changes of the condition."""
_HEARTBEAT_SECONDS = 300.0
"""As often as node-problem-detector repeats its conditions: who reads them knows that somebody still looks."""
_FIRST_RETRY_SECONDS, _LAST_RETRY_SECONDS = 5.0, 300.0
_MAX_EVENTS, _EVENT_BURST, _EVENT_SECONDS = 64, 10, 60.0
_EVENTS_A_LOOK = 4
_CONDITION_TYPE = re.compile(r"[A-Za-z][A-Za-z0-9]{0,62}")
_KUBELETS = frozenset({"Ready", "MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable"})


class NodeReporter:
    """Reporter of health to Kubernetes; a context manager, which works while it is open.

    Attributes:
        report: gives the newest report of health; waits for nothing.
    """

    def __init__(
        self,
        api: NodeApi,
        settings: KubernetesSettings,
        *,
        boot: str = "",
        clock: Callable[[], float] = time.monotonic,
        wall_clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self.report: Callable[[], HealthReport] | None = None
        self._api, self._settings = api, settings
        self._clock, self._wall_clock_ns = clock, wall_clock_ns
        self._settled = SettledCondition(settings.settle_seconds, settings.clear_seconds)
        self._events = NodeEvents(api.node, boot=boot)
        self._queue = EventQueue(max_waiting=_MAX_EVENTS, burst=_EVENT_BURST, seconds_each=_EVENT_SECONDS)
        self._uid: str | None = None
        self._status: ConditionStatus | None = None
        self._written: NodeCondition | None = None
        self._write_at = self._beat_at = self._retry_at = float("-inf")
        self._pause = _FIRST_RETRY_SECONDS
        self._failure: Missing | None = None
        self._counts: Counter[tuple[str, str]] = Counter()
        self._worker = WorkerThread(self.look, name="stepscope-kubernetes", log=_log)

    def __enter__(self) -> NodeReporter:
        self._worker.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._worker.__exit__()

    def collect(self) -> Collection:
        """As a source of the agent: counts of changes, and why the last one did not succeed. Waits for nothing."""
        now_ns = self._wall_clock_ns()
        readings = [
            Reading(AGENT + "kubernetes_writes_total", float(count), labels_of(kind=kind, result=result), now_ns)
            for (kind, result), count in sorted(dict(self._counts).items())
        ]
        if self._queue.num_dropped:
            dropped = float(self._queue.num_dropped)
            readings.append(Reading(AGENT + "kubernetes_events_dropped_total", dropped, (), now_ns))
        failure = self._failure
        return Collection(tuple(readings), () if failure is None else (failure,))

    def look(self) -> float:
        """See what has changed, and write what is due; the seconds until the next look."""
        if self.report is None:
            return _LOOK_SECONDS
        now, now_ns, report = self._clock(), self._wall_clock_ns(), self.report()
        if self._settings.events:
            self._queue.add(self._events.observe(report, now_ns=now_ns))
        if self._uid is None:
            if now >= self._retry_at:
                self._try(self._begin, now)
            if self._uid is None:
                return _LOOK_SECONDS
        condition = self._settled.observe(condition_of(report, Severity(self._settings.severity), now_ns), now)
        if now >= self._retry_at and condition is not None and self._is_due(condition, now):
            self._try(lambda: self._write(condition, now, now_ns), now)
        for _ in range(_EVENTS_A_LOOK):
            event = self._queue.next(now)
            if now < self._retry_at or event is None:
                break
            self._try(lambda event=event: self._send(event), now)  # type: ignore[misc]
        return _LOOK_SECONDS

    def _begin(self) -> None:
        """Learn the node's uid, and the status of the condition that it has from before."""
        node = self._api.patch_status({})
        before = _condition_in(node, self._settings.condition)
        self._status = before
        self._settled.start(before)
        self._uid = _text(_mapping(node.get("metadata")).get("uid"))

    def _is_due(self, condition: NodeCondition, now: float) -> bool:
        return now >= self._beat_at or (condition != self._written and now >= self._write_at)

    def _write(self, condition: NodeCondition, now: float, now_ns: int) -> None:
        is_new = condition.status is not self._status
        body = condition_document(
            self._settings.condition,
            condition,
            heartbeat_ns=now_ns,
            transition_ns=now_ns if is_new else None,
        )
        try:
            self._api.patch_status(body)
        except NodeApiError:
            self._counts["condition", "failed"] += 1
            raise
        import random

        self._counts["condition", self._result] += 1
        self._written, self._status = condition, condition.status
        self._write_at = now + _MIN_SECONDS
        self._beat_at = now + _HEARTBEAT_SECONDS * random.uniform(0.9, 1.0)
        if is_new:
            _log.warning(
                "%scondition %s of node %s is %s: %s",
                self._prefix,
                self._settings.condition,
                self._api.node,
                condition.status,
                condition.message,
            )

    def _send(self, event: dict[str, Any]) -> None:
        if self._uid:
            event["involvedObject"]["uid"] = self._uid
        try:
            self._api.create_event(event)
        except NodeApiError as error:
            self._counts["event", "failed"] += 1
            if error.is_final:  # it will never be taken
                self._queue.done()
            raise
        self._counts["event", self._result] += 1
        self._queue.done()
        _log.info("%sevent %s of node %s: %s", self._prefix, event["reason"], self._api.node, event["message"])

    def _try(self, call: Callable[[], None], now: float) -> None:
        """Make a request; after one that fails wait before the next."""
        try:
            call()
        except NodeApiError as error:
            import random

            pause = max(self._pause, error.retry_seconds or 0.0)
            self._retry_at = now + pause * random.uniform(0.8, 1.2)
            self._pause = min(self._pause * 2, _LAST_RETRY_SECONDS)
            failure = Missing("", (), error.reason, f"the Kubernetes API: {error}")
            if self._failure is None or self._failure.reason is not failure.reason:
                _log.warning("health is not reported to Kubernetes: %s", error)
            self._failure = failure
        else:
            self._failure, self._pause = None, _FIRST_RETRY_SECONDS

    @property
    def _result(self) -> str:
        return "dry_run" if self._api.is_dry_run else "ok"

    @property
    def _prefix(self) -> str:
        return "dry run: " if self._api.is_dry_run else ""


def node_reporter_of(settings: KubernetesSettings, node: str, environment: Mapping[str, str]) -> NodeReporter | None:
    """The reporter to Kubernetes with these settings; None where it is off.

    Raises:
        UsageError: the condition has a name that is not allowed, or this process has no service account.
    """
    if settings.report == "off":
        return None
    if _CONDITION_TYPE.fullmatch(settings.condition) is None or settings.condition in _KUBELETS:
        raise UsageError(
            f"the condition type {settings.condition!r} is not allowed",
            what_next="give letters and digits, not the kubelet's own",
        )
    server = KubernetesApi.of_pod(environment)
    if server is None:
        raise UsageError(
            "there is no service account of a pod here",
            what_next="apply deploy/kubernetes/node-condition.yaml and set automountServiceAccountToken: true",
        )
    return NodeReporter(NodeApi(server, node, is_dry_run=settings.report == "dry_run"), settings, boot=boot_id() or "")


def _condition_in(node: dict[str, Any], kind: str) -> ConditionStatus | None:
    conditions = _mapping(node.get("status")).get("conditions")
    for one in conditions if isinstance(conditions, list) else []:
        if isinstance(one, dict) and one.get("type") == kind:
            try:
                return ConditionStatus(_text(one.get("status")))
            except ValueError:
                return None
    return None


def _mapping(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
