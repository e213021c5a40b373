"""Target sources: files and URLs of Prometheus' service discovery, Slurm, Kubernetes; as an agent lists them again."""

from __future__ import annotations

import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest

from stepscope.agent.web.endpoints import api_routes
from stepscope.agent.web.routes import Reply, Request, Route, json_reply
from stepscope.agent.web.server import AgentServer, ListenAddress
from stepscope.cli import main
from stepscope.core.errors import DataError, StepscopeError, UnreachableError, UsageError
from stepscope.workflow.nodes import kubernetes_targets as kubernetes
from stepscope.workflow.nodes.targets import (
    Target,
    TargetList,
    discovery_groups,
    slurm_nodes,
    targets_of,
    targets_of_all,
)
from tests.collectors.jobs.kubernetes import fake_api
from tests.workflow.nodes.made_nodes import device, event, node, served

_GROUPS = [
    {"targets": ["n1:9455", "n2"], "labels": {"rack": "r7", "__scheme__": "https"}},
    {"targets": ["http://n3:9000"]},
    {"targets": ["[fd00::1]:9455"], "labels": None},
]


def _addresses(source: str) -> list[str]:
    return [str(target.client()) for target in targets_of(source)]


def test_files_of_prometheus_discovery(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps(_GROUPS))
    (tmp_path / "b.yml").write_text("- targets: ['n4:9455']\n  labels: {rack: 8}\n- targets: [n1:9455]\n")
    (tmp_path / "c.txt").write_text("# all\nn5\nhttps://n6:1  # a\n\n")
    assert _addresses(f"{tmp_path}/a.json") == [
        "https://n1:9455",
        "https://n2:9455",
        "http://n3:9000",
        "http://[fd00::1]:9455",
    ]
    assert [target.address for target in targets_of(f"{tmp_path}/*.*")] == [
        *("n1:9455", "n2", "http://n3:9000", "[fd00::1]:9455"),  # n1 is there once
        *("n4:9455", "n5", "https://n6:1"),
    ]
    (first, *_) = targets_of(f"{tmp_path}/b.yml")
    assert first.client().labels == (("rack", "8"),)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.json", "{"),
        ("a.json", "{}"),
        ("a.json", '[{"targets": "n1"}]'),
        ("a.json", '[{"targets": [1]}]'),
        ("a.json", '[{"targets": ["a"], "labels": []}]'),
        ("a.json", "[" * 100_000),
        ("a.yml", "a: ["),
        ("a.yml", "just text"),
    ],
)
def test_files_that_are_something_else(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    if text == '[{"targets": ["a"], "labels": []}]':
        assert _addresses(f"{tmp_path}/{name}") == ["http://a:9455"]  # empty in whatever form
        return
    with pytest.raises(DataError) as raised:
        targets_of(f"{tmp_path}/{name}")
    assert name in str(raised.value)


def test_files_that_are_not_there(tmp_path: Path) -> None:
    for source in (f"{tmp_path}/x.json", f"{tmp_path}/*.yml", str(tmp_path)):
        with pytest.raises(DataError):
            targets_of(source)


def test_a_url_of_prometheus_discovery() -> None:
    def answer(request: Request) -> Reply:
        asked.append((request.query, request.headers.get("Authorization", "")))
        return json_reply(HTTPStatus.OK, _GROUPS)

    asked: list[tuple[str, str]] = []
    with AgentServer(ListenAddress("127.0.0.1", 0), [Route("GET", "/nodes", answer)]) as server:
        url = server.url.replace("//", "//me:word@")
        assert len(targets_of(f"{url}/nodes?team=a")) == 4
        assert asked == [("team=a", "Basic bWU6d29yZA==")]
        with pytest.raises(UnreachableError, match="HTTP status 404") as raised:
            targets_of(f"{url}/other")
        assert "word" not in str(raised.value)
    with pytest.raises(UnreachableError):
        targets_of(server.url)


def test_an_agent_lists_itself_and_can_be_a_source() -> None:
    with served(node(device(0))) as url:
        (target,) = targets_of(f"{url}/sd")
        assert str(target.client()) == url


def test_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "sinfo"
    script.write_text('#!/bin/sh\necho "$*" >> "$0.asked"\ncat "$0.lines"\n')
    lines = ("gpu1|idle|batch", "gpu1|idle|all", "gpu2|mix#|batch", "gpu3|idle~|batch", "gpu4|down*|batch", "c9|futr|b")
    (tmp_path / "sinfo.lines").write_text("\n".join(lines))
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert [target.address for target in targets_of("slurm:")] == ["gpu1", "gpu2", "gpu4"]
    found = targets_of("slurm:batch:9456")
    assert [target.address for target in found] == ["gpu1:9456", "gpu2:9456", "gpu4:9456"]
    assert found[0].labels == (("__meta_slurm_partition", "batch,all"), ("__meta_slurm_state", "idle"))
    assert dict(found[2].labels)["__meta_slurm_state"] == "down"
    assert (tmp_path / "sinfo.asked").read_text().splitlines()[1].endswith("--partition=batch")
    script.write_text('#!/bin/sh\necho "slurm_load_partitions: no controller" >&2\nexit 1\n')
    with pytest.raises(UnreachableError, match="no controller"):
        targets_of("slurm:")
    script.write_text("#!/bin/sh\nsleep 20\n")
    with pytest.raises(UnreachableError, match="does not answer"):
        targets_of("slurm:", seconds=0.2)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UnreachableError, match="no sinfo here"):
        targets_of("slurm:")


