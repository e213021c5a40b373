"""Reporter to Kubernetes against a real kube-apiserver and etcd, where both are on the PATH; with the shipped RBAC."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from stepscope.agent.kubernetes.node_api import NodeApi, NodeApiError
from stepscope.collectors.jobs.kubernetes.api_server import KubernetesApi
from stepscope.core.metrics.readings import MissingReason
from tests.agent.kubernetes.reports import event, report
from tests.agent.kubernetes.test_reporter import Node
from tests.deploy.conftest import DEPLOY

pytestmark = pytest.mark.skipif(
    not all(map(shutil.which, ("etcd", "kube-apiserver", "kubectl"))), reason="no kube-apiserver, etcd and kubectl here"
)
_NODE, _OTHER = "node-7.example", "node-8.example"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Cluster:
    """A control plane without anything else."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder, self.port = folder, port

    def kubectl(self, *arguments: str, document: Any = None) -> str:
        command = ["kubectl", f"--server=https://127.0.0.1:{self.port}", "--token=admin", "--insecure-skip-tls-verify"]
        done = subprocess.run(
            [*command, *arguments],
            input=None if document is None else json.dumps(document),
            capture_output=True,
            text=True,
            timeout=60,
            env={"HOME": str(self.folder), "PATH": "/usr/local/bin:/usr/bin:/bin"},
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def apply(self, document: Any) -> None:
        self.kubectl("apply", "-f", "-", document=document)

    def account(self, node: str) -> Path:
        """Folder with the token of the agent's pod on a node, as the kubelet makes it."""
        pod = f"agent-{node[:6]}"
        spec = {"serviceAccountName": "stepscope-agent", "nodeName": node, "containers": [{"name": "a", "image": "a"}]}
        about = {"name": pod, "namespace": "stepscope"}
        self.apply({"apiVersion": "v1", "kind": "Pod", "metadata": about, "spec": spec})
        bound = ("--bound-object-kind=Pod", f"--bound-object-name={pod}")
        folder = self.folder / pod
        folder.mkdir(exist_ok=True)
        token = self.kubectl("-n", "stepscope", "create", "token", "stepscope-agent", *bound)
        (folder / "token").write_text(token)
        shutil.copy(self.folder / "certs/apiserver.crt", folder / "ca.crt")
        return folder


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("kubernetes")
    etcd, peer, port = _free_port(), _free_port(), _free_port()
    for command in (
        ["openssl", "genrsa", "-out", "sa.key", "2048"],
        ["openssl", "rsa", "-in", "sa.key", "-pubout", "-out", "sa.pub"],
    ):
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
    (folder / "tokens.csv").write_text('admin,admin,admin,"system:masters"\n')
    client_urls, peer_urls = f"http://127.0.0.1:{etcd}", f"http://127.0.0.1:{peer}"
    commands = [
        ["etcd", "--data-dir=etcd", f"--listen-client-urls={client_urls}", f"--advertise-client-urls={client_urls}",
         f"--listen-peer-urls={peer_urls}", f"--initial-advertise-peer-urls={peer_urls}",
         f"--initial-cluster=default={peer_urls}"],
        ["kube-apiserver", f"--etcd-servers={client_urls}", f"--secure-port={port}", "--bind-address=127.0.0.1",
         "--advertise-address=127.0.0.1", "--cert-dir=certs", "--token-auth-file=tokens.csv",
         "--authorization-mode=RBAC", "--service-account-issuer=https://kubernetes.default.svc",
         "--service-account-signing-key-file=sa.key", "--service-account-key-file=sa.pub",
         "--service-cluster-ip-range=10.0.0.0/24"],
    ]  # fmt: skip
    with ExitStack() as stack:
        for command in commands:
            log = stack.enter_context((folder / f"{command[0]}.log").open("w"))
            process = stack.enter_context(subprocess.Popen(command, cwd=folder, stdout=log, stderr=log))
            stack.callback(process.kill)
        made = Cluster(folder, port)
        end = time.monotonic() + 240
        while True:
            try:
                assert made.kubectl("get", "--raw", "/readyz") == "ok"
                break
            except (AssertionError, subprocess.TimeoutExpired):
                assert time.monotonic() < end, (folder / "kube-apiserver.log").read_text()[-3000:]
                time.sleep(1)
        made.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "stepscope"}})
        about = {"name": "stepscope-agent", "namespace": "stepscope"}
        made.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": about})
        for node in (_NODE, _OTHER):
            made.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}})
        made.kubectl("apply", "-f", str(DEPLOY / "kubernetes/node-condition.yaml"))
        yield made


def _api(cluster: Cluster, *, of: str = _NODE, node: str = _NODE) -> NodeApi:
    return NodeApi(KubernetesApi("127.0.0.1", cluster.port, cluster.account(of)), node, seconds=20.0)


