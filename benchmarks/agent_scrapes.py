"""What does a whole agent cost, and how fast does it answer, also while GPUs hang? On the fake driver of the tests.

    python -m benchmarks.agent_scrapes [--gpus 8] [--scrapes 300] [--seconds 20]

`stepscope agent run` as a process: CPU and memory of it and of the processes that read GPUs, unasked; then scrapes over
HTTP as Prometheus asks (OpenMetrics, gzip), while all GPUs answer, while one hangs, while the driver hangs. Beside the
wall time of a scrape stands the agent's CPU time: on a busy machine the first tells of the machine.
"""

from __future__ import annotations

import argparse
import http.client
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import quantiles

from tests.collectors.fake_nvml import profiles
from tests.collectors.fake_nvml.library import FakeNvml, build_fake_nvml

_SETTLE_SECONDS = 8.0
_ACCEPT = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _rss_mib(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1024**2


def _children(pid: int) -> list[int]:
    return [int(one) for task in Path(f"/proc/{pid}/task").iterdir() for one in (task / "children").read_text().split()]


def _scrape(port: int) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", "/metrics", headers={"Accept": _ACCEPT, "Accept-Encoding": "gzip"})
    size = len(connection.getresponse().read())
    connection.close()
    return size


def _scrapes(name: str, pid: int, port: int, count: int) -> None:
    took, cpu, size = [], _cpu_seconds(pid), 0
    for _ in range(count):
        begin = time.perf_counter()
        size = _scrape(port)
        took.append(1e3 * (time.perf_counter() - begin))
        time.sleep(0.02)
    cuts = quantiles(took, n=100, method="inclusive")
    each = 1e3 * (_cpu_seconds(pid) - cpu) / count
    print(f"{name}: p50 {cuts[49]:.1f} ms, p99 {cuts[98]:.1f} ms, CPU {each:.1f} ms a scrape, {size / 1000:.0f} kB")


def _unasked(pid: int, seconds: float) -> None:
    family = [pid, *_children(pid)]
    before = {one: _cpu_seconds(one) for one in family}
    begin = time.monotonic()
    time.sleep(seconds)
    elapsed = time.monotonic() - begin
    shares = [(_cpu_seconds(one) - before[one]) / elapsed for one in family]
    memory = [_rss_mib(one) for one in family]
    print(f"unasked: CPU of one core {shares[0]:.2%} and {sum(shares[1:]):.2%} for reading; {sum(memory):.0f} MiB RSS")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--scrapes", type=int, default=300)
    parser.add_argument("--seconds", type=float, default=20.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        machine = FakeNvml(build_fake_nvml(Path(folder) / "library"), Path(folder) / "nvml.conf")
        for index in range(options.gpus):
            machine.add(profiles.h100(index))
        machine.write()
        command = [sys.executable, "-m", "stepscope", "agent", "run", "--listen", "127.0.0.1:0"]
        own = {"TRAINING__SOCKET": f"{folder}/agent.sock", "STATE__DIRECTORY": folder, "KINETO__ENABLED": "false"}
        environment = machine.environment() | {f"STEPSCOPE_AGENT__{name}": value for name, value in own.items()}
        with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as agent:
            assert agent.stderr is not None
            port = int(agent.stderr.readline().split()[2].split(":")[2].partition("/")[0])
            print(agent.stderr.readline().strip())
            time.sleep(_SETTLE_SECONDS)
            _unasked(agent.pid, options.seconds)
            _scrapes("all answer", agent.pid, port, options.scrapes)
            machine.set(options.gpus - 1, hang="any")
            machine.write()
            time.sleep(_SETTLE_SECONDS)
            _scrapes("one GPU hangs", agent.pid, port, options.scrapes)
            machine.values["hang"] = "any"
            machine.write()
            time.sleep(_SETTLE_SECONDS)
            _scrapes("the driver hangs", agent.pid, port, options.scrapes)
            agent.terminate()


if __name__ == "__main__":
    main()
