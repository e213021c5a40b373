"""Series and memory of a Prometheus that scrapes many nodes with the rules of deploy/prometheus.

    python -m benchmarks.agent.prometheus_nodes [--nodes 125] [--gpus 8] [--metrics default] [--minutes 3] [--out FILE]

The page of a real agent on the fake driver of the tests is recorded once. A server gives it to Prometheus once for each
node, with the GPUs' UUIDs of that node; a file of targets has labels for cluster, rack and instance. After some minutes
of scrapes every 15 s: series in memory, resident memory, and how long the rules take.
"""

from __future__ import annotations

import argparse
import http.server
import json
import os
import shutil
import subprocess
import tempfile
import threading
import time
import urllib.parse
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.agent.real_agent import started_agent
from benchmarks.measurement import resident_bytes
from tests.collectors.fake_nvml import profiles
from tests.collectors.fake_nvml.library import FakeNvml, build_fake_nvml

_RULES = Path(__file__).parents[2] / "deploy/prometheus"
_NODES_OF_A_RACK = 16
_SETTLE_SECONDS = 20.0
_START_SECONDS = 30.0


def _recorded_page(num_gpus: int, metrics: str, folder: Path) -> str:
    machine = FakeNvml(build_fake_nvml(folder / "library"), folder / "nvml.conf")
    for index in range(num_gpus):
        machine.add(profiles.h100(index))
    machine.write()
    settings = {"STEPSCOPE_AGENT__EXPORTER__METRICS": metrics, "STEPSCOPE_AGENT__KINETO__ENABLED": "false"}
    with started_agent(folder, environment={**machine.environment(), **settings}) as agent:
        time.sleep(_SETTLE_SECONDS)  # the fleet class takes ten seconds of samples
        with urllib.request.urlopen(f"http://127.0.0.1:{agent.port}/metrics", timeout=30) as reply:
            page: str = reply.read().decode()
    return page


class _Pages(http.server.BaseHTTPRequestHandler):
    """The recorded page; the query names the node."""

    page = ""

    def do_GET(self) -> None:
        node = int(urllib.parse.parse_qs(urllib.parse.urlparse(self.path).query)["node"][0])
        body = self.page.replace('uuid="GPU-', f'uuid="GPU-{node:04d}-').encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def _configuration(folder: Path, port: int, num_nodes: int) -> Path:
    targets = [
        {
            "targets": [f"127.0.0.1:{port}"],
            "labels": {
                "__param_node": str(node),
                "instance": f"node{node:04d}",
                "cluster": "c1",
                "rack": f"r{node // _NODES_OF_A_RACK}",
            },
        }
        for node in range(num_nodes)
    ]
    (folder / "targets.json").write_text(json.dumps(targets))
    document = {
        "global": {"scrape_interval": "15s", "scrape_timeout": "10s", "evaluation_interval": "15s"},
        "rule_files": [str(_RULES / name) for name in ("rules.yml", "recording_rules.yml")],
        "scrape_configs": [{"job_name": "stepscope", "file_sd_configs": [{"files": [str(folder / "targets.json")]}]}],
    }
    file = folder / "prometheus.yml"
    file.write_text(json.dumps(document))  # JSON is YAML
    return file


def _ask(port: int, what: str, **parameters: str) -> Any:
    url = f"http://127.0.0.1:{port}/api/v1/{what}?{urllib.parse.urlencode(parameters)}"
    with urllib.request.urlopen(url, timeout=30) as reply:
        return json.load(reply)["data"]


def _value(port: int, query: str) -> float:
    result = _ask(port, "query", query=query)["result"]
    return float(result[0]["value"][1]) if result else 0.0


def _measured(port: int, pid: int) -> dict[str, float]:
    groups = _ask(port, "rules")["groups"]
    failed = [rule["name"] for group in groups for rule in group["rules"] if rule.get("lastError")]
    if failed:
        raise SystemExit(f"these rules fail: {', '.join(failed)}")
    return {
        "nodes_up": _value(port, 'sum(up{job="stepscope"})'),
        "series": float(_ask(port, "status/tsdb")["headStats"]["numSeries"]),
        "series_of_a_node": _value(port, 'avg(scrape_samples_scraped{job="stepscope"})'),
        "recorded_series": _value(port, 'count({__name__=~".+:.+:.+"})'),
        "resident_mib": resident_bytes(pid) / 1024**2,
        "slowest_rules_seconds": max(group["evaluationTime"] for group in groups),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=125)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--metrics", default="default")
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    prometheus = shutil.which("prometheus")
    if prometheus is None:
        raise SystemExit("prometheus is not installed")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _Pages.page = _recorded_page(options.gpus, options.metrics, folder)
        pages = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Pages)
        other = http.server.HTTPServer(("127.0.0.1", 0), _Pages)  # a free port for Prometheus
        port = other.server_port
        other.server_close()
        threading.Thread(target=pages.serve_forever, daemon=True).start()
        command = [
            prometheus,
            f"--config.file={_configuration(folder, pages.server_port, options.nodes)}",
            f"--web.listen-address=127.0.0.1:{port}",
            f"--storage.tsdb.path={folder / 'data'}",
            "--log.level=error",
        ]
        with subprocess.Popen(command, env=os.environ) as process:
            try:
                end = time.monotonic() + _START_SECONDS
                while time.monotonic() < end:
                    with suppress(OSError):
                        _ask(port, "status/buildinfo")
                        break
                    time.sleep(0.2)
                time.sleep(60.0 * options.minutes)
                found = _measured(port, process.pid)
            finally:
                process.terminate()
                process.wait(30)
        pages.shutdown()
    for key, value in found.items():
        print(f"{key}: {value:,.2f}")
    if options.out:
        options.out.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
