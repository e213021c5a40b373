"""What is a pod part of, and whose is it? From its metadata, as the Kubernetes API tells it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

_WORKLOADS = (
    ("jobset.sigs.k8s.io/jobset-name", "JobSet"),
    ("leaderworkerset.sigs.k8s.io/name", "LeaderWorkerSet"),
    ("volcano.sh/job-name", "VolcanoJob"),
    ("ray.io/cluster", "RayCluster"),
    ("batch.kubernetes.io/job-name", "Job"),
    ("job-name", "Job"),
)
"""Labels that name what a pod is part of, the outermost first."""
_KUBEFLOW = ("training.kubeflow.org/job-name", "job-name", "pytorch-job-name", "tf-job-name", "mpi-job-name")
_KUBEFLOW_KINDS = {"pytorchjob": "PyTorchJob", "tfjob": "TFJob", "mpijob": "MPIJob", "jaxjob": "JAXJob"} | {
    "xgboostjob": "XGBoostJob",
    "paddlejob": "PaddleJob",
}
_OPERATOR = "training.kubeflow.org/operator-name"
_QUEUES = ("kueue.x-k8s.io/queue-name", "volcano.sh/queue-name", "kai.scheduler/queue", "runai/queue")
_HASH = "pod-template-hash"


@dataclass(frozen=True, slots=True)
class Pod:
    """One pod, as far as jobs need it. Texts are empty where they are not told.

    Attributes:
        namespace, name, uid: which.
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
    """The pod of an item of a list of pods; None where it has no name. What is of the wrong type is not told."""
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
        _first(both, _QUEUES),
        _first(both, team_names),
        _first(both, project_names),
    )


def _workload(labels: Mapping[str, str], owners: list[Any]) -> str:
    owner = next((one for one in map(_mapping, owners) if one.get("controller")), {})
    kind, name = _text(owner.get("kind")), _text(owner.get("name"))
    if kind.lower() in _KUBEFLOW_KINDS and name:
        return f"{kind}/{name}"
    operator = _KUBEFLOW_KINDS.get(labels.get(_OPERATOR, "").removesuffix("-controller"))
    if operator and _first(labels, _KUBEFLOW):
        return f"{operator}/{_first(labels, _KUBEFLOW)}"
    for label, outer in _WORKLOADS:
        if labels.get(label):
            return f"{outer}/{labels[label]}"
    if kind == "ReplicaSet" and labels.get(_HASH) and name.endswith(f"-{labels[_HASH]}"):
        return f"Deployment/{name.removesuffix('-' + labels[_HASH])}"
    return f"{kind}/{name}" if kind and name and kind != "Node" else ""


def _first(texts: Mapping[str, str], names: Iterable[str]) -> str:
    return next((texts[name] for name in names if texts.get(name)), "")


def _mapping(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _texts(value: object) -> dict[str, str]:
    return {name: text for name, text in _mapping(value).items() if isinstance(text, str)}


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
