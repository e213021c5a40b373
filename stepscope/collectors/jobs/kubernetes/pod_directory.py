"""What is known of the pods that use GPUs here, and when is the API asked for more?

It is asked when a pod turns up of which nothing is known, never for the sake of one that it does not have (misses are
remembered), less and less often while it refuses, and never by whoever wants to know (NVIDIA/dcgm-exporter#599).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

from stepscope.collectors.jobs.kubernetes.api_server import ApiError, ApiServer
from stepscope.collectors.jobs.kubernetes.pods import Pod, pod_of
from stepscope.collectors.jobs.settings import Naming
from stepscope.core.job_metrics import JOB
from stepscope.core.readings import Collection, Missing, MissingReason

_SECONDS = 5.0
_PAUSE_SECONDS = 10.0
"""Between two questions, however many pods come."""
_MISS_SECONDS = 300.0
_REFRESH_SECONDS = 600.0
"""The kubelet tells no uid: a pod that came again under its name cannot be told from the one before."""
_LONGEST_PAUSE_SECONDS = 900.0


class PodDirectory:
    """Pods of this node. `collect` asks, in a thread of its own; all else answers at once from what is known."""

    def __init__(
        self,
        server: ApiServer,
        node: str,
        naming: Naming,
        *,
        seconds: float = _SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Args:
            server: whom to ask.
            node: the name that this node has there.
            naming: of teams and projects.
            seconds: how long an answer may take.
            clock: seconds.
        """
        self._server = server
        self._node = node
        self._naming = naming
        self._seconds = seconds
        self._clock = clock
        self._by_name: dict[tuple[str, str], Pod] = {}
        self._by_uid: dict[str, Pod] = {}
        self._wanted: frozenset[tuple[str, str]] = frozenset()
        self._wanted_uids: frozenset[str] = frozenset()
        self._missed: dict[tuple[str, str] | str, float] = {}
        self._due = 0.0
        self._answered = float("-inf")
        self._pause = _PAUSE_SECONDS
        self._failure: Missing | None = None

    def pod(self, namespace: str, name: str) -> Pod | None:
        """What is known of a pod."""
        return self._by_name.get((namespace, name))

    def pod_of_uid(self, uid: str) -> Pod | None:
        """The same by its uid."""
        return self._by_uid.get(uid)

    def want(self, names: Iterable[tuple[str, str]], uids: Iterable[str]) -> None:
        """Which pods use GPUs now; all others are forgotten with the next answer."""
        self._wanted, self._wanted_uids = frozenset(names), frozenset(uids)

    def collect(self) -> Collection:
        """Ask if there is anything to ask; nothing is raised."""
        now = self._clock()
        if self._is_to_ask(now):
            self._ask(now)
        return Collection(missing=(self._failure,) if self._failure else ())

    def _is_to_ask(self, now: float) -> bool:
        if now < self._due:
            return False
        self._missed = {key: until for key, until in self._missed.items() if until > now}
        unknown = {*(self._wanted - self._by_name.keys()), *(self._wanted_uids - self._by_uid.keys())}
        is_old = now - self._answered >= _REFRESH_SECONDS and bool(self._wanted | self._wanted_uids)
        return is_old or bool(unknown - self._missed.keys())

    def _ask(self, now: float) -> None:
        wanted, uids = self._wanted, self._wanted_uids
        try:
            items = self._server.items(self._node, seconds=self._seconds)
        except ApiError as error:
            detail = f"the Kubernetes API: {error}"
            self._failure = Missing(JOB + "info", (), error.reason, detail)
            is_final = error.reason is MissingReason.NO_PERMISSION
            self._pause = _LONGEST_PAUSE_SECONDS if is_final else min(self._pause * 2, _LONGEST_PAUSE_SECONDS)
            self._due = now + self._pause
            return
        self._failure, self._pause, self._due = None, _PAUSE_SECONDS, now + _PAUSE_SECONDS
        self._answered = now
        told = (pod_of(item, self._naming.team, self._naming.project) for item in items)
        pods: Sequence[Pod] = [pod for pod in told if pod is not None]
        self._by_name = {(pod.namespace, pod.name): pod for pod in pods}
        self._by_uid = {pod.uid: pod for pod in pods if pod.uid}
        self._missed.update(dict.fromkeys(wanted - self._by_name.keys(), now + _MISS_SECONDS))
        self._missed.update(dict.fromkeys(uids - self._by_uid.keys(), now + _MISS_SECONDS))
