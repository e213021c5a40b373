"""A real Prometheus scrapes a real agent over TLS with a password, also while a GPU hangs.

The agent reads the fake driver, and reports its node while a GPU hangs. All queries of the rules and the board in
deploy/ run against it.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import bcrypt
import pytest
import yaml

from stepscope.workflow.nodes.agent_client import agent_client
from stepscope.workflow.nodes.status import status_of
from tests.agent.web.certificates import self_signed
from tests.collectors.fake_nvml import profiles
from tests.collectors.fake_nvml.library import FakeNvml, build_fake_nvml
from tests.deploy.conftest import DEPLOY
from tests.deploy.test_grafana_board import queries, series_of_variables
from tests.workflow.nodes.made_nodes import asked

_PATIENCE = 60.0


@pytest.fixture
def machine(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> FakeNvml:
    """A machine with two GPUs."""
    fake = FakeNvml(build_fake_nvml(tmp_path_factory.getbasetemp() / "fake_nvml"), tmp_path / "nvml.conf")
    for index in range(2):
        fake.add(profiles.h100(index))
    fake.write()
    return fake


@contextmanager
def _process(command: list[str], environment: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


class _Prometheus:
    def __init__(self, port: int) -> None:
        self._base = f"http://127.0.0.1:{port}/api/v1/"

    def ask(self, what: str, **parameters: str) -> Any:
        url = f"{self._base}{what}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=20) as answer:
            return json.load(answer)["data"]

    def query(self, query: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.ask("query", query=query)["result"]
        return found

    def until(self, query: str, is_so: Callable[[list[dict[str, Any]]], bool]) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        end = time.monotonic() + _PATIENCE
        while time.monotonic() < end:
            try:
                found = self.query(query)
            except OSError:  # it has only begun
                pass
            else:
                if is_so(found):
                    return found
            time.sleep(0.2)
        raise AssertionError(f"{query} never became so: {found}")

    def until_more_have_values(self, queries: Sequence[str], least: int) -> None:
        """Each is understood, and more than `least` have values once every group of rules has been evaluated."""
        with_values: list[str] = []
        end = time.monotonic() + _PATIENCE
        while time.monotonic() < end:
            with_values = [query for query in queries if self.query(query)]
            if len(with_values) > least:
                return
            time.sleep(0.2)
        raise AssertionError(
            f"only {len(with_values)} of {len(queries)} have values, not: {set(queries) - {*with_values}}"
        )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _web_config(folder: Path) -> Path:
    self_signed(folder, "server")
    file = folder / "web.yml"
    users = {"prometheus": bcrypt.hashpw(b"secret", bcrypt.gensalt(6)).decode()}
    tls = {"cert_file": "server.crt", "key_file": "server.key"}
    file.write_text(yaml.safe_dump({"tls_server_config": tls, "basic_auth_users": users}))
    return file


def _scrape_config(folder: Path, agent: str) -> Path:
    access = {
        "tls_config": {"ca_file": str(folder / "server.crt")},
        "basic_auth": {"username": "prometheus", "password": "secret"},
    }
    places = [{"target_label": name, "replacement": f"{name}-1"} for name in ("cluster", "rack")]
    targets = [{"url": f"{agent}/sd", **access}]
    job = {"job_name": "stepscope", **access, "http_sd_configs": targets, "relabel_configs": places}
    document = {
        "global": {"scrape_interval": "2s", "scrape_timeout": "2s", "evaluation_interval": "1s"},
        "rule_files": [str(DEPLOY / f"prometheus/{name}.yml") for name in ("rules", "recording_rules")],
        "scrape_configs": [job],
    }
    file = folder / "prometheus.yml"
    file.write_text(yaml.safe_dump(document))
    return file


def test_a_real_prometheus_and_systemd_s_socket(machine: FakeNvml, tmp_path: Path) -> None:
    prometheus = shutil.which("prometheus")
    if prometheus is None:
        pytest.skip("prometheus is not installed")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(_PATIENCE)
        told = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "4000000"}
        settings = {"STEPSCOPE_AGENT__WEB__CONFIG_FILE": str(_web_config(tmp_path))}
        settings |= {"STEPSCOPE_AGENT__STATE__DIRECTORY": str(tmp_path), "STEPSCOPE_AGENT__TRAINING__SOCKET": ""}
        command = [sys.executable, "-m", "stepscope", "agent", "run", "--listen", "127.0.0.1:0"]
        with _process(command, {**machine.environment(), **settings, **told}) as agent:
            assert agent.stderr is not None
            line = next(line for line in agent.stderr if line.endswith("/metrics serves the metrics\n"))
            url = line.split()[2].removesuffix("/metrics")
            assert url.startswith("https://")
            assert systemd.recv(1000).startswith(b"READY=1\nSTATUS=reads 2 GPUs and ")
            port = _free_port()
            command = [prometheus, f"--config.file={_scrape_config(tmp_path, url)}", "--log.level=error"]
            command += [f"--web.listen-address=127.0.0.1:{port}", f"--storage.tsdb.path={tmp_path / 'data'}"]
            with _process(command, dict(os.environ)) as server:
                _ask_everything(_Prometheus(port), machine)
                client = agent_client(url.replace("//", "//prometheus:secret@"), ca_file=str(tmp_path / "server.crt"))
                findings = status_of([asked(client)]).findings
                assert ("1", "gpu_down") in {(finding.gpu, finding.code) for finding in findings}
                server.send_signal(signal.SIGTERM)
                server.wait(_PATIENCE)
            assert systemd.recv(1000) == b"WATCHDOG=1"
            agent.send_signal(signal.SIGTERM)
            assert agent.wait(_PATIENCE) == 0
        while (last := systemd.recv(1000)) == b"WATCHDOG=1":
            pass
        assert last == b"STOPPING=1"


def _ask_everything(prometheus: _Prometheus, machine: FakeNvml) -> None:
    found = prometheus.until("stepscope_gpu_power_watts", lambda found: len(found) == 2)
    assert {one["metric"]["gpu"] for one in found} == {"0", "1"}
    assert all(one["metric"]["job"] == "stepscope" for one in found)
    # PromQL over what the catalogue promises: a counter, a ratio, a join with what the GPU is
    prometheus.until("rate(stepscope_gpu_energy_joules_total[30s])", lambda found: len(found) == 2)
    (share,) = prometheus.query("avg(stepscope_gpu_memory_used_bytes / stepscope_gpu_memory_total_bytes)")
    assert 0 <= float(share["value"][1]) <= 1
    named = prometheus.query("stepscope_gpu_up * on (instance, uuid) group_left (name) stepscope_gpu_info")
    assert {one["metric"]["name"] for one in named} == {"NVIDIA H100 80GB HBM3"}

    prometheus.until("cluster:stepscope_gpu_power_watts:sum", lambda found: len(found) == 1)
    for board, least in (("gpus", 15), ("fleet", 25)):
        prometheus.until_more_have_values(queries(board), least)
    labels = {label: selector for selector, label in series_of_variables("fleet")}
    for name in ("cluster", "rack"):
        assert {one["metric"][name] for one in prometheus.query(labels[name])} == {f"{name}-1"}
    assert len(prometheus.query(f"count by (instance) ({labels['instance']})")) == 1  # also without any job
    (worst,) = [query for query in queries("fleet") if query.startswith("max by (instance) (")]
    prometheus.until(worst, lambda found: [one["value"][1] for one in found] == ["0"])
    machine.set(1, hang="any")
    machine.write()
    (silent,) = prometheus.until("stepscope_gpu_up == 0", lambda found: bool(found))
    assert (silent["metric"]["gpu"], silent["metric"]["reason"]) == ("1", "timed_out")
    prometheus.until('up{job="stepscope"} == 1', lambda found: bool(found))
    (unknown,) = prometheus.until('ALERTS{alertname="StepscopeHealthUnknown"}', lambda found: bool(found))
    assert (unknown["metric"]["gpu"], unknown["metric"]["alertstate"]) == ("1", "pending")
    rules = [rule for group in prometheus.ask("rules")["groups"] for rule in group["rules"]]
    assert len(rules) > 15
    assert {rule["name"]: rule.get("lastError") for rule in rules if rule.get("lastError")} == {}
