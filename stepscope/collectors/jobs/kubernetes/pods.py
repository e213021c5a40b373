"""Pods that use GPUs on this node: their workload, queue, team and project, and the pod of a process.

The API server is asked when an unknown pod appears, not again for a pod that it does not have, with back-off while it
refuses, and only in the source's own thread (NVIDIA/dcgm-exporter#599). A process is matched by its cgroup, which has
the pod's uid; the pods' log folders give the name of a uid. `Accept: ...as=PartialObjectMetadataList` leaves out
specification and status, nine tenths of the bytes.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stepscope.collectors.host.files import Files
from stepscope.collectors.jobs.kubernetes.api_server import KubernetesApi, KubernetesApiError
from stepscope.collectors.jobs.processes import Process, TeamNaming
from stepscope.collectors.readings_builder import NoValue
from stepscope.core.metrics.agent import JOB
from stepscope.core.metrics.readings import Collection, Missing, MissingReason

_ANSWER_SECONDS = 5.0
_PAUSE_SECONDS = 10.0
"""Between two requests, however many pods appear."""
_MISS_SECONDS = 300.0
_REFRESH_SECONDS = 600.0
"""The kubelet reports no uid: a pod that was created again under its name looks like the one before."""
_MAX_PAUSE_SECONDS = 900.0


class PodDirectory:
    """Pods of this Kubernetes node. Only `collect` blocks; the rest returns what is known."""

    def __init__(
        self,
        server: KubernetesApi,
        node: str,
        naming: TeamNaming,
        *,
        seconds: float = _ANSWER_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
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
        return self._by_name.get((namespace, name))

    def pod_of_uid(self, uid: str) -> Pod | None:
        return self._by_uid.get(uid)

    def want(self, names: Iterable[tuple[str, str]], uids: Iterable[str]) -> None:
        """Request the pods that use GPUs now; all others are forgotten with the next answer."""
        self._wanted, self._wanted_uids = frozenset(names), frozenset(uids)

    def collect(self) -> Collection:
        """Ask the API server if pods are not known; raises nothing."""
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
        except KubernetesApiError as error:
            detail = f"the Kubernetes API: {error}"
            self._failure = Missing(JOB + "info", (), error.reason, detail)
            is_final = error.reason is MissingReason.NO_PERMISSION
            self._pause = _MAX_PAUSE_SECONDS if is_final else min(self._pause * 2, _MAX_PAUSE_SECONDS)
            self._due = now + self._pause
            return
        self._failure, self._pause, self._due = None, _PAUSE_SECONDS, now + _PAUSE_SECONDS
        self._answered = now
        parsed = (pod_of(item, self._naming.team, self._naming.project) for item in items)
        pods: Sequence[Pod] = [pod for pod in parsed if pod is not None]
        self._by_name = {(pod.namespace, pod.name): pod for pod in pods}
        self._by_uid = {pod.uid: pod for pod in pods if pod.uid}
        self._missed.update(dict.fromkeys(wanted - self._by_name.keys(), now + _MISS_SECONDS))
        self._missed.update(dict.fromkeys(uids - self._by_uid.keys(), now + _MISS_SECONDS))


_WORKLOAD_LABELS = (
    ("jobset.sigs.k8s.io/jobset-name", "JobSet"),
    ("leaderworkerset.sigs.k8s.io/name", "LeaderWorkerSet"),
    ("volcano.sh/job-name", "VolcanoJob"),
    ("ray.io/cluster", "RayCluster"),
    ("batch.kubernetes.io/job-name", "Job"),
    ("job-name", "Job"),
)
"""Labels with the name of the workload of a pod, the outermost first."""
_KUBEFLOW_LABELS = ("training.kubeflow.org/job-name", "job-name", "pytorch-job-name", "tf-job-name", "mpi-job-name")
_KUBEFLOW_KINDS = {"pytorchjob": "PyTorchJob", "tfjob": "TFJob", "mpijob": "MPIJob", "jaxjob": "JAXJob"} | {
    "xgboostjob": "XGBoostJob",
    "paddlejob": "PaddleJob",
}
_OPERATOR_LABEL = "training.kubeflow.org/operator-name"
_QUEUE_LABELS = ("kueue.x-k8s.io/queue-name", "volcano.sh/queue-name", "kai.scheduler/queue", "runai/queue")
_TEMPLATE_HASH_LABEL = "pod-template-hash"


@dataclass(frozen=True, slots=True)
class Pod:
    """Facts of one Kubernetes pod that jobs need; empty if not known.

    Attributes:
        workload: what it is part of: "JobSet/llama".
        queue: Kueue's, or another scheduler's.
        team, project: by labels or annotations that the operator names.
    """

    namespace: str
    name: str
    uid: str
    workload: str = ""
    queue: str = ""
    team: str = ""
    project: str = ""


def pod_of(item: Mapping[str, Any], team_names: Iterable[str], project_names: Iterable[str]) -> Pod | None:
    """The pod of an item of the Kubernetes API's list; None if it has no name. Values of a wrong type are left out."""
    metadata = _mapping(item.get("metadata"))
    namespace, name, uid = (_text(metadata.get(key)) for key in ("namespace", "name", "uid"))
    if not namespace or not name:
        return None
    labels, annotations = _texts(metadata.get("labels")), _texts(metadata.get("annotations"))
    owners = metadata.get("ownerReferences")
    both = annotations | labels
    return Pod(
        namespace,
        name,
        uid,
        _workload(labels, owners if isinstance(owners, list) else []),
        _first_set(both, _QUEUE_LABELS),
        _first_set(both, team_names),
        _first_set(both, project_names),
    )


