"""Helm chart: it makes the objects of deploy/kubernetes, and refuses values that it does not know."""

from __future__ import annotations

import copy
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from stepscope import __version__
from stepscope.agent.config.configuration import load_configuration
from stepscope.agent.service import Agent
from tests.deploy.conftest import DEPLOY, Run
from tests.deploy.test_kubernetes import fields_lost_by, with_tls_and_token

_CHART = DEPLOY / "helm/stepscope-agent"
_PLAIN = DEPLOY / "kubernetes"
_IMAGE = "image.repository=registry.example/stepscope-agent"
_OF_HELM = {"app.kubernetes.io/version", "app.kubernetes.io/managed-by", "helm.sh/chart", "checksum/config"}

Render = Callable[..., dict[tuple[str, str], Any]]


@pytest.fixture
def render(run: Run) -> Render:
    """Renders the chart with these values; its objects by kind and name."""

    def call(*values: str, release: str = "stepscope-agent") -> dict[tuple[str, str], Any]:
        options = [word for one in (_IMAGE, *values) for word in ("--set", one)]
        done = run("helm", "template", release, _CHART, "--namespace", "stepscope", *options)
        assert done.returncode == 0, done.stderr
        return {(one["kind"], one["metadata"]["name"]): one for one in yaml.safe_load_all(done.stdout) if one}

    return call


def _comparable(documents: list[Any]) -> dict[tuple[str, str], Any]:
    """Objects without what only one of the two has: Helm's own labels, and comments in the settings."""
    found = {}
    for document in copy.deepcopy(documents):
        metadata = [document["metadata"]]
        if document["kind"] == "DaemonSet":
            metadata.append(document["spec"]["template"]["metadata"])
        for one in metadata:
            for part in ("labels", "annotations"):
                one[part] = {name: text for name, text in one.get(part, {}).items() if name not in _OF_HELM}
        if document["kind"] not in ("DaemonSet", "Service", "Namespace"):
            del metadata[0]["labels"]
        if document["kind"] == "ConfigMap":
            document["data"]["agent.toml"] = tomllib.loads(document["data"]["agent.toml"])
        found[document["kind"], metadata[0]["name"]] = document
    return found


def test_helm_finds_no_fault(run: Run) -> None:
    done = run("helm", "lint", "--strict", _CHART, "--set", _IMAGE)
    assert done.returncode == 0, done.stdout
    assert "0 chart(s) failed" in done.stdout


def test_it_makes_the_objects_of_the_plain_manifests(render: Render) -> None:
    rendered = render("namespace.create=true", "serviceMonitor.enabled=true")
    files = ("agent.yaml", "service-monitor.yaml")
    plain = [one for name in files for one in yaml.safe_load_all((_PLAIN / name).read_text())]
    assert _comparable(list(rendered.values())) == _comparable(plain)
    assert set(render()) == set(rendered) - {("Namespace", "stepscope"), ("ServiceMonitor", "stepscope-agent")}


def test_tls_users_and_a_token_are_the_lines_that_are_commented_out(render: Render) -> None:
    rendered = render(
        "namespace.create=true", "tls.secretName=stepscope-agent-web", "token.secretName=stepscope-agent-token"
    )
    plain = list(yaml.safe_load_all(with_tls_and_token((_PLAIN / "agent.yaml").read_text())))
    assert _comparable(list(rendered.values())) == _comparable(plain)
    monitor = render("tls.secretName=web", "serviceMonitor.enabled=true")["ServiceMonitor", "stepscope-agent"]
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint["tlsConfig"]["serverName"] == "stepscope-agent.stepscope.svc"
    assert endpoint["basicAuth"]["password"] == {"name": "stepscope-agent-scrape", "key": "password"}


def test_the_role_to_list_pods(render: Render) -> None:
    rendered = render("podFacts.enabled=true")
    plain = list(yaml.safe_load_all((_PLAIN / "pod-facts.yaml").read_text()))
    ours = [one for (kind, _), one in rendered.items() if kind.startswith("ClusterRole")]
    for one in ours:
        del one["metadata"]["labels"]
    assert sorted(ours, key=lambda one: str(one["kind"])) == sorted(plain, key=lambda one: str(one["kind"]))
    spec = rendered["DaemonSet", "stepscope-agent"]["spec"]["template"]["spec"]
    assert spec["automountServiceAccountToken"] is True