def test_lines_of_sinfo_that_are_something_else() -> None:
    assert slurm_nodes("\nx\n|idle|b\na|b|c|d\n") == {}


def test_node_lists() -> None:
    assert _addresses("nodes:gpu[1-2],login") == ["http://gpu1:9455", "http://gpu2:9455", "http://login:9455"]
    assert _addresses("nodes:gpu[1-2]:9456") == ["http://gpu1:9456", "http://gpu2:9456"]


@pytest.fixture
def api(tmp_path: Path) -> Iterator[fake_api.Api]:
    with fake_api.running(tmp_path) as running:
        yield running


def _slice(*names: str, port_name: str = "metrics") -> dict[str, Any]:
    endpoints = [
        {
            "addresses": [f"10.0.0.{number}"],
            "nodeName": f"node-{name}",
            "zone": "z1",
            "targetRef": {"kind": "Pod", "name": f"agent-{name}"},
            "conditions": {"ready": number % 2 == 0},
        }
        for number, name in enumerate(names, 1)
    ]
    ports = [{"name": "other", "port": 1}, {"name": port_name, "port": 9455}]
    return {"addressType": "IPv4", "endpoints": endpoints, "ports": ports}


def _of_cluster(api: fake_api.Api, text: str = "stepscope/stepscope-agent") -> kubernetes.Found:
    environment = {"KUBERNETES_SERVICE_HOST": api.server.host, "KUBERNETES_SERVICE_PORT": str(api.server.port)}
    return kubernetes.kubernetes_targets(text, seconds=5.0, environment=environment, account=api.server.account)


def test_endpoints_of_a_service(api: fake_api.Api) -> None:
    api.page = 1
    api.slices = [_slice("a", "b"), {**_slice("c"), "endpoints": [{"addresses": ["fd00::7"]}]}]
    found = dict(_of_cluster(api))
    assert list(found) == ["10.0.0.1:9455", "10.0.0.2:9455", "[fd00::7]:9455"]  # also those that are not ready
    labels = dict(found["10.0.0.1:9455"])
    assert labels["__meta_kubernetes_node"] == "node-a"
    assert labels["__meta_kubernetes_pod"] == "agent-a"
    client = Target("10.0.0.1:9455", tuple(labels.items())).client()
    assert client.server_name == "stepscope-agent.stepscope.svc"
    assert [one["labelSelector"] for one in api.asked] == [["kubernetes.io/service-name=stepscope-agent"]] * 2
    assert dict(_of_cluster(api, "stepscope/stepscope-agent:9000")).keys() >= {"10.0.0.1:9000"}


