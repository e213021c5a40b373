"""Kubernetes manifests: every field is known to the Kubernetes client."""

from __future__ import annotations

import re
import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from stepscope.agent.config.configuration import load_configuration
from stepscope.agent.config.settings import KubernetesSettings
from stepscope.agent.kubernetes.node_report import EVENT_NAMESPACE
from stepscope.agent.service import Agent
from tests.deploy.conftest import DEPLOY, Run

_FOLDER = DEPLOY / "kubernetes"


@pytest.fixture(scope="module")
def objects() -> dict[str, Any]:
    """By kind."""
    return {one["kind"]: one for one in yaml.safe_load_all((_FOLDER / "agent.yaml").read_text())}


def test_its_objects_are_read_and_belong_together(objects: dict[str, Any], tmp_path: Path, run: Run) -> None:
    for file in _FOLDER.glob("*.yaml"):
        shutil.copy(file, tmp_path)
    (tmp_path / "kustomization.yaml").write_text("resources: [agent.yaml, service-monitor.yaml]\n")
    done = run("kubectl", "kustomize", tmp_path)
    assert done.returncode == 0, done.stderr
    kinds = {one["kind"] for one in yaml.safe_load_all(done.stdout)}
    assert kinds == {*objects, "ServiceMonitor"}
    name = {"app.kubernetes.io/name": "stepscope-agent"}
    monitor = yaml.safe_load((_FOLDER / "service-monitor.yaml").read_text())
    assert monitor["spec"]["selector"]["matchLabels"] == name
    assert objects["DaemonSet"]["spec"]["template"]["metadata"]["labels"] == name
    assert objects["Service"]["spec"]["selector"] == name


def test_every_field_of_the_daemon_set_is_one(objects: dict[str, Any], tmp_path: Path, run: Run) -> None:
    assert not fields_lost_by(run, objects["DaemonSet"], tmp_path)


def fields_lost_by(run: Run, daemon_set: Any, folder: Path) -> list[str]:
    """Fields that kubectl's types do not have."""
    manifest = folder / "daemonset.yaml"
    manifest.write_text(yaml.safe_dump(daemon_set))
    done = run("kubectl", "set", "env", "--local", "-f", manifest, "ANY=THING", "-o", "yaml", "--dry-run=client")
    assert done.returncode == 0, done.stderr
    return _lost(daemon_set, yaml.safe_load(done.stdout))


def _lost(before: Any, after: Any, where: str = "") -> list[str]:
    """What of a document is not in the other: typed reading drops what it does not know."""
    if isinstance(before, dict) and isinstance(after, dict):
        return [lost for name, one in before.items() for lost in _lost(one, after.get(name), f"{where}.{name}")]
    if isinstance(before, list) and isinstance(after, list):
        return [lost for place, one in enumerate(before) for lost in _lost(one, after[place], f"{where}[{place}]")]
    return [] if before == after else [where]


def test_a_hanging_driver_restarts_no_pod(objects: dict[str, Any]) -> None:
    spec = objects["DaemonSet"]["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"
    assert "privileged" not in container["securityContext"]
    assert spec["terminationGracePeriodSeconds"] >= 20


def test_the_agent_takes_its_settings(objects: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "agent.toml"
    file.write_text(objects["ConfigMap"]["data"]["agent.toml"])
    (container,) = objects["DaemonSet"]["spec"]["template"]["spec"]["containers"]
    assert str(Agent(load_configuration(file)).address.port) == str(container["ports"][0]["containerPort"])
    for text in ((_FOLDER / "agent.yaml").read_text(), (DEPLOY / "container/Containerfile").read_text()):
        assert not re.search(r"STEPSCOPE_AGENT__(?!WEB__)", text)


def with_tls_and_token(text: str) -> str:
    """The manifests with the lines that are commented out."""
    text = text.replace("    insecure = true # remove when config_file is set\n", "")
    return re.sub(r"^( +)# (?=config_file|token_file|scheme:|- name:| {2,}\w+:)", r"\1", text, flags=re.MULTILINE)


def test_the_lines_for_tls_users_and_a_token_belong_together(tmp_path: Path, run: Run) -> None:
    text = with_tls_and_token((_FOLDER / "agent.yaml").read_text())
    (daemon_set,) = [one for one in yaml.safe_load_all(text) if one["kind"] == "DaemonSet"]
    assert not fields_lost_by(run, daemon_set, tmp_path)
    spec = daemon_set["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert {container[probe]["httpGet"]["scheme"] for probe in ("livenessProbe", "readinessProbe")} == {"HTTPS"}
    mounts = {one["name"]: one["mountPath"] for one in container["volumeMounts"]}
    assert sorted(mounts) == sorted(one["name"] for one in spec["volumes"])
    (settings,) = [one["data"]["agent.toml"] for one in yaml.safe_load_all(text) if one["kind"] == "ConfigMap"]
    web = tomllib.loads(settings)["web"]
    assert web == {
        "listen": "0.0.0.0:9455",
        "config_file": f"{mounts['web']}/web.yml",
        "token_file": f"{mounts['token']}/token",
    }


def test_what_pods_are_part_of_takes_one_verb_on_pods(objects: dict[str, Any], tmp_path: Path, run: Run) -> None:
    shutil.copy(_FOLDER / "pod-facts.yaml", tmp_path)
    (tmp_path / "kustomization.yaml").write_text("resources: [pod-facts.yaml]\n")
    done = run("kubectl", "kustomize", tmp_path)
    assert done.returncode == 0, done.stderr
    role, binding = yaml.safe_load_all(done.stdout)
    assert role["rules"] == [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}]
    account = objects["ServiceAccount"]["metadata"]
    assert binding["subjects"] == [{"kind": "ServiceAccount"} | {key: account[key] for key in ("name", "namespace")}]
    assert binding["roleRef"]["name"] == role["metadata"]["name"]


def test_a_nodes_condition_takes_two_verbs_and_reads_nothing(objects: dict[str, Any], tmp_path: Path, run: Run) -> None:
    shutil.copy(_FOLDER / "node-condition.yaml", tmp_path)
    (tmp_path / "kustomization.yaml").write_text("resources: [node-condition.yaml]\n")
    done = run("kubectl", "kustomize", tmp_path)
    assert done.returncode == 0, done.stderr
    by_kind = {one["kind"]: one for one in yaml.safe_load_all(done.stdout)}
    assert by_kind["ClusterRole"]["rules"] == [{"apiGroups": [""], "resources": ["nodes/status"], "verbs": ["patch"]}]
    assert by_kind["Role"]["rules"] == [{"apiGroups": [""], "resources": ["events"], "verbs": ["create"]}]
    assert by_kind["Role"]["metadata"]["namespace"] == EVENT_NAMESPACE
    account = objects["ServiceAccount"]["metadata"]
    for role in ("ClusterRole", "Role"):
        binding = by_kind[f"{role}Binding"]
        assert binding["subjects"] == [
            {"kind": "ServiceAccount"} | {key: account[key] for key in ("name", "namespace")}
        ]
        assert (binding["roleRef"]["kind"], binding["roleRef"]["name"]) == (role, by_kind[role]["metadata"]["name"])
    policy = by_kind["ValidatingAdmissionPolicy"]
    user = policy["spec"]["matchConditions"][0]["expression"]
    assert f'"system:serviceaccount:{account["namespace"]}:{account["name"]}"' in user
    assert f'"{KubernetesSettings().condition}"' in policy["spec"]["validations"][1]["expression"]
    assert by_kind["ValidatingAdmissionPolicyBinding"]["spec"]["policyName"] == policy["metadata"]["name"]
