"""Pod facts: owner, queue and team from the API server, which is asked rarely whatever it answers."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from stepscope.collectors.jobs.kubernetes.api_server import KubernetesApi, KubernetesApiError
from stepscope.collectors.jobs.kubernetes.pods import Pod, PodDirectory, pod_of
from stepscope.collectors.jobs.processes import TeamNaming
from stepscope.core.metrics.readings import Collection, MissingReason
from tests.agent.web.certificates import self_signed
from tests.collectors.jobs.kubernetes.fake_api import NODE, Api, pod, running

_KUEUE = {"kueue.x-k8s.io/queue-name": "research"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with running(tmp_path_factory.mktemp("api")) as api:
        yield api


@pytest.fixture
def api(server: Api) -> Api:
    """As it is at first."""
    server.pods, server.status, server.body, server.page = [], 200, None, 100
    server.drip = 0.0
    server.asked.clear()
    (server.server.account / "token").write_text("first\n")
    return server


class Clock:
    """Seconds."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def _why(collection: Collection) -> tuple[MissingReason, str]:
    (missing,) = collection.missing
    return missing.reason, missing.detail


@pytest.mark.parametrize(
    ("labels", "owner", "workload"),
    [
        (
            {"jobset.sigs.k8s.io/jobset-name": "llama", "batch.kubernetes.io/job-name": "llama-worker-0"},
            ("Job", "llama-worker-0"),
            "JobSet/llama",
        ),
        (
            {"training.kubeflow.org/job-name": "bert", "training.kubeflow.org/operator-name": "pytorchjob-controller"},
            ("PyTorchJob", "bert"),
            "PyTorchJob/bert",
        ),
        (
            {"training.kubeflow.org/job-name": "gpt", "training.kubeflow.org/operator-name": "mpijob-controller"},
            None,
            "MPIJob/gpt",
        ),
        ({"job-name": "eval"}, ("Job", "eval"), "Job/eval"),
        ({"volcano.sh/job-name": "v"}, ("Job", "v"), "VolcanoJob/v"),
        ({"ray.io/cluster": "serve"}, ("RayCluster", "serve"), "RayCluster/serve"),
        ({"leaderworkerset.sigs.k8s.io/name": "vllm"}, ("StatefulSet", "vllm-0"), "LeaderWorkerSet/vllm"),
        ({"pod-template-hash": "6d4cf56db6"}, ("ReplicaSet", "api-6d4cf56db6"), "Deployment/api"),
        ({}, ("StatefulSet", "notebook"), "StatefulSet/notebook"),
        ({}, ("DaemonSet", "agent"), "DaemonSet/agent"),
        ({}, ("Node", "node-7"), ""),
        ({}, None, ""),
    ],
)
def test_what_a_pod_is_part_of(labels: dict[str, str], owner: tuple[str, str] | None, workload: str) -> None:
    found = pod_of(pod("ml", "x-0", "u", labels | _KUEUE, owner), ("team",), ("project",))
    assert found == Pod("ml", "x-0", "u", workload, "research")


def test_teams_and_projects_by_the_operators_names() -> None:
    item = pod("ml", "x", "u", {"cost/team": "nlp"}, annotations={"cost/project": "llm"})
    found = pod_of(item, ("stepscope.io/team", "cost/team"), ("cost/project",))
    assert found is not None
    assert (found.team, found.project) == ("nlp", "llm")


@pytest.mark.parametrize(
    "item",
    [{}, {"metadata": []}, {"metadata": {"name": 5, "namespace": "ml"}}, {"metadata": {"name": "x", "labels": 5}}],
)
def test_an_item_that_is_no_pod(item: dict[str, Any]) -> None:
    assert pod_of(item, (), ()) is None


def test_facts_of_the_wrong_type_are_not_told() -> None:
    item = {"metadata": {"name": "x", "namespace": "ml", "labels": {"team": 5}, "ownerReferences": [7, {"kind": 1}]}}
    assert pod_of(item, ("team",), ()) == Pod("ml", "x", "")


def _directory(api: Api, clock: Clock, seconds: float = 5.0) -> PodDirectory:
    return PodDirectory(api.server, NODE, TeamNaming(), seconds=seconds, clock=clock)


def test_pages_of_metadata_alone_are_asked_for_and_joined(api: Api) -> None:
    api.pods = [pod("ml", f"x-{number}", f"u-{number}") for number in range(7)]
    api.page = 3
    directory = _directory(api, Clock())
    directory.want([("ml", "x-6")], ["u-0"])
    assert directory.collect() == Collection()
    assert directory.pod("ml", "x-6") == Pod("ml", "x-6", "u-6")
    assert directory.pod_of_uid("u-0") == Pod("ml", "x-0", "u-0")
    assert [query.get("continue") for query in api.asked] == [None, ["3"], ["6"]]
    assert api.asked[0]["resourceVersion"] == ["0"]
    assert all("as=PartialObjectMetadataList" in accept for accept in api.accepted)