def test_the_role_for_a_nodes_condition(render: Render) -> None:
    rendered = render("nodeCondition.report=dry_run")
    plain = list(yaml.safe_load_all((_PLAIN / "node-condition.yaml").read_text()))
    ours = {key: one for key, one in rendered.items() if key not in render()}
    assert _comparable(list(ours.values())) == _comparable(plain)
    assert rendered["DaemonSet", "stepscope-agent"]["spec"]["template"]["spec"]["automountServiceAccountToken"] is True
    settings = tomllib.loads(rendered["ConfigMap", "stepscope-agent"]["data"]["agent.toml"])
    assert settings["kubernetes"] == {"report": "dry_run"}
    other = render("nodeCondition.report=on", "config.kubernetes.condition=GpuSick", release="gpu")
    policy = other["ValidatingAdmissionPolicy", "gpu-stepscope-agent-own-node"]["spec"]
    assert policy["validations"][1]["expression"].count('"GpuSick"') == 2
    assert "system:serviceaccount:stepscope:gpu-stepscope-agent" in policy["matchConditions"][0]["expression"]
    without = render("nodeCondition.report=on", "nodeCondition.admissionPolicy=false")
    assert not [kind for kind, _ in without if kind.startswith("Validating")]


def test_all_values_give_objects_that_kubectl_knows(render: Render, run: Run, tmp_path: Path) -> None:
    assert ("DaemonSet", "gpu-stepscope-agent") in render(release="gpu")
    values = {
        "image": {"digest": "sha256:" + "0" * 64, "pullSecrets": [{"name": "registry"}]},
        "port": 9500,
        "config": {"health": {"expected_gpus": 8, "busy_ratio": 0.5}, "exporter": {"metrics": ["default", "a*"]}},
        "dcgmExporter": "http://$(HOST_IP):9400/metrics",
        "tls": {"secretName": "web"},
        "token": {"secretName": "token"},
        "affinity": {"nodeAffinity": {}},
        "extraCapabilities": ["SYS_ADMIN"],
        "extraEnv": [{"name": "TZ", "value": "UTC"}],
        "podAnnotations": {"a": "b"},
        "podLabels": {"team": "infra"},
        "runtimeClassName": None,
    }
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump(values))
    done = run("helm", "template", "stepscope-agent", _CHART, "-n", "gpu", "--set", _IMAGE, "-f", file)
    assert done.returncode == 0, done.stderr
    objects = {one["kind"]: one for one in yaml.safe_load_all(done.stdout)}
    assert not fields_lost_by(run, objects["DaemonSet"], tmp_path)
    spec = objects["DaemonSet"]["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert container["image"] == "registry.example/stepscope-agent@sha256:" + "0" * 64
    assert "runtimeClassName" not in spec
    environment = [one["name"] for one in container["env"]]
    assert environment == ["NODE_NAME", "HOST_IP", "STEPSCOPE_AGENT__DCGM__EXPORTER", "TZ"]
    assert objects["Service"]["spec"]["ports"][0]["port"] == container["ports"][0]["containerPort"] == 9500
    settings = tomllib.loads(objects["ConfigMap"]["data"]["agent.toml"])
    assert settings["health"] == {"expected_gpus": 8, "busy_ratio": 0.5}
    assert settings["exporter"] == {"metrics": ["default", "a*"]}
    assert settings["web"]["listen"] == "0.0.0.0:9500"


def test_the_agent_takes_the_settings(render: Render, tmp_path: Path) -> None:
    file = tmp_path / "agent.toml"
    rendered = render("config.health.expected_gpus=8", "config.jobs.idle_seconds=60")
    file.write_text(rendered["ConfigMap", "stepscope-agent"]["data"]["agent.toml"])
    configuration = load_configuration(file)
    assert configuration.settings.health.expected_gpus == 8
    assert Agent(configuration).address.port == 9455


@pytest.mark.parametrize(
    ("value", "line"),
    [
        ("prot=1", "'prot' not allowed"),
        ("config.web.listen=1.2.3.4:1", "/config/web/listen"),
        ("image.repository=", "image.repository is needed: the name under which you pushed the image"),
        ("networkPolicy.namespaces=monitoring", "/networkPolicy/namespaces"),
    ],
)
def test_values_that_cannot_be_used_are_refused(value: str, line: str, run: Run) -> None:
    done = run("helm", "template", "stepscope-agent", _CHART, "--set", _IMAGE, "--set", value)
    assert done.returncode != 0
    assert line in done.stderr


def test_its_version_is_the_program_s() -> None:
    chart = yaml.safe_load((_CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)
    assert f"image: registry.example/stepscope-agent:{__version__} " in (_PLAIN / "agent.yaml").read_text()
