"""Cost of the agent and of nvitop-exporter, side by side in one run on the fake driver of the tests.

    python -m benchmarks.agent.beside_nvitop --nvitop VENV/bin/nvitop-exporter [--program VENV/bin/stepscope]
        [--gpus 8] [--seconds 120] [--scrapes 100] [--urgent] [--out FILE.json]

Both read the GPUs once per second and are scraped every 15 s, as by Prometheus: CPU of all their processes, resident
(RSS) and proportional (PSS) memory, series. Then each is scraped once per second by turns, so that no page was made for
an earlier scrape. `--program`: a stepscope installed as users have it. With `--urgent` (needs root) both exporters and
the client get priority over all other processes, as if the machine were idle; caches are shared with the others all the
same.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import quantiles

from benchmarks.measurement import children, cpu_seconds, proportional_bytes, resident_bytes
from tests.collectors.fake_nvml import profiles
from tests.collectors.fake_nvml.library import FakeNvml, build_fake_nvml

_SCRAPED_EVERY_SECONDS = 15.0
_SETTLE_SECONDS = 15.0
_START_SECONDS = 60.0
_MIB = 1024**2
_ACCEPT = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"


@dataclass(slots=True)
class Exporter:
    """One of the two, with what was measured of it."""

    name: str
    pid: int
    port: int
    cpu_ratio: float = 0.0
    resident_mib: float = 0.0
    proportional_mib: float = 0.0
    num_series: int = 0
    scrape_ms: list[float] = field(default_factory=list)

    def family(self) -> list[int]:
        return [self.pid, *children(self.pid)]

    def page(self, *, is_compressed: bool = True) -> bytes:
        """Scrape it.

        Raises:
            OSError, http.client.HTTPException: it does not answer.
        """
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        headers = {"Accept": _ACCEPT, "Accept-Encoding": "gzip" if is_compressed else "identity"}
        try:
            connection.request("GET", "/metrics", headers=headers)
            return connection.getresponse().read()
        finally:
            connection.close()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def _started(name: str, make: Callable[[int], list[str]], environment: dict[str, str]) -> Iterator[Exporter]:
    port = _free_port()
    quiet = subprocess.DEVNULL
    with subprocess.Popen(make(port), env=environment, stdout=quiet, stderr=quiet) as process:
        exporter = Exporter(name, process.pid, port)
        try:
            end = time.monotonic() + _START_SECONDS
            while True:
                with suppress(OSError):
                    exporter.page()
                    break
                if process.poll() is not None or time.monotonic() > end:
                    raise SystemExit(f"{name} does not start")
                time.sleep(0.2)
            yield exporter
        finally:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(20)
            process.kill()


def _measure_cost(exporters: list[Exporter], seconds: float) -> None:
    before = {pid: cpu_seconds(pid) for one in exporters for pid in one.family()}
    begin = time.monotonic()
    while time.monotonic() - begin < seconds:
        for one in exporters:
            one.page()
        time.sleep(min(_SCRAPED_EVERY_SECONDS, max(0.0, begin + seconds - time.monotonic())))
    elapsed = time.monotonic() - begin
    for one in exporters:
        family = one.family()
        one.cpu_ratio = sum(cpu_seconds(pid) - before.get(pid, 0.0) for pid in family) / elapsed
        one.resident_mib = sum(map(resident_bytes, family)) / _MIB
        one.proportional_mib = sum(proportional_bytes(pid) or 0 for pid in family) / _MIB
        lines = one.page(is_compressed=False).decode().splitlines()
        one.num_series = sum(bool(line) and not line.startswith("#") for line in lines)


def _measure_scrapes(exporters: list[Exporter], count: int) -> None:
    for _ in range(count):
        for one in exporters:
            begin = time.perf_counter()
            one.page()
            one.scrape_ms.append(1e3 * (time.perf_counter() - begin))
            time.sleep(1.02 / len(exporters))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nvitop", required=True)
    parser.add_argument("--program")
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--scrapes", type=int, default=100)
    parser.add_argument("--urgent", action="store_true")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.urgent:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    with tempfile.TemporaryDirectory() as folder:
        machine = FakeNvml(build_fake_nvml(Path(folder) / "library"), Path(folder) / "nvml.conf")
        for index in range(options.gpus):
            machine.add(profiles.h100(index))
        machine.write()
        environment = machine.environment()
        if options.program:
            environment.pop("PYTHONPATH", None)
        program = [options.program] if options.program else [sys.executable, "-m", "stepscope"]
        state = ["--state-dir", f"{folder}/state", "--socket", f"{folder}/agent.sock"]
        with (
            _started("stepscope", lambda port: [*program, "agent", "run", "--listen", f"127.0.0.1:{port}", *state],
                     environment) as ours,
            _started("nvitop-exporter", lambda port: [options.nvitop, "--port", str(port), "--interval", "1"],
                     environment) as theirs,
        ):  # fmt: skip
            exporters = [ours, theirs]
            time.sleep(_SETTLE_SECONDS)
            _measure_cost(exporters, options.seconds)
            _measure_scrapes(exporters, options.scrapes)
    print(f"{options.gpus} GPUs, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    for one in exporters:
        cuts = quantiles(one.scrape_ms, n=100, method="inclusive")
        print(
            f"{one.name}: {one.cpu_ratio:.2%} of a core, {one.resident_mib:.1f} MiB RSS, "
            f"{one.proportional_mib:.1f} MiB PSS, "
            f"{one.num_series} series, scrape p50 {cuts[49]:.1f} ms, p99 {cuts[98]:.1f} ms"
        )
    if options.out:
        options.out.write_text(json.dumps([asdict(one) for one in exporters], indent=1))


if __name__ == "__main__":
    main()