def _workload(labels: Mapping[str, str], owners: list[Any]) -> str:
    owner = next((one for one in map(_mapping, owners) if one.get("controller")), {})
    kind, name = _text(owner.get("kind")), _text(owner.get("name"))
    if kind.lower() in _KUBEFLOW_KINDS and name:
        return f"{kind}/{name}"
    operator = _KUBEFLOW_KINDS.get(labels.get(_OPERATOR_LABEL, "").removesuffix("-controller"))
    if operator and _first_set(labels, _KUBEFLOW_LABELS):
        return f"{operator}/{_first_set(labels, _KUBEFLOW_LABELS)}"
    for label, outer in _WORKLOAD_LABELS:
        if labels.get(label):
            return f"{outer}/{labels[label]}"
    if kind == "ReplicaSet" and labels.get(_TEMPLATE_HASH_LABEL) and name.endswith(f"-{labels[_TEMPLATE_HASH_LABEL]}"):
        return f"Deployment/{name.removesuffix('-' + labels[_TEMPLATE_HASH_LABEL])}"
    return f"{kind}/{name}" if kind and name and kind != "Node" else ""


def _first_set(texts: Mapping[str, str], names: Iterable[str]) -> str:
    return next((texts[name] for name in names if texts.get(name)), "")


def _mapping(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _texts(value: object) -> dict[str, str]:
    return {name: text for name, text in _mapping(value).items() if isinstance(text, str)}


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


_POD_UID = re.compile(r"kubepods.*?pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})")
"""The second form is a static pod's."""
_LOG_FOLDER = "var/log/pods"


def pod_uid_of(process: Process) -> str:
    """Uid of the Kubernetes pod of a process; empty where it is in none. systemd's slices write it with underscores."""
    return next((match[1].replace("_", "-") for path in process.cgroups if (match := _POD_UID.search(path))), "")


def pods_with_logs(files: Files) -> dict[str, tuple[str, str]]:
    """Namespace and name of the node's pods by uid: /var/log/pods/NAMESPACE_NAME_UID. Needs no API."""
    names = files.names(_LOG_FOLDER)
    found: dict[str, tuple[str, str]] = {}
    for name in [] if isinstance(names, NoValue) else names:
        parts = name.split("_")
        if len(parts) == 3:
            found[parts[2]] = parts[0], parts[1]
    return found