def test_bug_24_it_is_asked_for_new_pods_alone_and_misses_are_remembered(api: Api) -> None:
    """NVIDIA/dcgm-exporter#599, #625: mapped at each scrape without a negative cache."""
    clock = Clock()
    directory = _directory(api, clock)
    api.pods = [pod("ml", "a")]
    directory.collect()
    assert not api.asked  # nobody has a GPU
    directory.want([("ml", "a")], ())
    for _ in range(50):
        directory.collect()
        clock.now += 10
    assert len(api.asked) == 1
    directory.want([("ml", "a"), ("ml", "unknown")], ["u-unknown"])
    for _ in range(29):
        directory.collect()
        clock.now += 10
    assert len(api.asked) == 2
    clock.now += 10
    directory.collect()
    assert len(api.asked) == 3
    directory.want([("ml", "new")], ())
    directory.collect()
    assert len(api.asked) == 3  # not twice within 10 s
    clock.now += 10
    directory.collect()
    assert len(api.asked) == 4


def test_a_pod_that_came_again_under_its_name_is_asked_for_after_a_while(api: Api) -> None:
    clock = Clock()
    directory = _directory(api, clock)
    directory.want([("ml", "a")], ())
    api.pods = [pod("ml", "a", "old")]
    directory.collect()
    api.pods = [pod("ml", "a", "new")]
    clock.now += 600
    directory.collect()
    assert directory.pod_of_uid("new") is not None
    assert directory.pod_of_uid("old") is None


def test_a_server_that_drips_gets_no_longer(api: Api) -> None:
    api.body, api.drip = b" " * 1000, 0.1
    with pytest.raises(KubernetesApiError) as raised:
        api.server.items(NODE, seconds=0.5)
    assert raised.value.reason is MissingReason.TIMED_OUT


def test_a_refusal_is_said_and_it_is_seldom_asked_again(api: Api) -> None:
    clock = Clock()
    directory = _directory(api, clock)
    directory.want([("ml", "a")], ())
    api.status = 403
    for _ in range(90):
        why, detail = _why(directory.collect())
        assert why is MissingReason.NO_PERMISSION
        assert detail == (
            "the Kubernetes API: HTTP 403: it may not list pods: give its service account the verb list on pods"
        )
        clock.now += 10
    assert len(api.asked) == 1
    api.status, api.pods = 200, [pod("ml", "a")]
    assert directory.collect() == Collection()
    assert directory.pod("ml", "a") is not None


def test_errors_are_asked_about_less_and_less_often(api: Api) -> None:
    clock = Clock()
    directory = _directory(api, clock)
    directory.want([("ml", "a")], ())
    api.status = 500
    times = []
    for _ in range(400):
        before = len(api.asked)
        assert directory.collect().missing
        times += [clock.now] if len(api.asked) > before else []
        clock.now += 10
    pauses = [second - first for first, second in pairwise(times)]
    assert pauses[:8] == [20, 40, 80, 160, 320, 640, 900, 900]


def test_a_token_that_was_exchanged_is_read_anew(api: Api) -> None:
    api.server.items(NODE, seconds=5)
    (api.server.account / "token").write_text("second\n")
    assert api.server.items(NODE, seconds=5) == []


def test_an_api_that_hangs_costs_its_deadline_and_nobody_else(api: Api) -> None:
    directory = _directory(api, Clock(), seconds=0.3)
    directory.want([("ml", "a")], ())
    api.hold.clear()
    why, _ = _why(directory.collect())
    api.hold.set()
    assert why is MissingReason.TIMED_OUT


@pytest.mark.parametrize(
    ("body", "reason"),
    [(b"<html>", MissingReason.UNREADABLE), (b"x" * (9 << 20), MissingReason.UNREADABLE), (b"[]", None), (b"{}", None)],
)
def test_other_answers(api: Api, body: bytes, reason: MissingReason | None) -> None:
    api.body = body
    if reason is None:
        assert api.server.items(NODE, seconds=5) == []
        return
    with pytest.raises(KubernetesApiError) as raised:
        api.server.items(NODE, seconds=5)
    assert raised.value.reason is reason


def test_a_server_that_the_clusters_authority_did_not_sign_is_not_asked(api: Api, tmp_path: Path) -> None:
    cert, _ = self_signed(tmp_path, "other")
    (tmp_path / "ca.crt").write_bytes(cert.read_bytes())
    (tmp_path / "token").write_text("secret\n")
    with pytest.raises(KubernetesApiError) as raised:
        KubernetesApi("127.0.0.1", api.server.port, tmp_path).items(NODE, seconds=5)
    assert raised.value.reason is MissingReason.UNREACHABLE
    assert "secret" not in str(raised.value)
    assert not api.asked


def test_outside_of_a_pod_there_is_no_api(tmp_path: Path) -> None:
    host = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}
    assert KubernetesApi.of_pod(host, tmp_path) is None
    (tmp_path / "token").write_text("x")
    assert KubernetesApi.of_pod({}, tmp_path) is None
    assert KubernetesApi.of_pod(host, tmp_path) == KubernetesApi("10.0.0.1", 443, tmp_path)
