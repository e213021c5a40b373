"""Time to render /metrics of 8 GPUs, from readings of the tests' fake driver and of this host.

    python -m benchmarks.agent.metrics_page [--gpus 8] [--scrapes 500] [--out FILE.json]

The page is rendered as for a scrape, in the text formats of Prometheus and OpenMetrics, with gzip, and with DCGM's
names beside ours. Wall time: run it on a quiet machine.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from statistics import quantiles

from stepscope.agent.exporter.metrics_page import DcgmNames, MetricsPage
from stepscope.agent.gpus.probes import GpuProbes
from stepscope.agent.gpus.supervisor import ProbeTiming
from stepscope.agent.polling import SourceState
from stepscope.collectors.host.collector import HostCollector
from stepscope.collectors.host.processes import gpu_users_of
from stepscope.core.metrics.readings import Collection
from tests.collectors.fake_nvml import profiles
from tests.collectors.fake_nvml.library import FakeNvml, build_fake_nvml

_SETTLE_SECONDS = 6.0
_OPENMETRICS = "application/openmetrics-text;version=1.0.0"
_LIMIT_MS = 20.0


def _gpu_readings(num_gpus: int) -> Collection:
    with tempfile.TemporaryDirectory() as folder:
        machine = FakeNvml(build_fake_nvml(Path(folder) / "library"), Path(folder) / "nvml.conf")
        for index in range(num_gpus):
            machine.add(profiles.h100(index))
        machine.write()
        with GpuProbes(ProbeTiming(), environment=machine.environment()) as probes:
            time.sleep(_SETTLE_SECONDS)
            return probes.snapshot().collection


def main() -> None:
    """Measure and print; return 1 above the limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--scrapes", type=int, default=500)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    gpus = _gpu_readings(options.gpus)
    host = HostCollector(gpu_users=lambda: gpu_users_of(gpus)).collect()
    sources = [
        SourceState(name, collection, time.time_ns(), 0.1, None, "", 1, 0, 0.5)
        for name, collection in (("nvml", gpus), ("host", host))
    ]
    print(f"{options.gpus} GPUs: {len(gpus.readings)} readings, host {len(host.readings)}; {os.cpu_count()} cores")
    ours = MetricsPage(lambda: sources, stale_seconds=1e6)
    both = MetricsPage(lambda: sources, stale_seconds=1e6, dcgm_names=DcgmNames.OLD)
    results: dict[str, dict[str, float]] = {}
    for name, page, accept, encoding in (
        ("prometheus", ours, "", ""),
        ("openmetrics", ours, _OPENMETRICS, ""),
        ("openmetrics, gzip", ours, _OPENMETRICS, "gzip"),
        ("prometheus, DCGM's names beside", both, "", ""),
    ):
        took, size = [], 0
        for _ in range(options.scrapes):
            begin = time.perf_counter()
            size = len(page.encoded(accept=accept, accept_encoding=encoding)[0])
            took.append(1e3 * (time.perf_counter() - begin))
        cuts = quantiles(took, n=100, method="inclusive")
        results[name] = {"p50_ms": cuts[49], "p99_ms": cuts[98], "bytes": size}
        print(f"{name}: p50 {cuts[49]:.1f} ms, p99 {cuts[98]:.1f} ms, {size / 1000:,.0f} kB")
    if options.out:
        options.out.write_text(json.dumps(results, indent=1))
    raise SystemExit(1 if any(result["p99_ms"] > _LIMIT_MS for result in results.values()) else 0)


if __name__ == "__main__":
    main()