def _patch(kind: str, status: str = "True") -> dict[str, Any]:
    one = {"type": kind, "status": status, "reason": "R", "message": "m", "lastHeartbeatTime": "2026-01-01T00:00:00Z"}
    return {"status": {"conditions": [one]}}


def test_condition_and_events_appear_and_end(cluster: Cluster) -> None:
    fake = type("Server", (), {"server": KubernetesApi("127.0.0.1", cluster.port, cluster.account(_NODE))})
    dry, node = Node(fake, dry_run=True, seconds=20.0), Node(fake, seconds=20.0)  # type: ignore[arg-type]
    for each in (dry, node):
        each.health = report(event(), event("xid_79", 1))
        each.run(60)
        assert each.reporter.collect().missing == ()
        found = json.loads(cluster.kubectl("get", "node", _NODE, "-o", "json"))
        conditions = {one["type"]: one for one in found["status"].get("conditions", [])}
        assert ("StepscopeGpuUnhealthy" in conditions) == (each is node)
        events = json.loads(
            cluster.kubectl("get", "events", "-n", "default", "-o", "json", "--field-selector=involvedObject.kind=Node")
        )["items"]
        assert len(events) == (2 if each is node else 0)
    condition = conditions["StepscopeGpuUnhealthy"]
    assert (condition["status"], condition["reason"]) == ("True", "GpuLost")
    assert {one["involvedObject"]["uid"] for one in events} == {found["metadata"]["uid"]}
    assert "GpuLost" in cluster.kubectl("describe", "node", _NODE)
    again = Node(fake, seconds=20.0)  # type: ignore[arg-type]
    again.now, again.health = 500.0, report(event(), event("xid_79", 1))
    again.run(60)
    node.health = report()
    node.run(400)
    found = json.loads(cluster.kubectl("get", "node", _NODE, "-o", "json"))
    (after,) = [one for one in found["status"]["conditions"] if one["type"] == "StepscopeGpuUnhealthy"]
    assert after["status"] == "False"
    assert after["lastTransitionTime"] > condition["lastTransitionTime"]
    events = json.loads(
        cluster.kubectl("get", "events", "-n", "default", "-o", "json", "--field-selector=involvedObject.kind=Node")
    )["items"]
    assert sorted(one["reason"] for one in events) == ["GpuLost", "GpuLostEnded", "Xid79", "Xid79Ended"]


def test_the_shipped_permissions_allow_its_own_condition_alone(cluster: Cluster) -> None:
    api = _api(cluster)
    assert api.patch_status({})["metadata"]["name"] == _NODE
    api.patch_status(_patch("StepscopeGpuUnhealthy"))
    end = time.monotonic() + 60
    while True:  # a policy counts some seconds after it was applied
        refusals = []
        try:
            api.patch_status(_patch("Ready", "False"))
        except NodeApiError as error:
            refusals.append(str(error))
            break
        assert time.monotonic() < end
        time.sleep(1)
    assert "its own condition alone" in refusals[0]
    with pytest.raises(NodeApiError, match="status of its own node alone"):
        _api(cluster, node=_OTHER).patch_status(_patch("StepscopeGpuUnhealthy"))
    _api(cluster, of=_OTHER, node=_OTHER).patch_status(_patch("StepscopeGpuUnhealthy"))
    for verb, resource in (("get", "nodes"), ("list", "pods"), ("patch", "nodes"), ("list", "events")):
        can = ("auth", "can-i", verb, resource, "--as=system:serviceaccount:stepscope:stepscope-agent")
        with pytest.raises(AssertionError):
            cluster.kubectl(*can)


def test_refusals_are_those_that_the_stand_in_gives(cluster: Cluster) -> None:
    api = _api(cluster)
    with pytest.raises(NodeApiError, match="HTTP 409") as conflict:
        api.patch_status({"metadata": {"resourceVersion": "1"}} | _patch("StepscopeGpuUnhealthy", "Unknown"))
    assert not conflict.value.is_final
    bad_time = _patch("StepscopeGpuUnhealthy")
    bad_time["status"]["conditions"][0]["lastHeartbeatTime"] = "yesterday"
    with pytest.raises(NodeApiError, match="HTTP 4") as refused:
        api.patch_status(bad_time)
    assert refused.value.is_final
    (document,) = Node(type("S", (), {"server": None}), seconds=1.0).reporter._events.observe(  # type: ignore[arg-type]
        report(event("x")), now_ns=0
    )
    api.create_event(document)
    api.create_event(document)  # it is there already
    document["metadata"]["name"] += "0"
    document["involvedObject"]["namespace"] = "stepscope"
    with pytest.raises(NodeApiError, match=r"HTTP 422: .*does not match event\.namespace") as invalid:
        api.create_event(document)
    assert invalid.value.is_final
    (cluster.folder / "agent-node-7/token").write_text("nobody")
    with pytest.raises(NodeApiError) as unknown:
        api.patch_status({})
    assert unknown.value.reason is MissingReason.NO_PERMISSION