def test_the_name_server_where_the_api_refuses(api: fake_api.Api, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def addresses(host: str) -> list[str]:
        asked.append(host)
        return ["10.0.0.1", "10.0.0.2"]

    monkeypatch.setattr(kubernetes, "_look_up", addresses)
    api.status = 403
    assert [address for address, _ in _of_cluster(api)] == ["10.0.0.1:9455", "10.0.0.2:9455"]
    assert asked == ["stepscope-agent.stepscope.svc"]
    outside = kubernetes.kubernetes_targets("a/b:1", seconds=1.0, environment={}, account=Path("/nowhere"))
    assert [address for address, _ in outside] == ["10.0.0.1:1", "10.0.0.2:1"]

    def nobody(_: str) -> list[str]:
        raise OSError(-2, "Name or service not known")

    monkeypatch.setattr(kubernetes, "_look_up", nobody)
    with pytest.raises(UnreachableError, match=r"may not list endpointslices.*Name or service not known"):
        _of_cluster(api)


@pytest.mark.parametrize("document", [{}, {"endpoints": [None, {}, {"addresses": []}]}, {"ports": [None]}])
def test_slices_without_addresses(document: dict[str, Any]) -> None:
    assert list(kubernetes.endpoints_of(document, "s")) == []


@pytest.mark.parametrize("source", ["k8s:", "k8s:a", "k8s:a/b/c", "k8s:A/b", "nodes:", "nodes:a[", "http://"])
def test_sources_that_are_none(source: str) -> None:
    with pytest.raises(StepscopeError) as raised:
        targets_of(source)
    assert raised.value.exit_code in (UsageError.exit_code, UnreachableError.exit_code)


@pytest.mark.parametrize("source", ["", " ", "file_sd:/etc/nodes.yml", "ftp://host/nodes", "node7:9455"])
def test_a_kind_of_source_that_is_none_is_wrong_usage(source: str) -> None:
    with pytest.raises(UsageError, match="is not a source of targets; give a file, a URL, or one of slurm:"):
        targets_of(source)


def test_a_file_may_be_named_like_a_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rack:7").write_text("n1\n")
    assert [target.address for target in targets_of("rack:7")] == ["n1"]


def test_groups_of_discovery_are_read_again(tmp_path: Path) -> None:
    targets = (Target("n1", (("rack", "a"),)), Target("https://n2:1"), Target("n3:5", (("rack", "a"),)))
    groups = discovery_groups(targets)
    assert groups == [
        {"targets": ["n1:9455", "n3:5"], "labels": {"rack": "a"}},
        {"targets": ["n2:1"], "labels": {"__scheme__": "https"}},
    ]
    (tmp_path / "sd.json").write_text(json.dumps(groups))
    again = {str(target.client()) for target in targets_of(f"{tmp_path}/sd.json")}
    assert again == {str(target.client()) for target in targets}


def test_an_agent_lists_the_targets_of_its_sources_and_keeps_them_while_a_source_fails(tmp_path: Path) -> None:
    file = tmp_path / "nodes.json"

    def asked() -> tuple[int, Any]:
        return _get(f"{server.url}/sd")

    with TargetList([str(file)], interval=0.05) as targets:
        routes = api_routes(lambda _: node(), scheme="http", targets=targets.groups)
        with AgentServer(ListenAddress("127.0.0.1", 0), routes) as server:
            assert asked()[0] == 503  # Prometheus keeps what it has
            file.write_text(json.dumps(_GROUPS))
            end = time.monotonic() + 20
            while asked()[0] == 503 and time.monotonic() < end:
                time.sleep(0.02)
            file.write_text("{")
            time.sleep(0.2)
            status, groups = asked()
    assert status == 200
    assert sorted(address for group in groups for address in group["targets"]) == [
        *("[fd00::1]:9455", "n1:9455", "n2:9455", "n3:9000"),
    ]


def _get(url: str) -> tuple[int, Any]:
    try:
        with urllib.request.urlopen(url, timeout=20) as response:
            return response.status, json.loads(response.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, None


def test_commands_ask_the_targets_of_sources(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "nodes.json"
    with served(node(device(0), events=(event(uuid="GPU-0"),))) as url:
        file.write_text(json.dumps([{"targets": [url.partition("://")[2]], "labels": {"rack": "r7"}}]))
        with pytest.raises(SystemExit) as ended:
            main(["status", "--targets", str(file), "--by", "rack"])
    assert ended.value.code == 1
    assert capsys.readouterr().out.splitlines()[1].startswith("critical: r7: n1 GPU 0 (GPU-0): no spare rows")
    file.write_text("[]")
    with pytest.raises(SystemExit) as ended:
        main(["status", "--targets", str(file)])
    assert ended.value.code == 2
    assert targets_of_all([str(file), "nodes:a,a"]) == (Target("a"),)
