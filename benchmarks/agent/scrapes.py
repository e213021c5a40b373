"""Cost of a whole agent, and its answer times, also while GPUs hang. On the fake driver of the tests.

    python -m benchmarks.agent.scrapes [--gpus 8] [--scrapes 300] [--seconds 20] [--hang-seconds 600] [--urgent]

`stepscope agent run` as a process: CPU and memory of it and of its reader processes without scrapes; then HTTP scrapes
as by Prometheus (OpenMetrics, gzip), while all GPUs answer, while one hangs, and while the driver hangs. On a busy
machine the wall time of a scrape depends on the load. Therefore the agent's CPU time is printed too, and every scrape
alternates with one of a server that only returns a page of the same size. With `--urgent` (needs root) both servers and
the client get priority over all other processes, as if the machine were idle.
"""

from __future__ import annotations

import argparse
import http.client
import http.server
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from statistics import quantiles

from benchmarks.agent.real_agent import started_agent
from benchmarks.measurement import children, cpu_seconds, resident_bytes
from tests.collectors.fake_nvml import profiles
from tests.collectors.fake_nvml.library import FakeNvml, build_fake_nvml

_SETTLE_SECONDS = 8.0
_PAUSE_SECONDS = 0.02
_BESIDE = b"0" * 13_000
"""As long as the agent's page with gzip."""
_ACCEPT = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"


def _scrape(port: int) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", "/metrics", headers={"Accept": _ACCEPT, "Accept-Encoding": "gzip"})
    size = len(connection.getresponse().read())
    connection.close()
    return size


class _Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(_BESIDE)))
        self.end_headers()
        self.wfile.write(_BESIDE)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def _serve_beside() -> None:
    """Reference server in its own process: prints its port and serves until its input ends."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Page)
    print(server.server_port, flush=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdin.read()


def _timed(port: int) -> tuple[float, int]:
    begin = time.perf_counter()
    size = _scrape(port)
    return 1e3 * (time.perf_counter() - begin), size


def _scrapes(name: str, pid: int, ports: tuple[int, int], count: int, seconds: float = 0.0) -> None:
    """Scrapes, spread over these seconds if there are any."""
    took, beside, cpu, size = [], [], cpu_seconds(pid), 0
    began = time.monotonic()
    for number in range(count):
        of_agent, size = _timed(ports[0])
        took.append(of_agent)
        beside.append(_timed(ports[1])[0])
        time.sleep(max(_PAUSE_SECONDS, began + seconds * (number + 1) / count - time.monotonic()))
    cuts, others = (quantiles(times, n=100, method="inclusive") for times in (took, beside))
    each = 1e3 * (cpu_seconds(pid) - cpu) / count
    print(
        f"{name}: p50 {cuts[49]:.1f} ms, p99 {cuts[98]:.1f} ms, longest {max(took):.0f} ms, {size / 1000:.0f} kB, "
        f"CPU of the agent {each:.1f} ms a scrape in {time.monotonic() - began:.0f} s; nothing but HTTP beside it: "
        f"p50 {others[49]:.1f} ms, p99 {others[98]:.1f} ms; load {os.getloadavg()[0]:.0f}",
        flush=True,
    )


def _unasked(pid: int, seconds: float) -> None:
    family = [pid, *children(pid)]
    before = {one: cpu_seconds(one) for one in family}
    begin = time.monotonic()
    time.sleep(seconds)
    elapsed = time.monotonic() - begin
    shares = [(cpu_seconds(one) - before[one]) / elapsed for one in family]
    rss_mib = sum(map(resident_bytes, family)) / 1024**2
    print(
        f"without scrapes: CPU of one core {shares[0]:.2%} and {sum(shares[1:]):.2%} for reading; {rss_mib:.0f} MiB RSS"
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--scrapes", type=int, default=300)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--hang-seconds", type=float, default=0.0)
    parser.add_argument("--urgent", action="store_true")
    parser.add_argument("--beside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.beside:
        _serve_beside()
        return
    if options.urgent:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    with tempfile.TemporaryDirectory() as folder:
        machine = FakeNvml(build_fake_nvml(Path(folder) / "library"), Path(folder) / "nvml.conf")
        for index in range(options.gpus):
            machine.add(profiles.h100(index))
        machine.write()
        environment = machine.environment() | {"STEPSCOPE_AGENT__KINETO__ENABLED": "false"}
        beside = [sys.executable, "-m", "benchmarks.agent.scrapes", "--beside"]
        with (
            subprocess.Popen(beside, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other,
            started_agent(Path(folder), "--socket", f"{folder}/agent.sock", environment=environment) as agent,
        ):
            assert other.stdin is not None
            assert other.stdout is not None
            ports = agent.port, int(other.stdout.readline())
            time.sleep(_SETTLE_SECONDS)
            _unasked(agent.pid, options.seconds)
            _scrapes("all answer", agent.pid, ports, options.scrapes)
            machine.set(options.gpus - 1, hang="any")
            machine.write()
            time.sleep(_SETTLE_SECONDS)
            _scrapes("one GPU hangs", agent.pid, ports, options.scrapes)
            machine.values["hang"] = "any"
            machine.write()
            time.sleep(_SETTLE_SECONDS)
            _scrapes("the driver hangs", agent.pid, ports, options.scrapes, options.hang_seconds)
            other.stdin.close()


if __name__ == "__main__":
    main()
